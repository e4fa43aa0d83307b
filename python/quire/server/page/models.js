// Choose, load and unload the model.

import { loadModel, models, unloadModel } from "./api.js";
import { $, announce } from "./dom.js";
import { saveSetting, setting } from "./store.js";

export class Models {
  constructor(changed) {
    this.known = [];
    this.select = $("model");
    this.select.addEventListener("change", () => {
      saveSetting("model", this.select.value);
      this.#show();
      changed();
    });
    $("load").addEventListener("click", () => this.#ask());
  }

  /** The chosen model's name, undefined if the server has none. */
  get chosen() {
    return this.select.value || undefined;
  }

  /** The context of the chosen model in tokens, if it is loaded. */
  get n_ctx() {
    return this.known.find((model) => model.id === this.chosen)?.meta.n_ctx;
  }

  async refresh() {
    this.known = await models();
    const wanted = this.select.value || setting("model", "");
    const names = this.known.map((model) => model.id);
    if (names.join("\n") !== [...this.select.options].map((option) => option.value).join("\n")) {
      this.select.replaceChildren(...names.map((name) => new Option(name, name)));
    }
    if (names.includes(wanted)) this.select.value = wanted;
    this.#show();
  }

  #show() {
    const model = this.known.find((one) => one.id === this.chosen);
    const several = this.known.length > 1;
    $("load").hidden = !several || !model;
    $("load").textContent = model?.state === "ready" ? "Unload" : "Load";
    $("model-state").textContent = model && model.state !== "ready" ? model.state : "";
  }

  async #ask() {
    const model = this.known.find((one) => one.id === this.chosen);
    const loads = model.state !== "ready";
    $("load").disabled = true;
    $("model-state").textContent = loads ? "loading…" : "unloading…";
    try {
      await (loads ? loadModel(model.id) : unloadModel(model.id));
      announce(`${model.id} ${loads ? "loaded" : "unloaded"}`);
      await this.refresh();
    } catch (error) {
      $("model-state").textContent = error.message;
    }
    $("load").disabled = false;
  }
}
