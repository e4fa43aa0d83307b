// The settings of a conversation, and presets.  An empty field leaves the choice to the model's file and the server.

import { askText, toast } from "./dialogs.js";
import { $, button, el, icon, iconButton } from "./dom.js";
import { PARAMETERS } from "./parameters.js";
import { saveSetting, setting } from "./store.js";

const BUILT_IN = {
  "Model's own": {},
  Exact: { temperature: 0 },
  Balanced: { temperature: 0.7, top_p: 0.95 },
  Creative: { temperature: 1.1, min_p: 0.05 },
};
const TEXTS = ["system", "stop", "schema"];

/** All presets by name. */
export const presets = () => ({ ...BUILT_IN, ...setting("presets", {}) });

/** Return the fields of a request for settings.  Throws an Error for an invalid setting. */
export function requestFields({ system: _, stop, schema, probabilities, compare: _c, model: _m, tools: _t, ...made }) {
  if (stop) made.stop = stop.split(",").map((text) => text.trim().replaceAll("\\n", "\n")).filter(Boolean);
  if (probabilities) Object.assign(made, { logprobs: true, top_logprobs: 5 });
  if (schema) {
    let parsed;
    try {
      parsed = JSON.parse(schema);
    } catch (error) {
      throw new Error(`The JSON schema in the settings is not valid JSON: ${error.message}`);
    }
    made.response_format = { type: "json_schema", json_schema: { name: "answer", schema: parsed } };
  }
  return made;
}

export class Settings {
  /** Fills the drawer; `changed(values)` is called after each change by the user. */
  constructor(changed, sections) {
    this.changed = changed;
    this.inputs = new Map();
    this.panel = $("settings");
    const keep = () => this.changed(this.values());
    const fieldsOf = (rare) => el("div", { class: "fields" }, PARAMETERS.filter((each) => each.rare === rare).map(({ name, label, min, max, step, title }) => {
      const input = el("input", { id: name, type: "number", min, max, step, placeholder: "auto", oninput: keep });
      this.inputs.set(name, input);
      return el("label", { title }, el("span", {}, label), input);
    }));
    this.system = el("textarea", { id: "system", rows: 4, placeholder: "How the model should behave, for example: Answer briefly and in German.", oninput: keep });
    this.stop = el("input", { id: "stop", type: "text", placeholder: "texts separated by commas", oninput: keep });
    this.schema = el("textarea", { id: "schema", rows: 3, spellcheck: "false", placeholder: "{\"type\": \"object\", …}", oninput: keep });
    this.truncation = el("input", { id: "truncation", type: "checkbox", onchange: keep });
    this.probabilities = el("input", { id: "probabilities", type: "checkbox", onchange: keep });
    this.presets = el("select", { id: "preset", "aria-label": "Preset", onchange: () => {
      this.show({ ...presets()[this.presets.value], system: presets()[this.presets.value]?.system ?? this.system.value });
      keep();
    } });
    const labelled = (text, input, about) => el("label", { class: "wide" }, el("span", {}, text), input, about && el("small", {}, about));
    const check = (input, text) => el("label", { class: "check" }, input, el("span", {}, text));
    this.panel.append(
      el("header", {}, el("h2", {}, "Settings"), iconButton("x", "Close settings", () => this.toggle(false))),
      el("section", {}, el("h3", {}, "This chat"),
        labelled("System message", this.system),
        el("label", { class: "wide" }, el("span", {}, "Preset"), el("div", { class: "row" }, this.presets,
          iconButton("bookmark", "Save as preset", () => this.#savePreset()), iconButton("trash-2", "Remove this preset", () => this.#removePreset()))),
        fieldsOf(false),
        el("details", {}, el("summary", {}, "More about sampling"), fieldsOf(true)),
        el("details", {}, el("summary", {}, "Form of the answer"), labelled("Stop at these texts", this.stop), labelled("JSON schema", this.schema, "Answers are then JSON of this form.")),
        check(this.truncation, "Drop the oldest messages when the context is full"),
        check(this.probabilities, "Record how sure the model was of each word"),
        el("div", { class: "row" }, button("Use for new chats", () => {
          saveSetting("defaults", this.values());
          toast("New chats start with these settings");
        }, { sign: "check" }), button("Reset", () => { this.show({}); keep(); }, { sign: "rotate-ccw" }))),
      ...sections,
    );
    this.#listPresets();
  }

  /** All values, in the form in which they are stored. */
  values() {
    const made = {};
    for (const [name, input] of this.inputs) if (input.value !== "") made[name] = Number(input.value);
    for (const name of TEXTS) if (this[name].value.trim()) made[name] = this[name].value;
    if (this.truncation.checked) made.truncation = "auto";
    if (this.probabilities.checked) made.probabilities = true;
    return made;
  }

  /** Fill the fields. */
  show(values) {
    for (const [name, input] of this.inputs) input.value = values[name] ?? "";
    for (const name of TEXTS) this[name].value = values[name] ?? "";
    this.truncation.checked = values.truncation === "auto";
    this.probabilities.checked = Boolean(values.probabilities);
  }

  /** Open or close the drawer. */
  toggle(open = this.panel.hidden) {
    this.panel.hidden = !open;
    document.body.classList.toggle("settings-open", open);
    $("settings-button").setAttribute("aria-expanded", String(open));
    (open ? this.panel.querySelector("button") : $("settings-button")).focus();
  }

  #listPresets(chosen = "") {
    this.presets.replaceChildren(new Option("Choose…", ""), ...Object.keys(presets()).map((name) => new Option(name, name)));
    this.presets.value = chosen;
  }

  async #savePreset() {
    const name = await askText("Save as preset", { label: "Name", value: this.presets.value });
    if (!name) return;
    saveSetting("presets", { ...setting("presets", {}), [name]: this.values() });
    this.#listPresets(name);
  }

  #removePreset() {
    const { [this.presets.value]: removed, ...rest } = setting("presets", {});
    if (!removed) return toast("Presets that come with the page stay");
    saveSetting("presets", rest);
    this.#listPresets();
  }
}

/** A choice between the system's, the light and the dark theme. */
export function themeChoice() {
  const themes = [["auto", "System", "monitor"], ["light", "Light", "sun"], ["dark", "Dark", "moon"]];
  const show = (theme) => {
    saveSetting("theme", theme);
    document.documentElement.style.colorScheme = theme === "auto" ? "light dark" : theme;
    buttons.forEach((one, i) => one.setAttribute("aria-pressed", String(themes[i][0] === theme)));
  };
  const buttons = themes.map(([theme, name, sign]) => el("button", { type: "button", onclick: () => show(theme) }, icon(sign), name));
  show(setting("theme", "auto"));
  return el("div", { class: "segments", role: "group", "aria-label": "Theme" }, buttons);
}

/** The keys that the page knows. */
export const keysSection = () => el("section", {}, el("h3", {}, "Keys"), el("dl", { class: "keys" }, [["Enter", "send"], ["Shift+Enter", "new line"], ["Esc", "stop"], ["↑", "edit the last question"],
    ["/", "prompt library"], ["Ctrl+K", "search"], ["Ctrl+Shift+O", "new chat"]].map(([key, text]) => el("div", {}, el("dt", {}, el("kbd", {}, key)), el("dd", {}, text)))));
