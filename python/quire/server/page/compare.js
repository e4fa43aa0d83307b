// Choose a second model or preset that answers the same questions.

import { dialog } from "./dialogs.js";
import { el } from "./dom.js";
import { presets, requestFields } from "./settings.js";

/** Resolves to `{label, model, fields}`, undefined if it was cancelled. */
export async function chooseComparison(models) {
  const model = el("select", {}, models.known.map((one) => new Option(one.id, one.id)));
  model.value = models.chosen ?? "";
  const preset = el("select", {}, new Option("This chat's settings", ""), Object.keys(presets()).map((name) => new Option(name, name)));
  const shown = dialog("Compare", [
    el("p", {}, "Each question is answered twice, side by side: with this chat's settings, and with these."),
    el("label", {}, el("span", {}, "Model"), model), el("label", {}, el("span", {}, "Preset"), preset),
  ], [el("button", { value: "yes", class: "primary" }, "Compare")]);
  if ((await shown.closed) !== "yes") return undefined;
  const { system: _, ...values } = presets()[preset.value] ?? {};
  const label = [model.value !== models.chosen && model.value, preset.value].filter(Boolean).join(", ") || "the same settings again";
  return { label, model: model.value, fields: requestFields(values) };
}
