// Runs the calls of an answer as far as they are allowed, and lets the model go on with their results.

import { newId } from "./store.js";

const MOST_ROUNDS = 8;
const DENIED = { content: "the user did not allow this call", is_error: true };

export class ToolLoop {
  /** `changed(conversation, node)` is called if a call changes; `goOn(conversation, parent, isLast)` asks the model again. */
  constructor(toolbox, { changed, goOn }) {
    Object.assign(this, { toolbox, changed, goOn, running: new Map() });
  }

  /** The results of an answer's calls, by the call's id. */
  results(conversation, node) {
    const found = new Map();
    for (let at = node; at; at = [...conversation.nodes.values()].find((one) => one.parent === at.id && one.of === node.id)) {
      if (at !== node) found.set(at.tool_call_id, at);
    }
    return found;
  }

  /** How a call stands, for `callView`. */
  stateOf(conversation, node, call) {
    const tool = this.toolbox.get(call.function.name);
    const result = this.results(conversation, node).get(call.id);
    if (result) return { state: "done", result, tool };
    if (this.running.has(call.id)) return { state: "running", tool };
    const waits = tool && !node.state && ![...conversation.nodes.values()].some((one) => one.parent === node.id && one.of !== node.id);
    return { state: waits ? "asks" : undefined, tool };
  }

  isRunning(chatId) {
    return [...this.running.values()].some((one) => one.chatId === chatId);
  }

  stop(chatId) {
    for (const one of this.running.values()) if (one.chatId === chatId) one.abort.abort();
  }

  /** After an answer: run its calls that need no word of the user. */
  proceed(conversation, node) {
    if (node.state || node.group) return;
    for (const call of node.tool_calls ?? []) {
      call.id ||= newId();
      if (this.toolbox.runsAlways(call.function.name, conversation.settings)) this.#run(conversation, node, call);
    }
  }

  /** Follow the user's word about a call. */
  decide(conversation, node, call, allowed) {
    if (allowed) this.#run(conversation, node, call);
    else this.#finish(conversation, node, call, DENIED);
  }

  /** The user asks something else: calls that still wait are not allowed. */
  dismiss(conversation) {
    const node = conversation.path().findLast((one) => one.role === "assistant");
    for (const call of node?.tool_calls ?? []) {
      if (this.stateOf(conversation, node, call).state === "asks") this.#finish(conversation, node, call, DENIED, false);
    }
  }

  async #run(conversation, node, call) {
    if (this.running.has(call.id) || this.results(conversation, node).has(call.id)) return;
    const abort = new AbortController();
    this.running.set(call.id, { chatId: conversation.id, abort });
    this.changed(conversation, node);
    const result = await this.toolbox.run(call, abort.signal);
    this.running.delete(call.id);
    this.#finish(conversation, node, call, result, !abort.signal.aborted);
  }

  #finish(conversation, node, call, { content, is_error, seconds }, goesOn = true) {
    const results = this.results(conversation, node);
    const added = conversation.add("tool", content, [...results.values()].at(-1)?.id ?? node.id);
    Object.assign(added, { of: node.id, tool_call_id: call.id, is_error, seconds });
    this.changed(conversation, node);
    if (goesOn && results.size + 1 === node.tool_calls.length) this.goOn(conversation, added, this.#rounds(conversation, node) >= MOST_ROUNDS);
  }

  /** The number of answers with calls since the last question. */
  #rounds(conversation, node) {
    let n = 0;
    for (let at = node; at && at.role !== "user"; at = conversation.nodes.get(at.parent)) if (at.tool_calls?.length) n += 1;
    return n;
  }
}
