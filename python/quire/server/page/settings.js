// How answers are sampled, and presets of it.  An empty field leaves the choice to the model's file and the server.

import { button, el } from "./dom.js";
import { saveSetting, setting } from "./store.js";

const NUMBERS = [
  ["temperature", "Temperature", 0, 5, 0.1, "How random: 0 takes the likeliest token"],
  ["top_p", "Top-p", 0, 1, 0.05, "The likeliest tokens of this much probability together"],
  ["top_k", "Top-k", 0, 1000, 1, "The so many likeliest tokens; 0: all"],
  ["min_p", "Min-p", 0, 1, 0.01, "At least this part of the likeliest one's probability"],
  ["typical_p", "Typical-p", 0, 1, 0.05, "Tokens about as surprising as the text is"],
  ["repeat_penalty", "Repeat penalty", 0, 2, 0.05, "Above 1: what was said is less likely"],
  ["presence_penalty", "Presence penalty", -2, 2, 0.1, "Taken off tokens that have occurred"],
  ["frequency_penalty", "Frequency penalty", -2, 2, 0.1, "Taken off for each time that a token has occurred"],
  ["dry_multiplier", "DRY", 0, 5, 0.1, "Against repeated sequences; 0: off"],
  ["xtc_probability", "XTC", 0, 1, 0.05, "How often the likeliest tokens are left out"],
  ["max_tokens", "Most tokens", 1, null, 1, "Where an answer ends at the latest"],
  ["seed", "Seed", 0, null, 1, "The same number gives the same answer"],
];
const RARER = [
  ["min_tokens", "Fewest tokens", 0, null, 1, "Where an answer ends at the earliest"],
  ["top_n_sigma", "Top-n-sigma", 0, 10, 0.1, "Tokens within so many standard deviations of the likeliest"],
  ["xtc_threshold", "XTC threshold", 0, 1, 0.05, "How likely tokens must be for XTC to leave them out"],
  ["dynatemp_range", "Temperature range", 0, 5, 0.1, "How far the temperature moves with the choice there is"],
  ["dynatemp_exponent", "Range exponent", 0, 10, 0.1, "How fast it moves"],
  ["repeat_last_n", "Repeat window", -1, null, 1, "So many last tokens count for penalties; -1: all"],
  ["dry_base", "DRY base", 1, 10, 0.05, "How fast DRY grows with the length of a repetition"],
  ["dry_allowed_length", "DRY length", 1, null, 1, "Repetitions up to so many tokens are free"],
  ["mirostat", "Mirostat", 0, 2, 1, "1 or 2: keeps the surprise at a level; 0: off"],
  ["mirostat_tau", "Mirostat tau", 0, 20, 0.1, "That level"],
  ["mirostat_eta", "Mirostat eta", 0, 1, 0.01, "How fast it is approached"],
];
const BUILT_IN = {
  "Model's own": {},
  Exact: { temperature: 0 },
  Balanced: { temperature: 0.7, top_p: 0.95 },
  Creative: { temperature: 1.1, min_p: 0.05 },
};

