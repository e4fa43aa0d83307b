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
    const { error } = JSON.parse(text);
    return new ApiError(error?.message ?? text, response.status, error?.code);
  } catch {
    return new ApiError(text || response.statusText, response.status);
  }
}

/** Return the response to a GET, or to a POST if there is a body.  Throws an ApiError for any other status than 200. */
async function ask(path, body, signal, headers = {}) {
  const post = { method: "POST", headers: { "content-type": "application/json", ...headers }, body: JSON.stringify(body), signal };
  const response = await fetch(path, body === undefined ? { signal } : post);
  if (!response.ok) throw await refused(response);
  return response;
}

export const json = async (path, body) => (await ask(path, body)).json();

/** The chunks of a streamed chat completion.  The server keeps it under an id for a client that comes back. */
export async function* chatChunks(body, id, signal) {
  const response = await ask("v1/chat/completions", body, signal, { "x-quire-stream-id": id });
  yield { choices: [] }; // the server has begun
  yield* chunksOf(response);
}

/** The chunks of a stream that the server keeps, from the first one. */
export async function* chunksAgain(id, signal) {
  yield* chunksOf(await ask("v1/streams/resume", { id }, signal));
}

export const cancelStream = (id) => json("v1/streams/cancel", { id });

/** Errors in the stream are thrown. */
async function* chunksOf(response) {
  for await (const data of eventsOf(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(chunk.error.message, 0, chunk.error.code);
    yield chunk;
  }
  throw new TypeError("the stream ended early");
}

/** The lines that report a download's progress.  Errors in them are thrown. */
export async function* pullLines(model, signal) {
  const response = await ask("api/pull", { model }, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines.filter(Boolean).map((one) => JSON.parse(one))) {
      if (line.error) throw new ApiError(line.error, 0);
      yield line;
    }
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

/** Models that the server has, each with its state (`ready`, `closed`, ...) and what it reads. */
export async function models() {
  const [known, states] = await Promise.all([json("v1/models"), json("v1/models/list").catch(() => ({ models: [] }))]);
  const stateOf = new Map(states.models.map((model) => [model.model, model]));
  return known.data.map((model) => ({
    id: model.id,
    meta: model.meta ?? {},
    reads: model.architecture?.input_modalities, // known once the model is loaded
    state: stateOf.get(model.id)?.state ?? "ready",
    file_bytes: stateOf.get(model.id)?.file_bytes ?? model.meta?.size,
  }));
}

/** The tools that the server runs, and the session that their calls belong to. */
export const listTools = () => json("v1/tools");
export const callTool = async (call, session, signal) => (await ask("v1/tools/call", call, signal, { "x-quire-session": session ?? "" })).json();
export const loadModel = (model) => json("v1/models/load", { model });
export const unloadModel = (model) => json("v1/models/unload", { model });
export const status = () => json("v1/status");
export const metrics = async () => (await ask("metrics")).text();

/** Return the number of tokens of a text for a model. */
export async function countTokens(model, text) {
  const { tokens } = await json("tokenize", { ...(model ? { model } : {}), content: text, add_special: false });
  return tokens.length;
}
