// The turns of the conversation and their life in this tab: kept over a reload, gone when the tab is closed.

const STORE = "edgeprec.conversation";

/** A turn is {role, text, tokens: [[text, source, gear, bits, acceptance, watts, round]], summary, error}. */
export class Conversation {
  constructor() {
    this.turns = read();
  }

  add(role, text = "") {
    const turn = { role, text, tokens: [], summary: "" };
    this.turns.push(turn);
    return turn;
  }

  remove(turn) {
    this.turns = this.turns.filter((other) => other !== turn);
  }

  clear() {
    this.turns = [];
    this.save();
  }

  /** Return the messages for the model: a question that never got an answer is left out, unless it is the last. */
  messages() {
    const turns = this.turns.filter((turn) => turn.role === "user" || turn.text);
    return turns
      .filter((turn, at) => turn.role !== "user" || at === turns.length - 1 || turns[at + 1].role === "assistant")
      .map(({ role, text }) => ({ role, content: text }));
  }

  /** Keep everything; where that is too much for the browser, keep the words without the tokens' facts. */
  save() {
    const bare = this.turns.map((turn) => ({ ...turn, tokens: [] }));
    for (const turns of [this.turns, bare]) {
      try {
        sessionStorage.setItem(STORE, JSON.stringify(turns));
        return;
      } catch {
        continue; // full, or storage is switched off: the conversation then lives until the reload
      }
    }
  }
}

function read() {
  try {
    const turns = JSON.parse(sessionStorage.getItem(STORE) ?? "[]");
    const isTurn = (turn) => typeof turn?.text === "string" && Array.isArray(turn.tokens) && typeof turn.role === "string";
    return Array.isArray(turns) && turns.every(isTurn) ? turns : [];
  } catch {
    return [];
  }
}
