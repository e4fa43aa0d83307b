// Data stored in the browser: conversations, files and figures in IndexedDB, settings in localStorage.  Nothing is sent.
// Messages are records of their own, so an answer in progress is saved without rewriting its conversation.

const VERSION = 2;
/** Return an id that nobody guesses; pages without TLS have no `randomUUID`. */
export const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");

const here = newId();
const channel = "BroadcastChannel" in globalThis ? new BroadcastChannel("quire") : null;
let opened;

function database() {
  opened ??= new Promise((resolve, reject) => {
    const request = indexedDB.open("quire", VERSION);
    request.onupgradeneeded = (event) => upgrade(request.result, request.transaction, event.oldVersion);
    request.onsuccess = () => {
      request.result.onversionchange = () => request.result.close();
      resolve(request.result);
    };
    request.onerror = () => reject(request.error);
  });
  return opened;
}

/** Version 1 kept the messages inside their conversation. */
function upgrade(db, transaction, from) {
  if (from < 1) db.createObjectStore("chats", { keyPath: "id" });
  const nodes = db.createObjectStore("nodes", { keyPath: "id" });
  nodes.createIndex("chat", "chat");
  db.createObjectStore("files", { keyPath: "id" }).createIndex("chat", "chat");
  db.createObjectStore("samples", { keyPath: "at" });
  if (from < 1) return;
  transaction.objectStore("chats").openCursor().onsuccess = ({ target: { result: cursor } }) => {
    if (!cursor) return;
    const { nodes: within = [], ...chat } = cursor.value;
    for (const node of within) nodes.put({ ...node, chat: chat.id });
    cursor.update(chat);
    cursor.continue();
  };
}

/** Run `action` with the stores; resolves to its request's result once everything is written. */
async function run(stores, mode, action) {
  const transaction = (await database()).transaction(stores, mode);
  return new Promise((resolve, reject) => {
    const request = action(...stores.map((name) => transaction.objectStore(name)));
    transaction.oncomplete = () => resolve(request?.result);
    transaction.onerror = transaction.onabort = () => reject(transaction.error);
  });
}

const tell = (id) => channel?.postMessage({ chat: id, from: here });

/** Call `changed(id)` if another tab writes a conversation. */
export function onOtherTabs(changed) {
  if (channel) channel.onmessage = ({ data }) => data.from !== here && changed(data.chat);
}

/** Return all conversations without their messages, most recently changed first. */
export async function chats() {
  const all = await run(["chats"], "readonly", (store) => store.getAll());
  return all.sort((a, b) => b.changed - a.changed);
}

export const allNodes = () => run(["nodes"], "readonly", (store) => store.getAll());

/** Return a conversation with its messages, or undefined. */
export async function chat(id) {
  const found = await run(["chats"], "readonly", (store) => store.get(id));
  return found && { ...found, nodes: await run(["nodes"], "readonly", (store) => store.index("chat").getAll(id)) };
}

/** Store a conversation and some of its messages. */
export async function saveChat(kept, nodes = []) {
  const { nodes: within = [], ...record } = kept;
  await run(["chats", "nodes"], "readwrite", (chatStore, nodeStore) => {
    for (const node of [...within, ...nodes]) nodeStore.put({ ...node, chat: record.id });
    return chatStore.put(record);
  });
  tell(record.id);
}

/** Store one message of a conversation. */
export async function saveNode(chatId, node) {
  await run(["nodes"], "readwrite", (store) => store.put({ ...node, chat: chatId }));
  tell(chatId);
}

export async function removeChat(id) {
  await run(["chats", "nodes", "files"], "readwrite", (chatStore, ...others) => {
    others[1].delete(draftKey(id));
    for (const store of others) {
      store.index("chat").getAllKeys(id).onsuccess = ({ target }) => target.result.forEach((key) => store.delete(key));
    }
    return chatStore.delete(id);
  });
  tell(id);
}

const draftKey = (chatId) => `draft:${chatId}`;

/** Keep the files of a question that is not sent yet. */
export const saveDraftFiles = (chatId, files) =>
  run(["files"], "readwrite", (store) => (files.length ? store.put({ id: draftKey(chatId), chat: "", files }) : store.delete(draftKey(chatId))));
export const draftFiles = async (chatId) => (await file(draftKey(chatId)))?.files ?? [];

export const saveFile = (file) => run(["files"], "readwrite", (store) => store.put(file));
export const file = (id) => run(["files"], "readonly", (store) => store.get(id));
export const filesOf = (id) => run(["files"], "readonly", (store) => store.index("chat").getAll(id));

/** Store a sample of the server's figures, and drop those older than a day. */
export const saveSample = (sample) => run(["samples"], "readwrite", (store) => {
  store.delete(IDBKeyRange.upperBound(sample.at - 86_400_000));
  return store.put(sample);
});
export const samplesSince = (at) => run(["samples"], "readonly", (store) => store.getAll(IDBKeyRange.lowerBound(at)));

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

/** Return a conversation with its files, as text in the form of exports. */
export async function exportOf(ids) {
  const kept = await Promise.all(ids.map(async (id) => ({ ...await chat(id), files: await Promise.all((await filesOf(id)).map(asText)) })));
  return JSON.stringify({ quire_chats: kept }, null, 1);
}

const asText = async ({ blob, ...rest }) => ({ ...rest, data: await dataUrl(blob) });

/** Return a file as a `data:` URL. */
export function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

/** Store the conversations of an exported file and return their number.  Throws an Error for an invalid file. */
export async function importChats(text) {
  const found = JSON.parse(text).quire_chats;
  if (!Array.isArray(found)) throw new Error("the file has no exported conversations");
  for (const one of found) {
    const sound = typeof one.id === "string" && typeof one.title === "string" && Array.isArray(one.nodes) &&
      one.nodes.every((node) => typeof node.id === "string" && typeof node.content === "string" &&
        ["user", "assistant", "tool"].includes(node.role));
    if (!sound) throw new Error("the file has an incomplete conversation");
  }
  for (const { files = [], ...one } of found) {
    await saveChat({ ...one, changed: one.changed ?? Date.now() });
    for (const { data, ...rest } of files) {
      if (/^data:(image|audio)\//.test(data)) await saveFile({ ...rest, chat: one.id, blob: blobOf(data) });
    }
  }
  return found.length;
}

function blobOf(data) {
  const [head, body] = data.split(",", 2);
  const decoded = Uint8Array.from(atob(body), (char) => char.charCodeAt(0));
  return new Blob([decoded], { type: head.slice(5).split(";")[0] });
}
