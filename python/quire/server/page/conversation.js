// A conversation is a tree of messages: editing a question or regenerating an answer adds a branch.

const newId = () => crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`;

export class Conversation {
  /** Create an empty conversation, or restore a stored one. */
  constructor(kept) {
    this.id = kept?.id ?? newId();
    this.title = kept?.title ?? "";
    this.changed = kept?.changed ?? Date.now();
    this.nodes = new Map((kept?.nodes ?? []).map((node) => [node.id, node]));
    this.leaf = this.nodes.has(kept?.leaf) ? kept.leaf : ([...this.nodes.keys()].at(-1) ?? null);
  }

  /** The data to store. */
  kept() {
    return { id: this.id, title: this.title, changed: this.changed, leaf: this.leaf, nodes: [...this.nodes.values()] };
  }

  /** The shown messages, from the first to the last. */
  path() {
    const nodes = [];
    for (let node = this.nodes.get(this.leaf); node; node = this.nodes.get(node.parent)) nodes.unshift(node);
    return nodes;
  }

  /** Add a message below another (by default the last shown one), and show it. */
  add(role, content, parent = this.leaf) {
    const node = { id: newId(), parent, role, content };
    this.nodes.set(node.id, node);
    this.showUpTo(node);
    this.changed = Date.now();
    if (role === "user" && !this.title) this.title = content.trim().split("\n", 1)[0].slice(0, 60) || "Untitled";
    return node;
  }

  /** The alternatives to a message, in the order in which they were written. */
  siblings(node) {
    return [...this.nodes.values()].filter((other) => other.parent === node.parent);
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

  /** The messages in the format of chat completions. */
  messages(system, until = this.leaf) {
    const path = this.path();
    const end = path.findIndex((node) => node.id === until) + 1;
    const made = system.trim() ? [{ role: "system", content: system.trim() }] : [];
    for (const node of path.slice(0, end || path.length)) {
      if (node.role === "assistant" && !node.content && !node.tool_calls) continue;
      const message = { role: node.role, content: node.content };
      if (node.tool_calls) message.tool_calls = node.tool_calls;
      if (node.attachments?.length) message.content = withAttachments(node);
      made.push(message);
    }
    return made;
  }

  /** Return true if a text occurs in its title or messages. */
  matches(text) {
    const wanted = text.toLowerCase();
    return [this.title, ...[...this.nodes.values()].map((node) => node.content)]
      .some((content) => content.toLowerCase().includes(wanted));
  }
}

/** Put a question after its attached files, each in a fence longer than any it contains. */
function withAttachments(node) {
  const files = node.attachments.map(({ name, text }) => {
    const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map((run) => run[0].length));
    const fence = "`".repeat(longest + 1);
    return `${name}:\n${fence}\n${text}\n${fence}`;
  });
  return [...files, node.content].join("\n\n");
}
