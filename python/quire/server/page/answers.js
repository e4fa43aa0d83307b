// Answers in progress.  They go on while another conversation is shown, and are stored as they grow.

import { cancelStream, chatChunks, chunksAgain } from "./api.js";
import { newId, saveNode } from "./store.js";

const SAVE_MS = 250;
const RETRY_MS = [500, 2000, 5000]; // pauses before a lost stream is read again
const MOST_TOKENS = 20_000; // with probabilities; a longer answer keeps only its text

/** Runs answers.  `changed(conversation, node)` is called as they grow, `ended` when they end in whatever way. */
export class Answers {
  constructor({ changed, ended }) {
    Object.assign(this, { changed, ended, running: new Map() });
    addEventListener("pagehide", () => this.running.forEach(({ conversation, node }) => saveNode(conversation.id, node)));
  }

  /** The answers in progress of a conversation. */
  of(chatId) {
    return [...this.running.values()].filter((one) => one.conversation.id === chatId);
  }

  isRunning(node) {
    return this.running.has(node.id);
  }

  stop(chatId) {
    for (const { node, abort } of this.of(chatId)) {
      abort.abort();
      if (node.stream) cancelStream(node.stream).catch(() => {});
    }
  }

  /**
   * Fill a node from a request until it ends or is stopped; without `makeBody`, from the stream that the server kept.
   * Never throws: a failure becomes the node's state.
   */
  async run(conversation, node, makeBody) {
    const abort = new AbortController();
    this.running.set(node.id, { conversation, node, abort });
    node.state = "running";
    delete node.error;
    delete node.code;
    let saved = 0;
    const grown = () => {
      this.changed(conversation, node);
      if (performance.now() - saved < SAVE_MS) return;
      saved = performance.now();
      node.beat = Date.now();
      saveNode(conversation.id, node).catch(() => {});
    };
    await held(node, async () => {
      try {
        if (makeBody) await begin(node, makeBody, abort.signal, grown);
        else await readAgain(node, abort.signal, grown);
        delete node.state;
        delete node.stream;
      } catch (error) {
        describe(node, error, abort.signal.aborted);
      }
      this.running.delete(node.id);
      await saveNode(conversation.id, node).catch(() => {});
    });
    this.ended(conversation, node);
  }
}

/** Hold a lock while an answer is in progress; other tabs, and this one after a reload, see by it that nobody writes. */
function held(node, work) {
  return navigator.locks ? navigator.locks.request(`quire-${node.id}`, work) : work();
}

/** Find answers that were in progress in a page that is gone: nobody writes them any more. */
export async function findInterrupted(nodes, answers) {
  const locks = navigator.locks ? new Set((await navigator.locks.query()).held.map((lock) => lock.name)) : null;
  const dead = (node) => locks ? !locks.has(`quire-${node.id}`) : Date.now() - (node.beat ?? 0) > 4000;
  return nodes.filter((node) => node.state === "running" && !answers.isRunning(node) && dead(node));
}

async function begin(node, makeBody, signal, grown) {
  node.base = { content: node.content, reasoning: node.reasoning, tokens: node.tokens?.length };
  node.stream = newId();
  grown();
  const body = await makeBody();
  node.model = body.model;
  let begun = false;
  try {
    const chunks = chatChunks({ ...body, stream: true, stream_options: { include_usage: true } }, node.stream, signal);
    await fill(node, chunks, () => { begun = true; grown(); });
  } catch (error) {
    if (!begun || !(error instanceof TypeError) || signal.aborted) throw error;
    await recover(node, error, signal, grown);
  }
}

/** Read a stream again whose connection was lost, after some pauses. */
async function recover(node, lost, signal, grown) {
  for (const ms of RETRY_MS) {
    await new Promise((resolve) => setTimeout(resolve, ms));
    if (signal.aborted) return;
    try {
      return await readAgain(node, signal, grown);
    } catch (error) {
      if (!(error instanceof TypeError)) throw error.status === 404 ? lost : error;
    }
  }
  throw lost;
}

