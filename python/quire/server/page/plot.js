// A line plot of samples over time, as SVG.

import { el, svg } from "./dom.js";

const WIDTH = 300;
const HEIGHT = 72;

/** A titled plot.  `read(sample)` returns the value, null is a gap; `shown(value)` formats it with its unit. */
export class Plot {
  constructor(title, read, shown) {
    Object.assign(this, { title, read, shown });
    this.value = el("output");
    this.top = el("span", { class: "top" });
    this.svg = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
    this.area = svg("path", { class: "area" });
    this.line = svg("path", { class: "line", "vector-effect": "non-scaling-stroke" });
    this.svg.append(this.area, this.line);
    this.figure = el("figure", {}, el("figcaption", {}, el("span", {}, title), this.value), this.svg, this.top);
  }

  /** Draw samples `{at, ...}` of the last `span_ms`; a pause of more than 40 s is a gap. */
  draw(samples, span_ms, now) {
    const points = samples.map((sample) => [WIDTH * (1 - (now - sample.at) / span_ms), this.read(sample), sample.at]);
    const seen = points.map(([, value]) => value).filter((value) => value != null);
    const most = Math.max(...seen, 0) || 1;
    const last = points.at(-1)?.[1];
    this.value.textContent = last == null ? "–" : this.shown(last);
    this.top.textContent = seen.length ? `most: ${this.shown(Math.max(...seen))}` : "no data yet";
    this.svg.setAttribute("aria-label", `${this.title}: now ${this.value.textContent}, ${this.top.textContent}`);
    let line = "";
    let area = "";
    let before = null;
    points.forEach(([x, value, at], i) => {
      if (value == null) {
        before = null;
        return;
      }
      const px = x.toFixed(1);
      const y = (HEIGHT - 2 - (value / most) * (HEIGHT - 8)).toFixed(1);
      const next = points[i + 1];
      const opens = before === null || at - before > 40_000;
      const closes = !next || next[1] == null || next[2] - at > 40_000;
      line += `${opens ? "M" : "L"}${px} ${y}`;
      area += `${opens ? `M${px} ${HEIGHT}` : ""}L${px} ${y}${closes ? `L${px} ${HEIGHT}Z` : ""}`;
      before = at;
    });
    this.line.setAttribute("d", line);
    this.area.setAttribute("d", area);
  }
}
