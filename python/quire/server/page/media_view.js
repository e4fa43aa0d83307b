// Files as the conversation and the composer show them.

import { bytes, el, icon, iconButton, plural } from "./dom.js";
import { dialog } from "./dialogs.js";
import { file } from "./store.js";

const urls = new Map();

/** Return a URL of a stored file, the same for as long as the page is open. */
async function urlOf({ id, blob }) {
  if (!urls.has(id)) urls.set(id, URL.createObjectURL(blob ?? (await file(id))?.blob ?? new Blob()));
  return urls.get(id);
}

/** Show a file in the composer, where it can be removed. */
export function chip(one, remove) {
  const made = el("li", { class: `chip ${one.kind}` }, one.kind === "image" ? picture(one) : icon(one.kind === "audio" ? "audio-lines" : "file-text"),
    el("span", { class: "chip-text" }, el("b", {}, one.name), el("small", {}, aboutOf(one))), iconButton("x", `Remove ${one.name}`, remove));
  return made;
}

export function aboutOf(one) {
  if (one.about) return one.about;
  return one.n_tokens == null ? bytes(new Blob([one.text]).size) : plural(one.n_tokens, "token");
}

/** Show an image, if need be smaller than it is. */
function picture(one, most = Infinity) {
  const scale = Math.min(1, most / one.width, (0.75 * most) / one.height);
  const made = el("img", { alt: "", loading: "lazy", width: Math.round(one.width * scale), height: Math.round(one.height * scale) });
  urlOf(one).then((url) => (made.src = url));
  return made;
}

/** Show the files of a question. */
export function attachmentsView(attachments = []) {
  if (!attachments.length) return null;
  return el("div", { class: "attachments" }, attachments.map((one) => {
    if (one.kind === "image") return imageView(one);
    if (one.kind === "audio") return audioView(one);
    const about = el("small", {}, aboutOf(one));
    return el("details", { class: "file" }, el("summary", {}, icon("file-text"), el("b", {}, one.name), about), el("pre", { tabindex: "0" }, one.text));
  }));
}

function imageView(one) {
  const open = () => dialog(one.name, [picture(one), el("p", { class: "soft" }, one.about ?? "")], [], { wide: true });
  return el("button", { type: "button", class: "thumbnail", "aria-label": `Show ${one.name}`, title: one.name, onclick: open }, picture(one, 320));
}

function audioView(one) {
  const made = el("audio", { controls: true, preload: "metadata", "aria-label": one.name });
  urlOf(one).then((url) => (made.src = url));
  return el("div", { class: "sound" }, made);
}
