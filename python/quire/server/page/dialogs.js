// Dialogs, menus and short messages inside the page.

import { $, announce, button, el, icon, iconButton } from "./dom.js";

/** Show a dialog; resolves to its return value once it closes, "" if it was cancelled. */
export function dialog(title, content, actions, { wide = false } = {}) {
  const before = document.activeElement;
  const form = el("form", { method: "dialog" },
    el("header", {}, el("h2", {}, title), iconButton("x", "Close", () => made.close(""))), el("div", { class: "dialog-body" }, content),
    actions.length ? el("footer", {}, actions) : null);
  const made = el("dialog", { class: wide ? "wide" : null, "aria-label": title, onclick: (event) => event.target === made && made.close("") }, form);
  document.body.append(made);
  made.showModal();
  return {
    element: made,
    closed: new Promise((resolve) => made.addEventListener("close", () => {
      made.remove();
      before?.focus?.();
      resolve(made.returnValue);
    })),
  };
}

/** Ask for a text; resolves to undefined if it was cancelled or is empty. */
export async function askText(title, { label = title, value = "", action = "Save" } = {}) {
  const input = el("input", { type: "text", "aria-label": label, autofocus: true, maxlength: 200 });
  input.value = value;
  const shown = dialog(title, [el("label", {}, el("span", {}, label), input)], [el("button", { value: "yes", class: "primary" }, action)]);
  input.select();
  return (await shown.closed) === "yes" ? input.value.trim() || undefined : undefined;
}

/** Ask for confirmation of something that cannot be undone. */
export async function confirmed(title, text, action) {
  const shown = dialog(title, [el("p", {}, text)], [el("button", { value: "" }, "Cancel"), el("button", { value: "yes", class: "danger" }, action)]);
  return (await shown.closed) === "yes";
}

/** Show a message for some seconds; `undo` adds a button for it. */
export function toast(text, { undo, bad = false } = {}) {
  const made = el("div", { class: bad ? "toast bad" : "toast" }, icon(bad ? "triangle-alert" : "info"), el("span", {}, text));
  const leave = () => made.remove();
  if (undo) made.append(button("Undo", () => { leave(); undo(); }));
  made.append(iconButton("x", "Dismiss", leave));
  $("toasts").append(made);
  announce(text);
  while ($("toasts").children.length > 3) $("toasts").firstChild.remove();
  setTimeout(leave, undo || bad ? 9000 : 4500);
}

/** Show a menu below a button; entries are `[icon, name, action]`, null is a line. */
export function menu(opener, entries) {
  document.querySelector(".menu")?.remove();
  const close = (focus) => {
    made.remove();
    document.removeEventListener("pointerdown", outside, true);
    opener.setAttribute("aria-expanded", "false");
    if (focus) opener.focus();
  };
  const outside = (event) => made.contains(event.target) || close(false);
  const items = entries.filter(Boolean).map(([sign, name, action]) =>
    el("button", { type: "button", role: "menuitem", onclick: () => { close(true); action(); } }, icon(sign), el("span", {}, name)));
  const made = el("div", { class: "menu", role: "menu" }, items);
  made.addEventListener("keydown", (event) => {
    const at = items.indexOf(document.activeElement);
    if (event.key === "Escape" || event.key === "Tab") close(true);
    else if (event.key === "ArrowDown") items[(at + 1) % items.length].focus();
    else if (event.key === "ArrowUp") items[(at + items.length - 1) % items.length].focus();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  document.body.append(made);
  const from = opener.getBoundingClientRect();
  const { width, height } = made.getBoundingClientRect();
  made.style.left = `${Math.max(8, Math.min(from.left, innerWidth - width - 8))}px`;
  made.style.top = from.bottom + height + 8 < innerHeight ? `${from.bottom + 4}px` : `${Math.max(8, from.top - height - 4)}px`;
  opener.setAttribute("aria-expanded", "true");
  document.addEventListener("pointerdown", outside, true);
  items[0].focus();
}
