// Elements are created by code and text stays text, so nothing that a model or user writes becomes markup.

/** Create an element with attributes (`class`, `aria-...`), handlers (`onclick`) and children (elements, text). */
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

/** Return the page's element with an id. */
export const $ = (id) => document.getElementById(id);

/** Create a button with a visible word or sign, and a name for screen readers. */
export function button(sign, name, onclick, attributes = {}) {
  const label = sign === name ? {} : { "aria-label": name, title: name };
  return el("button", { type: "button", ...label, ...attributes, onclick }, sign);
}

/** Announce something to screen readers without moving the focus. */
export function announce(text) {
  $("announcer").textContent = text;
}

/** Let the user save some text as a file. */
export function download(name, text, type = "application/json") {
  const link = el("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Copy text, and show the result on the button. */
export async function copy(text, where) {
  const before = where.textContent;
  let done = "Copied";
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    done = "Not allowed here"; // browsers deny the clipboard to pages without TLS
  }
  where.textContent = done;
  announce(done);
  setTimeout(() => (where.textContent = before), 1200);
}
