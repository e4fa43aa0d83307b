// The server's routes that the page uses.  Paths are relative because the page may be served below a prefix.

/** The server's error message. */
export class ApiError extends Error {
  constructor(message, status, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

async function refused(response) {
  const text = await response.text();
  try {
    const body = JSON.parse(text);
    return new ApiError(body.error?.message ?? text, response.status, body.error?.code);
  } catch {
    return new ApiError(text || response.statusText, response.status);
  }
}

/** Return the JSON answer of a GET, or of a POST if there is a body. */
export async function json(path, body) {
  const post = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
  const response = await fetch(path, body === undefined ? {} : post);
  if (!response.ok) throw await refused(response);
  return response.json();
}

/** The chunks of a streamed chat completion.  Errors in the stream are thrown. */
export async function* chatChunks(body, signal) {
  const headers = { "content-type": "application/json" };
  const response = await fetch("v1/chat/completions", { method: "POST", headers, body: JSON.stringify(body), signal });
  if (!response.ok) throw await refused(response);
  for await (const data of eventsOf(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(chunk.error.message, chunk.error.code);
    yield chunk;
  }
}

/** Yield the data of server-sent events. */
async function* eventsOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const lines = event.split("\n").filter((line) => line.startsWith("data:"));
      if (lines.length) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
    }
  }
}

/** Models that the server has, each with its state (`ready`, `closed`, ...). */
export async function models() {
  const [known, states] = await Promise.all([json("v1/models"), json("v1/models/list").catch(() => ({ models: [] }))]);
  const stateOf = new Map(states.models.map((model) => [model.model, model.state]));
  return known.data.map((model) => ({ id: model.id, meta: model.meta ?? {}, state: stateOf.get(model.id) ?? "ready" }));
}

export const loadModel = (model) => json("v1/models/load", { model });
export const unloadModel = (model) => json("v1/models/unload", { model });
export const status = () => json("v1/status");
