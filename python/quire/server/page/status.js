// The server's status: figures, plots and models, fetched every two seconds while they are visible.

import { status } from "./api.js";
import { $, el } from "./dom.js";
import { Plot, short } from "./plot.js";

const EVERY_MS = 2000;

/** Plots: title, unit, and how to read the figure from the server's status. */
const PLOTS = [
  ["Throughput", "tokens/s", (now) => now.tokens_per_second],
  ["Time to first token", "ms", (now) => now.time_to_first_token_s == null ? null : now.time_to_first_token_s * 1000],
  ["Running", "requests", (now) => sum(now, (model) => model.queue?.running)],
  ["Waiting", "requests", (now) => sum(now, (model) => model.queue?.waiting)],
  ["Cache in use", "%", (now) => {
    const blocks = sum(now, (model) => model.cache?.blocks);
    return blocks ? (100 * sum(now, (model) => model.cache?.used)) / blocks : null;
  }],
  ["Memory", "MiB", (now) => ((now.memory?.resident_bytes ?? 0) + sum(now, (model) => model.memory?.resident_bytes)) / 2 ** 20],
];

const sum = (now, of) => now.models.reduce((all, model) => all + (of(model) ?? 0), 0);

export class Status {
  constructor() {
    this.plots = PLOTS.map(([title, unit]) => new Plot(title, unit));
    $("plots").append(...this.plots.map((plot) => plot.figure));
  }

  /** Keep fetching the status while the view is open. */
  show(open) {
    clearInterval(this.timer);
    $("status-view").hidden = !open;
    if (!open) return;
    this.#ask();
    this.timer = setInterval(() => this.#ask(), EVERY_MS);
  }

  async #ask() {
    let now;
    try {
      now = await status();
    } catch (error) {
      $("server-line").textContent = `The server is not responding: ${error.message}`;
      for (const plot of this.plots) plot.add(null);
      return;
    }
    const minutes = Math.floor(now.uptime_s / 60);
    $("server-line").textContent = `Quire ${now.version}, up for ${minutes < 120 ? `${minutes} min` : `${Math.floor(minutes / 60)} h`}` +
      `${now.draining ? ", stopping" : ""}; ${now.queue.requests} of ${now.queue.most_requests} requests in the queue`;
    PLOTS.forEach(([, , figure], i) => this.plots[i].add(figure(now)));
    $("model-rows").replaceChildren(...now.models.map(row));
  }
}

function row(model) {
  const { totals = {}, queue = {}, cache } = model;
  const read = (totals.computed_tokens ?? 0) + (totals.cached_tokens ?? 0);
  const cells = [
    model.id, model.state, model.architecture, short(model.n_ctx), `${queue.running ?? 0} + ${queue.waiting ?? 0}`,
    cache && `${cache.used}/${cache.blocks}`, short(totals.generated_tokens),
    read ? `${Math.round((100 * totals.cached_tokens) / read)} %` : "–",
    model.memory && `${Math.round(model.memory.resident_bytes / 2 ** 20)} MiB`,
  ];
  return el("tr", {}, cells.map((cell) => el("td", {}, cell ?? "–")));
}
