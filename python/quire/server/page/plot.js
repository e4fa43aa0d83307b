// A line plot of samples of the last minutes, as SVG.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 300;
const HEIGHT = 80;

function svg(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

/** Format a number with three significant digits. */
export function short(value) {
  if (value == null) return "–";
  for (const [limit, sign] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (value >= limit) return `${(value / (limit === 1e4 ? 1e3 : limit)).toPrecision(3)}${sign}`;
  }
  return value >= 100 || Number.isInteger(value) ? String(Math.round(value)) : value.toPrecision(3);
}

/** A titled plot; `add(value)` appends a sample, null is a gap. */
export class Plot {
  constructor(title, unit, n_samples = 150) {
    Object.assign(this, { title, unit, n_samples, samples: [] });
    this.figure = document.createElement("figure");
    this.caption = document.createElement("figcaption");
    this.value = document.createElement("output");
    const name = document.createElement("span");
    name.textContent = title;
    this.caption.append(name, this.value);
    this.svg = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
    this.area = svg("path", { class: "area" });
    this.line = svg("path", { class: "line", "vector-effect": "non-scaling-stroke" });
    this.svg.append(this.area, this.line);
    this.top = document.createElement("span");
    this.top.className = "top";
    this.figure.append(this.caption, this.svg, this.top);
  }

  add(value) {
    this.samples.push(value);
    if (this.samples.length > this.n_samples) this.samples.shift();
    this.#draw();
  }

  #draw() {
    const seen = this.samples.filter((value) => value != null);
    const most = Math.max(...seen, 0) || 1;
    const last = this.samples.at(-1);
    this.value.textContent = last == null ? "–" : `${short(last)} ${this.unit}`;
    this.top.textContent = seen.length ? `max ${short(Math.max(...seen))} ${this.unit}` : "";
    this.svg.setAttribute("aria-label", `${this.title}: now ${this.value.textContent}, ${this.top.textContent}`);
    const step = WIDTH / (this.n_samples - 1);
    const start = WIDTH - (this.samples.length - 1) * step;
    let line = "";
    let area = "";
    let open = null;
    this.samples.forEach((value, i) => {
      const x = (start + i * step).toFixed(1);
      if (value == null) {
        open = null;
        return;
      }
      const y = (HEIGHT - 2 - (value / most) * (HEIGHT - 6)).toFixed(1);
      line += `${open === null ? "M" : "L"}${x} ${y}`;
      area += `${open === null ? `M${x} ${HEIGHT}` : ""}L${x} ${y}${this.samples[i + 1] == null ? `L${x} ${HEIGHT}Z` : ""}`;
      open = x;
    });
    this.line.setAttribute("d", line);
    this.area.setAttribute("d", area);
  }
}