export class Settings {
  /** Fills a panel; `changed` is called after each change. */
  constructor(panel, changed = () => {}) {
    this.changed = changed;
    this.inputs = new Map();
    const fieldsOf = (numbers) => el("div", { class: "fields" }, numbers.map(([name, label, min, max, step, title]) => {
      const input = el("input", { id: name, type: "number", min, max, step, title, placeholder: "auto", oninput: () => this.#keep() });
      this.inputs.set(name, input);
      return el("label", { title }, el("span", {}, label), input);
    }));
    this.system = el("textarea", { id: "system", rows: 3, placeholder: "How the model should behave", oninput: () => this.#keep() });
    this.stop = el("input", { id: "stop", type: "text", placeholder: "texts, with commas between", oninput: () => this.#keep() });
    this.schema = el("textarea", { id: "schema", rows: 3, spellcheck: "false", placeholder: "{\"type\": \"object\", ...}",
                                   oninput: () => this.#keep() });
    this.truncation = el("input", { id: "truncation", type: "checkbox", onchange: () => this.#keep() });
    this.presets = el("select", { id: "preset", "aria-label": "Preset", onchange: () => this.apply(this.#known()[this.presets.value] ?? {}) });
    panel.append(
      el("div", { class: "row" }, this.presets, button("Save", "Save as preset", () => this.#savePreset()),
        button("Remove", "Remove this preset", () => this.#removePreset())),
      el("label", { class: "wide" }, el("span", {}, "System message"), this.system),
      fieldsOf(NUMBERS),
      el("details", {}, el("summary", {}, "More about sampling"), fieldsOf(RARER)),
      el("label", { class: "wide" }, el("span", {}, "Stop at"), this.stop),
      el("label", { class: "wide" }, el("span", {}, "JSON schema of answers"), this.schema),
      el("label", { class: "check" }, this.truncation, el("span", {}, "Drop the oldest turns when the context is full")),
    );
    this.#listPresets();
    this.apply(setting("sampling", {}));
  }

  /** All that is set, as it is kept. */
  values() {
    const made = {};
    for (const [name, input] of this.inputs) if (input.value !== "") made[name] = Number(input.value);
    for (const name of ["system", "stop", "schema"]) if (this[name].value.trim()) made[name] = this[name].value;
    if (this.truncation.checked) made.truncation = "auto";
    return made;
  }

  apply(values) {
    for (const [name, input] of this.inputs) input.value = values[name] ?? "";
    for (const name of ["system", "stop", "schema"]) this[name].value = values[name] ?? "";
    this.truncation.checked = values.truncation === "auto";
    this.#keep();
  }

  /** The fields of a request.  An Error says what cannot be sent. */
  request() {
    const { system, stop, schema, ...made } = this.values();
    if (stop) made.stop = stop.split(",").map((text) => text.trim().replaceAll("\\n", "\n")).filter(Boolean);
    if (schema) {
      let parsed;
      try {
        parsed = JSON.parse(schema);
      } catch (error) {
        throw new Error(`the JSON schema of answers is no JSON: ${error.message}`);
      }
      made.response_format = { type: "json_schema", json_schema: { name: "answer", schema: parsed } };
    }
    return made;
  }

  #keep() {
    saveSetting("sampling", this.values());
    this.changed();
  }

  #known() {
    return { ...BUILT_IN, ...setting("presets", {}) };
  }

  #listPresets(chosen = "") {
    this.presets.replaceChildren(new Option("Presets…", ""), ...Object.keys(this.#known()).map((name) => new Option(name, name)));
    this.presets.value = chosen;
  }

  #savePreset() {
    const name = prompt("Name of the preset", this.presets.value)?.trim();
    if (!name) return;
    saveSetting("presets", { ...setting("presets", {}), [name]: this.values() });
    this.#listPresets(name);
  }

  #removePreset() {
    const { [this.presets.value]: _, ...rest } = setting("presets", {});
    saveSetting("presets", rest);
    this.#listPresets();
  }
}

/** Light, dark, or as the system has it. */
export function themeButton() {
  const themes = ["auto", "light", "dark"];
  const signs = { auto: "◐", light: "☀", dark: "☾" };
  const made = button("", "Theme", () => show(themes[(themes.indexOf(setting("theme", "auto")) + 1) % 3]), { id: "theme" });
  function show(theme) {
    saveSetting("theme", theme);
    document.documentElement.style.colorScheme = theme === "auto" ? "light dark" : theme;
    document.documentElement.dataset.theme = theme;
    made.textContent = signs[theme];
    made.setAttribute("aria-label", `Theme: ${theme}`);
  }
  show(setting("theme", "auto"));
  return made;
}

/** Opens and closes a panel by its button. */
export function toggle(opener, panel) {
  opener.setAttribute("aria-controls", panel.id);
  const show = (open) => {
    panel.hidden = !open;
    opener.setAttribute("aria-expanded", String(open));
  };
  opener.addEventListener("click", () => show(panel.hidden));
  show(false);
  return show;
}

export const openPanel = (id) => !$(id).hidden;
