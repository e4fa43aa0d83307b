// One answer in progress: the request, its chunks, and its measurements.

import { chatChunks } from "./api.js";

/** Fill `node` from a request until it ends or `signal` stops it; `changed` is called as it grows. */
export async function answer(node, body, signal, changed) {
  const asked = performance.now();
  let first = null;
  let n_chunks = 0;
  delete node.error;
  try {
    for await (const chunk of chatChunks({ ...body, stream: true, stream_options: { include_usage: true } }, signal)) {
      const choice = chunk.choices[0];
      if (take(node, choice?.delta ?? {})) {
        first ??= performance.now();
        n_chunks += 1;
      }
      const seconds = (performance.now() - (first ?? asked)) / 1000;
      const n_tokens = chunk.usage?.completion_tokens ?? n_chunks;
      node.stats = {
        ...node.stats,
        tokens: n_tokens,
        first_ms: first && first - asked,
        tokens_per_second: n_tokens > 1 && seconds > 0 ? (n_tokens - 1) / seconds : null,
        finish: choice?.finish_reason ?? node.stats?.finish,
      };
      if (chunk.usage) {
        node.stats.context = chunk.usage.total_tokens;
        node.stats.prompt = chunk.usage.prompt_tokens;
        node.stats.cached = chunk.usage.prompt_tokens_details?.cached_tokens ?? 0;
      }
      changed();
    }
  } catch (error) {
    if (error.name === "AbortError") return;
    const full = error.code === "context_length_exceeded";
    node.error = full ? `The context is full. Turn on dropping the oldest turns in the settings, or start a new chat. (${error.message})` : String(error.message);
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
