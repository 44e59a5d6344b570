// Four small line plots of one reply, one point a token: entropy, gear, acceptance, watts.
import { percent } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 200;
const HEIGHT = 40;
const GEARS = { low: 0, middle: 0.5, high: 1 };
const NAMES = ["low", "middle", "high"];

// from: the value of a token's facts; top: the end of the scale, null = the largest value seen
const PLOTS = [
  { id: "entropy", title: "Entropy", from: (token) => token[3], top: null, floor: 2, show: (bits) => `${bits.toFixed(2)} bits` },
  { id: "gear", title: "Gear", from: (token) => GEARS[token[2]] ?? null, top: 1, steps: true, show: (gear) => NAMES[gear * 2], ends: "low INT4, high FP16" },
  { id: "acceptance", title: "Acceptance", from: (token) => token[4], top: 1, show: percent, nothing: "no drafts" },
  { id: "watts", title: "Power", from: (token) => token[5], top: null, floor: 1, show: (watts) => `${watts.toFixed(1)} W` },
];

export class Plots {
  constructor(parent) {
    this.drawn = PLOTS.map((plot) => new Plot(parent, plot));
  }

  /** Show the tokens of one reply; `isOver` says that no more will come. */
  show(tokens, isOver) {
    for (const plot of this.drawn) plot.show(tokens, isOver);
  }
}

class Plot {
  constructor(parent, plot) {
    this.plot = plot;
    const figure = add(parent, "figure", "plot");
    figure.dataset.plot = plot.id;
    const caption = add(figure, "figcaption");
    add(caption, "span").textContent = plot.title;
    this.value = add(caption, "span", "value");
    this.svg = figure.appendChild(document.createElementNS(SVG, "svg"));
    this.svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    this.svg.setAttribute("preserveAspectRatio", "none");
    this.svg.setAttribute("role", "img");
    path(this.svg, "base").setAttribute("d", `M0 ${HEIGHT}H${WIDTH}`);
    this.line = path(this.svg, "line");
    const range = add(figure, "p", "range");
    this.low = add(range, "span");
    this.high = add(range, "span");
    this.show([], false);
  }

  show(tokens, isOver) {
    const { plot } = this;
    const values = tokens.map(plot.from);
    const known = values.filter((value) => value !== null);
    const top = plot.top ?? Math.max(plot.floor, ...known);
    const last = known.at(-1);
    this.value.textContent = last === undefined ? (isOver && tokens.length ? (plot.nothing ?? "not measured") : "–") : plot.show(last);
    this.line.setAttribute("d", outline(values, top, plot.steps));
    this.low.textContent = plot.ends ?? `0 to ${plot.show(top)}`;
    this.high.textContent = tokens.length ? `${tokens.length} tokens` : "";
    this.svg.setAttribute("aria-label", `${plot.title} by token, now ${this.value.textContent}`);
  }
}

/** Return an SVG path; unknown values leave a gap. A single value is drawn as a short dash, or it could not be seen. */
function outline(values, top, steps) {
  const step = WIDTH / Math.max(values.length - 1, 24); // short replies do not fill the width
  let path = "";
  let isDown = false;
  values.forEach((value, at) => {
    if (value === null) {
      isDown = false;
      return;
    }
    const x = (at * step).toFixed(1);
    const y = (HEIGHT * (1 - value / top)).toFixed(1);
    if (!isDown) path += `M${x} ${y}h0.1`;
    else path += steps ? `H${x}V${y}` : `L${x} ${y}`;
    isDown = true;
  });
  return path;
}

function add(parent, name, className = "") {
  const element = parent.appendChild(document.createElement(name));
  element.className = className;
  return element;
}

function path(svg, className) {
  const element = svg.appendChild(document.createElementNS(SVG, "path"));
  element.setAttribute("class", className);
  return element;
}
