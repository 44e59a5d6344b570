// The page: sends what is typed, shows what streams back, and brings the conversation back after a reload.
import { Trouble, fetchModel, isReady, streamChat } from "./api.js";
import { Conversation } from "./conversation.js";
import { askForKey, currentKey } from "./key.js";
import { Plots } from "./plots.js";
import { Transcript } from "./transcript.js";
import { replyWords } from "./words.js";

const find = (selector) => document.querySelector(selector);
const LOOK_AGAIN_MS = 2000;

const prompt = find("#prompt");
const conversation = new Conversation();
const plots = new Plots(find("#plots"));
const transcript = new Transcript(find("#transcript"), (words) => { find("#token-facts").textContent = words; });
let running = null; // the AbortController of the reply that streams

/** Show what the tab kept. A reload in the middle of a reply broke it off; its question can be asked again. */
function restore() {
  for (const turn of conversation.turns.filter((one) => one.role === "assistant" && !one.summary)) {
    if (turn.text) turn.summary = `${turn.tokens.length} tokens · broken off`;
    else conversation.remove(turn);
  }
  for (const turn of conversation.turns) transcript.add(turn);
  if (conversation.turns.at(-1)?.role === "user") transcript.addTrouble(new Trouble("broken"), () => running || reply());
  const last = conversation.turns.findLast((turn) => turn.role === "assistant");
  if (last) plots.show(last.tokens, true);
}

async function send(text) {
  conversation.add("user", text);
  transcript.add(conversation.turns.at(-1));
  await reply();
}

/** Answer the last question. */
async function reply() {
  transcript.clearTrouble();
  const body = { messages: conversation.messages(), ...settings() };
  const turn = conversation.add("assistant");
  const view = transcript.add(turn);
  running = new AbortController();
  setRunning(true);
  view.isBusy = true;
  plots.show([], false);
  try {
    await streamChat({ body, key: currentKey(), signal: running.signal, onChunk: (chunk) => take(chunk, turn, view) });
  } catch (error) {
    await tell(error, turn, view);
  } finally {
    running = null;
    view.isBusy = false;
    plots.show(turn.tokens, true);
    setRunning(false);
    conversation.save();
  }
}

/** Add one chunk to the reply. */
function take(chunk, turn, view) {
  const choice = chunk.choices[0];
  if (!choice) return; // the chunk of usage
  const facts = chunk.edgeprec ?? {};
  transcript.follow(() => {
    if (facts.tokens) {
      for (const token of facts.tokens) {
        const kept = [token.text, token.source, token.gear, token.entropy_bits, facts.acceptance_rate, facts.watts, token.round];
        turn.tokens.push(kept);
        view.addToken(kept);
      }
    } else {
      view.addRest(choice.delta.content ?? "");
    }
    turn.text += choice.delta.content ?? "";
    if (choice.finish_reason) view.setSummary(replyWords(facts, choice.finish_reason));
  });
  if (facts.tokens) plots.show(turn.tokens, false);
}

async function tell(error, turn, view) {
  const isStopped = error.name === "AbortError";
  if (!isStopped && !(error instanceof Trouble)) throw error;
  if (turn.text) view.setSummary(isStopped ? `${turn.tokens.length} tokens · stopped` : `${turn.tokens.length} tokens · broken off`);
  else if (isStopped) view.setSummary("stopped before the first token");
  else {
    conversation.remove(turn);
    view.remove();
  }
  if (isStopped) return;
  if (error.kind === "offline" || error.kind === "loading") connect();
  if (error.kind === "key" && (await askForKey(currentKey() !== ""))) {
    connect();
    queueMicrotask(() => setTimeout(() => reply()));
    return;
  }
  transcript.addTrouble(error, () => {
    if (running) return;
    if (turn.text) {
      conversation.remove(turn);
      view.remove();
    }
    reply();
  });
}

function settings() {
  const given = {};
  if (find("#mode").value) given.edgeprec = { mode: find("#mode").value };
  if (find("#temperature").value) given.temperature = Number(find("#temperature").value);
  if (find("#max-tokens").value) given.max_tokens = Number(find("#max-tokens").value);
  return given;
}

function setRunning(isRunning) {
  const hadFocus = [find("#send"), find("#stop"), document.body].includes(document.activeElement);
  find("#send").hidden = isRunning;
  find("#stop").hidden = !isRunning;
  find("#new-chat").disabled = isRunning;
  if (hadFocus && !find("#key-dialog").open) prompt.focus(); // a button that is gone must not keep the focus
}

/** Show which model answers; look again until one does. */
async function connect() {
  const show = (state, words) => {
    find("#lamp").dataset.state = state;
    if (find("#model").textContent !== words) find("#model").textContent = words;
  };
  clearTimeout(connect.timer);
  try {
    if (await isReady()) {
      show("ready", await fetchModel(currentKey()));
      return;
    }
    show("waiting", "loading the model");
  } catch (error) {
    if (error.kind === "key") {
      show("waiting", "an API key is needed");
      if (!find("#key-dialog").open && !connect.hasAsked) {
        connect.hasAsked = true;
        if (await askForKey(currentKey() !== "")) connect();
      }
      return;
    }
    show("trouble", "the server does not answer");
  }
  connect.timer = setTimeout(connect, LOOK_AGAIN_MS);
}

find("#composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = prompt.value.trim();
  if (!text || running) return;
  prompt.value = "";
  send(text);
});
prompt.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  find("#composer").requestSubmit();
});
find("#samples").addEventListener("click", ({ target }) => {
  if (target.matches(".sample") && !running) send(target.textContent);
});
find("#stop").addEventListener("click", () => running?.abort());
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});
find("#new-chat").addEventListener("click", () => {
  conversation.clear();
  transcript.clear();
  plots.show([], false);
  prompt.focus();
});
addEventListener("pagehide", () => conversation.save());

restore();
connect();
prompt.focus({ preventScroll: true });
