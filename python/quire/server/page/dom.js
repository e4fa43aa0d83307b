// Elements made from code: text is always text, so nothing that a model or a user writes becomes part of the page.

/** An element with attributes (`class`, `aria-...`), properties of functions (`onclick`) and children (elements, text). */
export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, String(value));
  }
  made.append(...children.flat().filter((child) => child != null && child !== false));
  return made;
}

/** The element of the page with an id. */
export const $ = (id) => document.getElementById(id);

/** A button with a visible word or sign, and the name that screen readers say. */
export function button(sign, name, onclick, attributes = {}) {
  const label = sign === name ? {} : { "aria-label": name, title: name };
  return el("button", { type: "button", ...label, ...attributes, onclick }, sign);
}

/** Say something to screen readers without moving the focus. */
export function announce(text) {
  $("announcer").textContent = text;
}

/** Let the user save some text as a file. */
export function download(name, text, type = "application/json") {
  const link = el("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Copy text, and say on the button whether it was. */
export async function copy(text, where) {
  const before = where.textContent;
  let done = "Copied";
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    done = "Not allowed here"; // browsers keep the clipboard from pages without TLS
  }
  where.textContent = done;
  announce(done);
  setTimeout(() => (where.textContent = before), 1200);
}
