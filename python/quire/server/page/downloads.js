// Download a model to the server, where the operator allows it.

import { pullLines } from "./api.js";
import { toast } from "./dialogs.js";
import { $, button, bytes, el, iconButton } from "./dom.js";

/** A form that downloads a model by its name; `done()` is called after each download. */
export function downloadForm(done) {
  const name = el("input", { type: "text", "aria-label": "Model to download", placeholder: "org/model-GGUF:Q4_K_M or qwen3:0.6b", required: true });
  const list = el("ul", { class: "downloads" });
  const start = () => {
    const wanted = name.value.trim();
    if (!wanted) return;
    name.value = "";
    run(wanted);
  };
  async function run(wanted) {
    const abort = new AbortController();
    const bar = el("progress", { max: 1, "aria-label": wanted });
    const said = el("small", {}, "looking for it…");
    const row = el("li", {}, el("b", {}, wanted), bar, said, iconButton("x", `Cancel ${wanted}`, () => abort.abort()));
    list.append(row);
    try {
      for await (const { total, completed } of pullLines(wanted, abort.signal)) {
        if (!total) continue;
        bar.value = completed / total;
        said.textContent = `${bytes(completed)} of ${bytes(total)}`;
      }
      toast(`${wanted} is downloaded`);
      done();
    } catch (error) {
      if (error.name !== "AbortError") toast(`${wanted} is not downloaded: ${error.message}`, { bad: true });
    }
    row.remove();
  }
  name.addEventListener("keydown", (event) => event.key === "Enter" && start());
  return el("div", { id: "downloads", hidden: true }, el("div", { class: "row" }, name, button("Download", start, { sign: "download" })), list);
}

/** Show the form if the server allows changes. */
export const showDownloads = (allowed) => ($("downloads").hidden = !allowed);
