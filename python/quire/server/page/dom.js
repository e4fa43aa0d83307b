// Elements are created by code and text stays text, so nothing that a model or user writes becomes markup.

import { ICONS } from "./icons.js";

const SVG = "http://www.w3.org/2000/svg";

/** Create an element with attributes (`class`, `aria-...`), handlers (`onclick`) and children (elements, text). */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Create an SVG element. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(made, attributes, children) {
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

/** Create an icon; it is decoration, so its button needs a name. */
export function icon(name) {
  const shapes = ICONS[name].map(([tag, attributes]) => svg(tag, attributes));
  return svg("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true" }, shapes);
}

/** Create a button that shows its name as text, with an icon before it if `sign` is an icon. */
export function button(name, onclick, { sign, ...attributes } = {}) {
  return el("button", { type: "button", onclick, ...attributes }, sign && icon(sign), el("span", {}, name));
}

/** Create a button that shows only an icon; its name is its tooltip and what screen readers say. */
export function iconButton(sign, name, onclick, attributes = {}) {
  return el("button", { type: "button", class: "plain-icon", "aria-label": name, title: name, onclick, ...attributes }, icon(sign));
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

/** Copy text, and show on the button that it worked. */
export async function copy(text, where) {
  const done = await copied(text);
  const mark = icon(done ? "check" : "x");
  const before = where.querySelector(".icon");
  before?.replaceWith(mark);
  announce(done ? "Copied" : "The browser does not allow copying here");
  setTimeout(() => before && mark.replaceWith(before), 1500);
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Pages without TLS have no clipboard; the old command works there.
    const area = el("textarea", { class: "unseen" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

/** Format a number of bytes with a unit. */
export function bytes(n) {
  if (n == null) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  for (let rest = n; rest >= 1000 && at < 4; rest /= 1000) at += 1;
  const value = n / 1000 ** at;
  return `${value < 10 && at ? value.toFixed(1) : Math.round(value)} ${units[at]}`;
}

/** Format a number with separators, or shortened above a million. */
export function count(n) {
  if (n == null) return "–";
  if (n >= 1e9) return `${(n / 1e9).toPrecision(3)} billion`;
  if (n >= 1e6) return `${(n / 1e6).toPrecision(3)} million`;
  return Math.round(n).toLocaleString("en");
}

/** Format seconds as a reader would say them. */
export function duration(seconds) {
  if (seconds == null) return "–";
  if (seconds < 0.0095) return `${(seconds * 1000).toFixed(1)} ms`;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toPrecision(2)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172_800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86_400)} days`;
}

/** Return how many of something there are, in words. */
export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;
