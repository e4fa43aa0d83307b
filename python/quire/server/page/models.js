// The models of the server: which one answers, what it can do, loading and unloading.

import { loadModel, models, unloadModel } from "./api.js";
import { toast } from "./dialogs.js";
import { $, announce, bytes, count } from "./dom.js";
import { saveSetting, setting } from "./store.js";

/** Words for the states of models. */
export const STATES = { closed: "not loaded", stopped: "not loaded", loading: "loading…", restarting: "restarting…", failed: "cannot be loaded" };

export class Models {
  /** `changed()` is called if another model is chosen or its state changes. */
  constructor(changed) {
    Object.assign(this, { known: [], changed });
    this.select = $("model");
    this.select.addEventListener("change", () => {
      saveSetting("model", this.select.value);
      this.#show();
      changed(true);
    });
  }

  /** The chosen model's name, undefined if the server has none. */
  get chosen() {
    return this.select.value || undefined;
  }

  get model() {
    return this.known.find((one) => one.id === this.chosen);
  }

  /** The context of the chosen model in tokens, if it is loaded. */
  get n_ctx() {
    return this.model?.meta.n_ctx;
  }

  /** The kinds of input that the chosen model reads; all, as long as it is not loaded and nobody knows. */
  get reads() {
    return this.model?.reads ?? ["text", "image", "audio"];
  }

  /** A model's name if the server has it, else that of the chosen one. */
  nameOf(name) {
    return this.known.some((model) => model.id === name) ? name : this.chosen;
  }

  /** Choose a model, if the server has it. */
  choose(name) {
    if (name && this.known.some((model) => model.id === name)) this.select.value = name;
    this.#show();
    this.changed(false);
  }

  async refresh() {
    const before = JSON.stringify(this.model);
    this.known = await models();
    const wanted = this.select.value || setting("model", "");
    const names = this.known.map((model) => model.id);
    if (names.join("\n") !== [...this.select.options].map((option) => option.value).join("\n")) {
      this.select.replaceChildren(...names.map((name) => new Option(name, name)));
    }
    if (names.includes(wanted)) this.select.value = wanted;
    this.#show();
    if (JSON.stringify(this.model) !== before) this.changed(false);
  }

  #show() {
    const { state } = this.model ?? {};
    $("model-state").textContent = state && state !== "ready" ? (STATES[state] ?? state) : "";
  }

  /** Load a model, or unload it if it is loaded. */
  async toggle(name) {
    const loads = this.known.find((one) => one.id === name)?.state !== "ready";
    $("model-state").textContent = loads ? "loading…" : "unloading…";
    try {
      await (loads ? loadModel(name) : unloadModel(name));
      announce(`${name} ${loads ? "loaded" : "unloaded"}`);
    } catch (error) {
      toast(error.message, { bad: true });
    }
    await this.refresh().catch(() => {});
  }
}

/** Say in plain words what a model can do: `[icon, text]` each. */
export function abilities({ meta, reads = [], file_bytes }) {
  const made = [];
  if (meta.n_ctx) {
    const pages = Math.round((meta.n_ctx * 0.75) / 500);
    made.push(["book-open", `Remembers ${count(meta.n_ctx)} tokens, about ${pages > 1 ? `${count(pages)} pages` : "a page"}`]);
  }
  if (reads.includes("image")) made.push(["image", "Reads images"]);
  if (reads.includes("audio")) made.push(["audio-lines", "Hears recordings"]);
  if (meta.n_params) made.push(["brain", `${count(meta.n_params)} parameters`]);
  if (file_bytes) made.push(["hard-drive", bytes(file_bytes)]);
  return made;
}
