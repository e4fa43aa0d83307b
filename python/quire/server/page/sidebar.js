// The stored conversations: open, search, rename, remove, export and import them.

import { Conversation } from "./conversation.js";
import { $, announce, button, download, el } from "./dom.js";
import { chats, exportOf, parseExport, removeChat, saveChat } from "./store.js";

export class Sidebar {
  /** `open(kept)` shows a conversation; `opened()` returns the id of the shown one. */
  constructor({ open, opened, startNew }) {
    Object.assign(this, { open, opened, startNew });
    $("search").addEventListener("input", () => this.refresh());
    $("export").addEventListener("click", async () => download("quire-chats.json", exportOf(await chats())));
    $("import").addEventListener("click", () => $("import-file").click());
    $("import-file").addEventListener("change", () => this.#import());
    $("menu").addEventListener("click", () => this.toggle());
    $("shade").addEventListener("click", () => this.toggle(false));
  }

  /** Show or hide the list, which covers the conversation on narrow screens. */
  toggle(open = !document.body.classList.contains("menu-open")) {
    document.body.classList.toggle("menu-open", open);
    $("menu").setAttribute("aria-expanded", String(open));
  }

  async refresh() {
    const wanted = $("search").value.trim();
    const found = (await chats()).filter((kept) => !wanted || new Conversation(kept).matches(wanted));
    $("chats").replaceChildren(...found.map((kept) => this.#entry(kept)));
    $("no-chats").hidden = found.length > 0;
    $("no-chats").textContent = wanted ? "Nothing found" : "No conversations yet";
  }

  #entry(kept) {
    const current = kept.id === this.opened();
    const choose = el("button", { type: "button", class: "title", "aria-current": current ? "true" : null, onclick: () => {
      this.toggle(false);
      this.open(kept);
    } }, kept.title || "Untitled");
    return el("li", { class: current ? "current" : null }, choose,
      button("✎", `Rename ${kept.title}`, () => this.#rename(kept)),
      button("⇩", `Export ${kept.title}`, () => download("quire-chat.json", exportOf([kept]))),
      button("×", `Remove ${kept.title}`, () => this.#remove(kept)));
  }

  async #rename(kept) {
    const title = prompt("Title", kept.title)?.trim();
    if (!title) return;
    await saveChat({ ...kept, title });
    if (kept.id === this.opened()) this.open({ ...kept, title });
    this.refresh();
  }

  async #remove(kept) {
    if (!confirm(`Remove "${kept.title}"?`)) return;
    await removeChat(kept.id);
    if (kept.id === this.opened()) this.startNew();
    this.refresh();
  }

  async #import() {
    const [file] = $("import-file").files;
    $("import-file").value = "";
    if (!file) return;
    try {
      const found = parseExport(await file.text());
      for (const kept of found) await saveChat({ ...kept, changed: kept.changed ?? Date.now() });
      announce(`${found.length} conversations imported`);
    } catch (error) {
      alert(`Not imported: ${error.message}`);
    }
    this.refresh();
  }
}
