// Data stored in the browser: conversations in IndexedDB, settings and presets in localStorage.  Nothing is sent.

const CHATS = "chats";
let opened;

function database() {
  opened ??= new Promise((resolve, reject) => {
    const request = indexedDB.open("quire", 1);
    request.onupgradeneeded = () => request.result.createObjectStore(CHATS, { keyPath: "id" });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  return opened;
}

async function run(mode, action) {
  const store = (await database()).transaction(CHATS, mode).objectStore(CHATS);
  return new Promise((resolve, reject) => {
    const request = action(store);
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/** Return all conversations, most recently changed first. */
export async function chats() {
  const all = await run("readonly", (store) => store.getAll());
  return all.sort((a, b) => b.changed - a.changed);
}

export const chat = (id) => run("readonly", (store) => store.get(id));
export const saveChat = (kept) => run("readwrite", (store) => store.put(kept));
export const removeChat = (id) => run("readwrite", (store) => store.delete(id));

/** Return a setting by name; a broken or missing one has its default. */
export function setting(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(`quire.${name}`)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

export function saveSetting(name, value) {
  if (value == null) localStorage.removeItem(`quire.${name}`);
  else localStorage.setItem(`quire.${name}`, JSON.stringify(value));
}

/** Read the conversations of an exported file.  Throws an Error for an invalid file. */
export function parseExport(text) {
  const content = JSON.parse(text);
  const found = content.quire_chats;
  if (!Array.isArray(found)) throw new Error("the file has no exported conversations");
  for (const one of found) {
    const sound = typeof one.id === "string" && typeof one.title === "string" && Array.isArray(one.nodes) &&
      one.nodes.every((node) => typeof node.id === "string" && typeof node.content === "string" &&
        ["user", "assistant", "tool"].includes(node.role));
    if (!sound) throw new Error("the file has an incomplete conversation");
  }
  return found;
}

export const exportOf = (kept) => JSON.stringify({ quire_chats: kept }, null, 1);
