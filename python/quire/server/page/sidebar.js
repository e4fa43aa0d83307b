// The stored conversations: open, search, pin, rename, remove.

import { confirmed, dialog, menu, toast } from "./dialogs.js";
import { $, download, el, icon, iconButton } from "./dom.js";
import { matches } from "./conversation.js";
import { shareEntries } from "./share.js";
import { allNodes, chat, chats, exportOf, filesOf, importChats, removeChat, saveChat, saveFile } from "./store.js";

const DAY = 86_400_000;

/** The heading under which a conversation is listed. */
function period(kept) {
  if (kept.pinned) return "Pinned";
  if (kept.folder) return kept.folder;
  const midnight = new Date().setHours(0, 0, 0, 0);
  if (kept.changed >= midnight) return "Today";
  if (kept.changed >= midnight - DAY) return "Yesterday";
  if (kept.changed >= midnight - 7 * DAY) return "Last 7 days";
  if (kept.changed >= midnight - 30 * DAY) return "Last 30 days";
  return new Date(kept.changed).toLocaleDateString("en", { month: "long", year: "numeric" });
}

export class Sidebar {
  /** `open(id)` shows a conversation; `opened()` returns the id of the shown one; `isRunning(id)` if it is answering. */
  constructor({ open, opened, startNew, isRunning, changed }) {
    Object.assign(this, { open, opened, startNew, isRunning, changed });
    $("search").addEventListener("input", () => this.refresh());
    $("shade").addEventListener("click", () => this.toggle(false));
  }

  /** Show or hide the list, which covers the conversation on narrow screens. */
  toggle(open) {
    const narrow = matchMedia("(max-width: 52rem)").matches;
    const name = narrow ? "menu-open" : "menu-closed";
    document.body.classList.toggle(name, open === undefined ? undefined : open === narrow);
    $("menu").setAttribute("aria-expanded", String(document.body.classList.contains("menu-open")));
  }

  /** List the conversations again; calls in quick succession are one. */
  refresh() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#list(), 30);
  }

  async #list() {
    const wanted = $("search").value.trim().toLowerCase();
    let found = await chats();
    if (wanted) {
      const nodes = grouped(await allNodes(), (node) => node.chat);
      found = found.filter((kept) => matches(wanted, kept, nodes.get(kept.id) ?? []));
    }
    const rank = (kept) => (kept.pinned ? 0 : kept.folder ? 1 : 2);
    found.sort((a, b) => rank(a) - rank(b) || (rank(a) === 1 ? a.folder.localeCompare(b.folder) : 0));
    const groups = grouped(found, period);
    $("chats").replaceChildren(...[...groups].map(([name, members]) =>
      el("section", { "aria-label": name }, el("h3", {}, members[0].folder === name && icon("folder"), name), el("ul", {}, members.map((kept) => this.#entry(kept))))));
    $("no-chats").hidden = found.length > 0;
    $("no-chats").textContent = wanted ? "Nothing found" : "No conversations yet";
  }

  #entry(kept) {
    const current = kept.id === this.opened();
    const title = kept.title || "Untitled";
    const choose = el("button", { type: "button", class: "title", title, "aria-current": current ? "true" : null, onclick: () => {
      if (matchMedia("(max-width: 52rem)").matches) this.toggle(false);
      this.open(kept.id);
    }, ondblclick: () => this.#rename(kept, entry) }, this.isRunning(kept.id) && el("span", { class: "pulse", role: "img", "aria-label": "answering" }), title);
    const more = iconButton("ellipsis", `More about ${title}`, () => menu(more, [
      ["pencil", "Rename", () => this.#rename(kept, entry)],
      [kept.pinned ? "pin-off" : "pin", kept.pinned ? "Unpin" : "Pin", () => this.#change(kept, { pinned: !kept.pinned })],
      ["folder", "Move to folder…", () => this.#move(kept)],
      ...shareEntries(kept.id, title),
      ["trash-2", "Remove", () => this.#remove(kept)],
    ]), { "aria-haspopup": "menu" });
    const entry = el("li", { class: current ? "current" : null }, choose, more);
    return entry;
  }

  /** Edit the title in its place. */
  #rename(kept, entry) {
    const input = el("input", { type: "text", "aria-label": "Title", maxlength: 200 });
    input.value = kept.title;
    let done = false;
    const finish = (keep) => {
      if (done) return;
      done = true;
      const title = input.value.trim();
      if (keep && title && title !== kept.title) this.#change(kept, { title });
      else this.refresh();
    };
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter") finish(true);
      if (event.key === "Escape") finish(false);
    });
    input.addEventListener("blur", () => finish(true));
    entry.replaceChildren(input);
    input.select();
  }

  async #move(kept) {
    const folders = [...new Set((await chats()).map((one) => one.folder).filter(Boolean))].sort();
    const input = el("input", { type: "text", maxlength: 60, list: "folders", placeholder: "No folder", autofocus: true });
    input.value = kept.folder ?? "";
    const known = el("datalist", { id: "folders" }, folders.map((name) => el("option", { value: name })));
    const shown = dialog("Move to folder", [el("label", {}, el("span", {}, "Folder"), input), known], [el("button", { value: "yes", class: "primary" }, "Move")]);
    if ((await shown.closed) === "yes") this.#change(kept, { folder: input.value.trim() });
  }

  async #change(kept, fields) {
    await saveChat({ ...kept, ...fields });
    this.changed(kept.id, fields);
    this.refresh();
  }

  async #remove(kept) {
    const whole = await chat(kept.id);
    const files = await filesOf(kept.id);
    await removeChat(kept.id);
    if (kept.id === this.opened()) this.startNew();
    this.refresh();
    toast(`Removed “${kept.title}”`, { undo: async () => {
      await saveChat(whole);
      for (const file of files) await saveFile(file);
      this.refresh();
    } });
  }

  async exportAll() {
    download("quire-chats.json", await exportOf((await chats()).map((kept) => kept.id)));
  }

  async removeAll() {
    if (!(await confirmed("Remove all conversations?", "They are deleted from this browser and cannot be restored.", "Remove all"))) return;
    for (const kept of await chats()) await removeChat(kept.id);
    this.startNew();
    this.refresh();
  }

  async import(file) {
    try {
      const n = await importChats(await file.text());
      toast(`${n} ${n === 1 ? "conversation" : "conversations"} imported`);
    } catch (error) {
      toast(`Not imported: ${error.message}`, { bad: true });
    }
    this.refresh();
  }
}

function grouped(values, key) {
  const made = new Map();
  for (const value of values) {
    const at = key(value);
    if (!made.has(at)) made.set(at, []);
    made.get(at).push(value);
  }
  return made;
}
