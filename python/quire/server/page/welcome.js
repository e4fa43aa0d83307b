// The empty conversation: what the model can do, and questions to begin with.

import { $, el, icon } from "./dom.js";
import { abilities } from "./models.js";

const EXAMPLES = [
  ["lightbulb", "Explain something", "Explain how a rainbow forms, in three sentences."],
  ["code", "Write code", "Write a Python function that finds duplicate files in a folder, and explain it."],
  ["pencil", "Improve a text", "Make this friendlier and half as long:\n\n"],
  ["message-square", "Plan", "Plan a weekend in Paris for two people who like food and museums."],
];

/** Fill the welcome; `put(text)` puts an example into the input, `attach()` opens the file chooser. */
export function welcome(models, { put, attach }) {
  const { model } = models;
  const examples = EXAMPLES.map(([sign, title, text]) => [sign, title, text.trim().split("\n")[0], () => put(text)]);
  if (model?.reads?.includes("audio")) examples.unshift(["audio-lines", "Ask about a recording", "Attach a sound file and ask what is said.", attach]);
  if (model?.reads?.includes("image")) examples.unshift(["image", "Ask about a picture", "Attach a photo and ask what it shows.", attach]);
  $("welcome").replaceChildren(
    el("h2", {}, "What can I help with?"),
    model ? el("ul", { class: "abilities", "aria-label": `About ${model.id}` }, el("li", {}, icon("cpu"), el("b", {}, model.meta.name || model.id)),
      abilities(model).map(([sign, text]) => el("li", {}, icon(sign), text))) : null,
    el("div", { class: "examples" }, examples.slice(0, 4).map(([sign, title, text, action]) =>
      el("button", { type: "button", onclick: action }, icon(sign), el("b", {}, title), el("span", {}, text)))),
    el("p", { class: "soft" }, "Answers come from this server. Conversations stay in this browser."),
  );
}
