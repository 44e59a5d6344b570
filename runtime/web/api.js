// What the page asks of the server, and what can go wrong, as one kind of error.
import { eventData } from "./sse.js";

/** Something a person should be told. `kind` is offline, broken, key, busy, loading, refused or failed. */
export class Trouble extends Error {
  constructor(kind, message = "", retryAfterS = null) {
    super(message);
    this.kind = kind;
    this.retryAfterS = retryAfterS;
  }
}

const KINDS = { 401: "key", 429: "busy", 503: "loading" };

/** Return the name of the model. */
export async function fetchModel(key) {
  const response = await ask("v1/models", { headers: headers(key) });
  return (await response.json()).data[0].id;
}

/** Whether the model is loaded. Throws Trouble("offline") when nobody answers. */
export async function isReady() {
  return (await reach("ready", {})).ok;
}

/** Stream a reply; `onChunk` gets every chunk. Throws Trouble, or AbortError when `signal` fires. */
export async function streamChat({ body, key, signal, onChunk }) {
  const response = await ask("v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json", ...headers(key) },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  try {
    for await (const data of eventData(response.body)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Trouble(chunk.error.code === "shutting_down" ? "loading" : "failed", chunk.error.message);
      onChunk(chunk);
    }
  } catch (error) {
    if (error instanceof Trouble || error.name === "AbortError") throw error;
    throw new Trouble("broken");
  }
  throw new Trouble("broken"); // the stream ended without saying so
}

function headers(key) {
  return key ? { authorization: `Bearer ${key}` } : {};
}

async function reach(path, options) {
  try {
    return await fetch(path, { cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Trouble("offline");
  }
}

async function ask(path, options) {
  const response = await reach(path, options);
  if (response.ok) return response;
  const message = await response.json().then((body) => body.error.message, () => `status ${response.status}`);
  const kind = KINDS[response.status] ?? (response.status < 500 ? "refused" : "failed");
  const seconds = Number(response.headers.get("retry-after"));
  throw new Trouble(kind, message, seconds > 0 ? seconds : null);
}
