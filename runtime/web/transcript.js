// The conversation on the page. Text from the model and the server only ever becomes text nodes.
import { tokenWords, troubleWords } from "./words.js";

const WHO = { user: "You", assistant: "Model" };

export class Transcript {
  /** `onToken` gets a line about the token somebody looks at. */
  constructor(element, onToken) {
    this.element = element;
    this.welcome = element.querySelector("#welcome");
    this.onToken = onToken;
  }

  clear() {
    this.element.replaceChildren(this.welcome);
    this.welcome.hidden = false;
  }

  /** Show a turn and return its view. */
  add(turn) {
    this.welcome.hidden = true;
    const view = new TurnView(turn, this.onToken);
    this.element.append(view.element);
    this.element.scrollTop = this.element.scrollHeight;
    return view;
  }

  /** Run `change`; whoever was reading the end goes on seeing the end. */
  follow(change) {
    const { element } = this;
    const isAtEnd = element.scrollHeight - element.scrollTop - element.clientHeight < 60;
    change();
    if (isAtEnd) element.scrollTop = element.scrollHeight;
  }

  /** Show what went wrong, with a button that tries again. */
  addTrouble(trouble, onRetry) {
    const [title, words] = troubleWords(trouble);
    const box = make("div", "trouble");
    box.setAttribute("role", "alert");
    box.append(make("p", "title", title), make("p", "", words));
    const button = make("button", "quiet", "Try again");
    button.type = "button";
    button.onclick = onRetry;
    box.append(button);
    this.element.append(box);
    this.element.scrollTop = this.element.scrollHeight;
  }

  clearTrouble() {
    for (const box of this.element.querySelectorAll(".trouble")) box.remove();
  }
}

class TurnView {
  constructor(turn, onToken) {
    this.turn = turn;
    this.onToken = onToken;
    this.current = -1;
    this.element = make("article", `turn ${turn.role}`);
    this.element.append(make("p", "who", WHO[turn.role] ?? turn.role));
    this.text = make("div", "text");
    this.summary = make("p", "summary", turn.summary);
    this.element.append(this.text, this.summary);
    if (turn.tokens.length) {
      turn.tokens.forEach((token) => this.addToken(token));
      this.addRest(turn.text.slice(turn.tokens.reduce((sum, token) => sum + token[0].length, 0)));
    } else {
      this.addRest(turn.text);
    }
    if (turn.role === "assistant") this.listen();
  }

  set isBusy(value) {
    this.element.setAttribute("aria-busy", String(value));
  }

  addToken(token) {
    const span = make("span", "token", token[0]);
    span.dataset.source = token[1];
    span.dataset.at = String(this.text.querySelectorAll(".token").length);
    this.text.append(span);
  }

  /** Add text no single token is known for. */
  addRest(text) {
    if (text) this.text.append(text);
  }

  setSummary(text) {
    this.turn.summary = text;
    this.summary.textContent = text;
  }

  remove() {
    this.element.remove();
  }

  listen() {
    this.text.tabIndex = 0;
    this.text.setAttribute("role", "group");
    this.text.setAttribute("aria-label", "Reply, arrow keys move through its tokens");
    this.text.onpointerover = ({ target }) => this.show(target.dataset.at, false);
    this.text.onclick = ({ target }) => this.show(target.dataset.at, true);
    this.text.onblur = () => this.mark(-1);
    this.text.onkeydown = (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step || !this.turn.tokens.length) return;
      event.preventDefault();
      const at = Math.min(Math.max(this.current + step, 0), this.turn.tokens.length - 1);
      this.show(at, true);
    };
  }

  show(at, isMarked) {
    if (at === undefined) return;
    if (isMarked) this.mark(Number(at));
    this.onToken(tokenWords(this.turn.tokens[at], Number(at)));
  }

  mark(at) {
    this.text.querySelector(".current")?.classList.remove("current");
    this.current = at;
    const span = this.text.querySelector(`[data-at="${at}"]`);
    span?.classList.add("current");
    span?.scrollIntoView({ block: "nearest" });
  }
}

function make(name, className, text = "") {
  const element = document.createElement(name);
  element.className = className;
  element.textContent = text;
  return element;
}