/** Fill a node from its stream's beginning; what it had before the stream stays. */
async function readAgain(node, signal, grown) {
  const { content, reasoning, tokens } = node.base ?? { content: "" };
  const chunks = chunksAgain(node.stream, signal);
  const { value: head } = await chunks.next(); // throws if the server has it no more; then the node stays as it is
  Object.assign(node, { content, reasoning, tokens: tokens ? node.tokens.slice(0, tokens) : undefined, tool_calls: undefined });
  async function* all() {
    if (head) yield head;
    yield* chunks;
  }
  await fill(node, all(), grown);
}

async function fill(node, chunks, changed) {
  const asked = performance.now();
  let first = null;
  let n_chunks = 0;
  node.stats = {};
  for await (const chunk of chunks) {
    const choice = chunk.choices[0];
    if (take(node, choice?.delta ?? {})) {
      first ??= performance.now();
      n_chunks += 1;
    }
    if (choice?.logprobs?.content) takeTokens(node, choice.logprobs.content);
    const seconds = (performance.now() - (first ?? asked)) / 1000;
    const n_tokens = chunk.usage?.completion_tokens ?? n_chunks;
    Object.assign(node.stats, {
      tokens: n_tokens,
      first_s: first && (first - asked) / 1000,
      tokens_per_second: n_tokens > 1 && seconds > 0 ? (n_tokens - 1) / seconds : null,
      finish: choice?.finish_reason ?? node.stats.finish,
    });
    if (chunk.timings?.predicted_per_second) node.stats.tokens_per_second = chunk.timings.predicted_per_second;
    if (chunk.usage) {
      node.stats.context = chunk.usage.total_tokens;
      node.stats.prompt = chunk.usage.prompt_tokens;
      node.stats.cached = chunk.usage.prompt_tokens_details?.cached_tokens ?? 0;
    }
    changed();
  }
}

/** Add a chunk; returns true if it contained anything. */
function take(node, delta) {
  const thought = delta.reasoning_content ?? delta.reasoning;
  if (delta.content) node.content += delta.content;
  if (thought) node.reasoning = (node.reasoning ?? "") + thought;
  for (const call of delta.tool_calls ?? []) {
    node.tool_calls ??= [];
    const known = (node.tool_calls[call.index] ??= { id: "", type: "function", function: { name: "", arguments: "" } });
    if (call.id) known.id = call.id;
    known.function.name += call.function?.name ?? "";
    known.function.arguments += call.function?.arguments ?? "";
  }
  return Boolean(delta.content || thought || delta.tool_calls?.length);
}

function takeTokens(node, content) {
  node.tokens ??= [];
  if (node.tokens.length > MOST_TOKENS) return;
  for (const { token, logprob, top_logprobs = [] } of content) {
    node.tokens.push({ token, p: Math.exp(logprob), top: top_logprobs.map((one) => [one.token, Math.exp(one.logprob)]) });
  }
}

/** Turn an error into the node's state and words that say what can be done. */
function describe(node, error, stopped) {
  node.state = stopped || error.code === "stream_cancelled" ? "stopped" : "failed";
  if (node.state === "stopped") return;
  if (error.code === "stream_not_found" || error.code === "stream_not_kept") {
    node.state = "interrupted";
    return;
  }
  const lost = error instanceof TypeError;
  const known = {
    context_length_exceeded: "This conversation no longer fits into the model's context. Drop the oldest messages, or start a new chat.",
    worker_lost: "The model stopped unexpectedly and is being restarted.",
  }[error.code];
  node.code = error.code;
  if (known) node.error = known;
  else if (lost && node.content) node.error = "The connection to the server was lost. What arrived is kept.";
  else if (lost) node.error = "The server cannot be reached. Your message is kept.";
  else if (error.status === 429 || error.status === 503) node.error = `The server is busy: ${error.message}`;
  else node.error = String(error.message);
}
