// Sampling settings and presets.  An empty field leaves the choice to the model's file and the server.

import { button, el } from "./dom.js";
import { PARAMETERS } from "./parameters.js";
import { saveSetting, setting } from "./store.js";

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
    const fieldsOf = (rare) => el("div", { class: "fields" }, PARAMETERS.filter((each) => each.rare === rare).map(({ name, label, min, max, step, title }) => {
      const input = el("input", { id: name, type: "number", min, max, step, title, placeholder: "auto", oninput: () => this.#keep() });
      this.inputs.set(name, input);
      return el("label", { title }, el("span", {}, label), input);
    }));
    this.system = el("textarea", { id: "system", rows: 3, placeholder: "How the model should behave", oninput: () => this.#keep() });
    this.stop = el("input", { id: "stop", type: "text", placeholder: "texts separated by commas", oninput: () => this.#keep() });
    this.schema = el("textarea", { id: "schema", rows: 3, spellcheck: "false", placeholder: "{\"type\": \"object\", ...}",
                                   oninput: () => this.#keep() });
    this.truncation = el("input", { id: "truncation", type: "checkbox", onchange: () => this.#keep() });
    this.presets = el("select", { id: "preset", "aria-label": "Preset", onchange: () => this.apply(this.#known()[this.presets.value] ?? {}) });
    panel.append(
      el("div", { class: "row" }, this.presets, button("Save", "Save as preset", () => this.#savePreset()),
        button("Remove", "Remove this preset", () => this.#removePreset())),
      el("label", { class: "wide" }, el("span", {}, "System message"), this.system),
      fieldsOf(false),
      el("details", {}, el("summary", {}, "More about sampling"), fieldsOf(true)),
      el("label", { class: "wide" }, el("span", {}, "Stop strings"), this.stop),
      el("label", { class: "wide" }, el("span", {}, "JSON schema for answers"), this.schema),
      el("label", { class: "check" }, this.truncation, el("span", {}, "Drop the oldest turns when the context is full")),
    );
    this.#listPresets();
    this.apply(setting("sampling", {}));
  }

  /** All settings, in the form in which they are stored. */
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

  /** Return the fields for a request.  Throws an Error for an invalid setting. */
  request() {
    const { system, stop, schema, ...made } = this.values();
    if (stop) made.stop = stop.split(",").map((text) => text.trim().replaceAll("\\n", "\n")).filter(Boolean);
    if (schema) {
      let parsed;
      try {
        parsed = JSON.parse(schema);
      } catch (error) {
        throw new Error(`the JSON schema for answers is not valid JSON: ${error.message}`);
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

/** Switch between light, dark and the system's theme. */
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

/** Open and close a panel with its button. */
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
