// A conversation is a tree of messages: editing a question or regenerating an answer adds a branch.

import { dataUrl, file, newId } from "./store.js";

export class Conversation {
  /** Create an empty conversation, or restore a stored one. */
  constructor(kept, settings = {}) {
    this.id = kept?.id ?? newId();
    this.title = kept?.title ?? "";
    this.created = kept?.created ?? kept?.changed ?? Date.now();
    this.changed = kept?.changed ?? Date.now();
    this.pinned = kept?.pinned ?? false;
    this.folder = kept?.folder ?? "";
    this.settings = kept?.settings ?? settings;
    this.nodes = new Map((kept?.nodes ?? []).map((node) => [node.id, node]));
    this.leaf = this.nodes.has(kept?.leaf) ? kept.leaf : ([...this.nodes.keys()].at(-1) ?? null);
  }

  /** The data to store, without the messages. */
  kept() {
    const { id, title, created, changed, pinned, folder, settings, leaf } = this;
    return { id, title, created, changed, pinned, folder, settings, leaf };
  }

  /** Take over what another tab stored; messages in `own` are newer here. */
  merge(kept, own) {
    for (const node of kept.nodes) {
      const here = this.nodes.get(node.id);
      if (!here) this.nodes.set(node.id, node);
      else if (!own.has(node.id)) {
        for (const name of Object.keys(here)) if (!(name in node)) delete here[name];
        Object.assign(here, node);
      }
    }
    Object.assign(this, { title: kept.title, pinned: kept.pinned, folder: kept.folder, settings: kept.settings });
    if (this.nodes.has(this.leaf)) this.show(this.nodes.get(this.leaf));
    else this.leaf = kept.leaf;
  }

  /** The shown messages, from the first to the last. */
  path() {
    const nodes = [];
    for (let node = this.nodes.get(this.leaf); node; node = this.nodes.get(node.parent)) nodes.push(node);
    return nodes.reverse();
  }

  /** Add a message below another (by default the last shown one), and show it. */
  add(role, content, parent = this.leaf) {
    const node = { id: newId(), parent, role, content, at: Date.now() };
    this.nodes.set(node.id, node);
    this.showUpTo(node);
    this.changed = Date.now();
    if (role === "user" && !this.title) this.title = titleOf(content);
    return node;
  }

  /** The alternatives to a message, in the order in which they were written. */
  siblings(node) {
    return [...this.nodes.values()].filter((other) => other.parent === node.parent).sort((a, b) => (a.at ?? 0) - (b.at ?? 0));
  }

  /** The answers that are compared with one, itself included. */
  compared(node) {
    return node.group ? this.siblings(node).filter((other) => other.group === node.group) : [node];
  }

  /** Show another alternative, with the messages last shown below it. */
  show(node) {
    let last = node;
    for (let below = this.#shownBelow(last); below; below = this.#shownBelow(last)) last = below;
    this.showUpTo(last);
  }

  /** Show messages up to this one; each one on the way remembers the chosen branch. */
  showUpTo(node) {
    this.leaf = node.id;
    for (let one = node; one.parent; one = this.nodes.get(one.parent)) this.nodes.get(one.parent).shown = one.id;
  }

  #shownBelow(node) {
    return this.nodes.get(node.shown) ?? [...this.nodes.values()].find((other) => other.parent === node.id);
  }

  /** The messages up to one of them, in the format of chat completions. */
  async messages(system, until = this.leaf) {
    const path = [];
    for (let node = this.nodes.get(until); node; node = this.nodes.get(node.parent)) path.unshift(node);
    const made = system?.trim() ? [{ role: "system", content: system.trim() }] : [];
    for (const node of path) {
      if (node.role === "assistant" && !node.content && !node.tool_calls) continue;
      const message = { role: node.role, content: node.content };
      if (node.tool_calls) message.tool_calls = node.tool_calls;
      if (node.tool_call_id) message.tool_call_id = node.tool_call_id;
      if (node.attachments?.length) message.content = await withAttachments(node);
      made.push(message);
    }
    return made;
  }
}

function titleOf(content) {
  const line = content.trim().split("\n", 1)[0];
  return line.length > 80 ? `${line.slice(0, 80).replace(/\s\S*$/, "")}…` : line || "Untitled";
}

/** Return true if a text occurs in a conversation's title or messages. */
export function matches(wanted, kept, nodes) {
  return [kept.title, ...nodes.map((node) => node.content)].some((content) => content.toLowerCase().includes(wanted));
}

/** Put a question after its files: images and sound as parts, text in fences longer than any that it contains. */
async function withAttachments(node) {
  const parts = [];
  const texts = [];
  for (const one of node.attachments) {
    if (one.kind === "image" || one.kind === "audio") {
      const stored = await file(one.id);
      if (stored) parts.push(await mediaPart(one, stored.blob));
    } else texts.push(fenced(one));
  }
  const text = [...texts, node.content].filter(Boolean).join("\n\n");
  if (!parts.length) return text;
  return text ? [...parts, { type: "text", text }] : parts;
}

async function mediaPart(one, blob) {
  const url = await dataUrl(blob);
  if (one.kind === "image") return { type: "image_url", image_url: { url } };
  const format = { "audio/mpeg": "mp3", "audio/flac": "flac", "audio/ogg": "ogg" }[blob.type] ?? "wav";
  return { type: "input_audio", input_audio: { data: url.slice(url.indexOf(",") + 1), format } };
}

function fenced({ name, text }) {
  const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map((run) => run[0].length));
  const fence = "`".repeat(longest + 1);
  return `${name}:\n${fence}\n${text}\n${fence}`;
}
