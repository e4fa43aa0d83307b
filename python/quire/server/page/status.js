// The server's status: figures, plots and models.  Samples are kept for a day, so plots survive a reload.

import { metrics, status } from "./api.js";
import { $, button, bytes, count, duration, el, icon, iconButton, plural } from "./dom.js";
import { STATES } from "./models.js";
import { downloadForm, showDownloads } from "./downloads.js";
import { Plot } from "./plot.js";
import { samplesSince, saveSample, saveSetting, setting } from "./store.js";

const EVERY_MS = 2000;
const SPANS = [["10 minutes", 600_000], ["1 hour", 3_600_000], ["24 hours", 86_400_000]];
const TIMES = [
  ["time_to_first_token_seconds", "First word after", "from sending to the first token"],
  ["inter_token_seconds", "Between tokens", "mean of an answer"],
  ["request_seconds", "Whole answer", "from sending to the last token"],
  ["queue_seconds", "In the queue", "until reading the prompt begins"],
];
const sum = (now, of) => now.models.reduce((all, model) => all + (of(model) ?? 0), 0);
const requests = (n) => plural(n, "request");
const PLOTS = [
  ["Speed", (one) => one.speed, (value) => `${value < 10 ? value.toFixed(1) : count(value)} tokens/s`],
  ["First word after (median)", (one) => one.first_s, duration],
  ["Answering", (one) => one.running, requests],
  ["Waiting", (one) => one.waiting, requests],
  ["Cache in use", (one) => one.cache, (value) => `${value.toFixed(value < 10 ? 1 : 0)} %`],
  ["Memory", (one) => one.memory, bytes],
];

/** The figures of a status that are kept. */
function sampleOf(now, at) {
  const blocks = sum(now, (model) => model.cache?.blocks);
  return {
    at, speed: now.tokens_per_second, first_s: now.time_to_first_token_s,
    running: sum(now, (model) => model.queue?.running), waiting: sum(now, (model) => model.queue?.waiting),
    cache: blocks ? (100 * sum(now, (model) => model.cache?.used)) / blocks : null,
    memory: (now.memory?.resident_bytes ?? 0) + sum(now, (model) => model.memory?.resident_bytes),
  };
}

export class Status {
  constructor(models) {
    Object.assign(this, { models, samples: [], span: setting("span", 600_000) });
    this.plots = PLOTS.map((plot) => new Plot(...plot));
    this.line = el("p", { id: "server-line" });
    this.tiles = el("dl", { id: "times" });
    this.cards = el("div", { id: "model-cards" });
    const spans = SPANS.map(([name, ms]) => el("button", { type: "button", onclick: () => this.#choose(ms) }, name));
    this.spans = spans;
    $("status-view").append(el("div", { class: "view" },
      el("header", {}, el("h2", {}, "Status"), iconButton("x", "Close status", () => this.show(false))), this.line,
      el("div", { class: "row" }, el("h3", {}, "History"), el("span", { class: "space" }), el("div", { class: "segments", role: "group", "aria-label": "Time span" }, spans)),
      el("div", { id: "plots" }, this.plots.map((plot) => plot.figure)),
      el("p", { class: "soft" }, "Recorded while this page is open, and kept for a day in this browser."),
      el("h3", {}, "Response times since the server started"), this.tiles,
      el("h3", {}, "Models"), this.cards, downloadForm(() => models.refresh())));
    this.#choose(this.span);
    samplesSince(Date.now() - 86_400_000).then((kept) => {
      this.samples = [...kept, ...this.samples];
      this.#plots();
    }, () => {});
  }

  /** Open or close the view; while it is open the status is fetched every two seconds. */
  show(open = $("status-view").hidden) {
    clearInterval(this.timer);
    $("status-view").hidden = !open;
    $("chat").hidden = open;
    $("status-button").setAttribute("aria-expanded", String(open));
    if (!open) return;
    const ask = () => this.ask().catch((error) => (this.line.textContent = `The server is not responding: ${error.message}`));
    ask();
    this.timer = setInterval(ask, EVERY_MS);
  }

  /** Fetch and keep the status; returns it. */
  async ask() {
    const now = await status();
    const at = Date.now();
    if (!this.samples.length) this.samples = now.history.map((one) => ({ at: at - one.seconds_ago * 1000, speed: one.tokens_per_second, first_s: one.time_to_first_token_s }));
    const sample = sampleOf(now, at);
    this.samples.push(sample);
    saveSample(sample).catch(() => {});
    if (!$("status-view").hidden) this.#draw(now, parseHistograms(await metrics().catch(() => "")));
    return now;
  }

  #choose(ms) {
    this.span = ms;
    saveSetting("span", ms);
    this.spans.forEach((one, i) => one.setAttribute("aria-pressed", String(SPANS[i][1] === ms)));
    this.#plots();
  }

  #plots() {
    const now = Date.now();
    const shown = this.samples.filter((one) => one.at >= now - this.span);
    const every = Math.ceil(shown.length / 600);
    this.plots.forEach((plot) => plot.draw(shown.filter((_, i) => i % every === 0 || i === shown.length - 1), this.span, now));
  }

  #draw(now, histograms) {
    const { requests: n, most_requests: most } = now.queue;
    this.line.textContent = `Quire ${now.version}, running for ${duration(now.uptime_s)}${now.draining ? ", stopping" : ""}. ` +
      `${n ? `${requests(n)} in progress` : "Idle"}; up to ${count(most)} at a time are accepted.`;
    this.tiles.replaceChildren(...TIMES.map(([name, title, about]) => {
      const found = histograms.get(`quire_${name}`);
      const p = (q) => duration(quantile(found, q));
      return el("div", {}, el("dt", {}, title), ...(found?.at(-1)[1] ? [el("dd", {}, el("b", {}, p(0.5)), " typically"),
        el("dd", {}, `99 % within ${p(0.99)}`)] : [el("dd", {}, "no requests yet")]), el("dd", { class: "soft" }, about));
    }));
    const open = new Set(now.models.map((model) => model.id));
    const closed = this.models.known.filter((model) => !open.has(model.id)).map(({ id, file_bytes, state }) => ({ id, file_bytes, state }));
    this.cards.replaceChildren(...[...now.models, ...closed].map((model) => this.#card(model)));
    showDownloads(now.allow_changes);
    this.#plots();
  }

  #card(model) {
    const { totals = {}, queue = {}, cache, memory } = model;
    const read = (totals.computed_tokens ?? 0) + (totals.cached_tokens ?? 0);
    const ready = model.state === "ready";
    const rows = [
      ["Context", model.n_ctx && plural(model.n_ctx, "token")],
      ["Size", model.file_bytes && bytes(model.file_bytes)],
      ["Answering", model.queue && `${requests(queue.running ?? 0)}${queue.waiting ? `, ${count(queue.waiting)} waiting` : ""}`],
      ["Written so far", totals.generated_tokens != null && plural(totals.generated_tokens, "token")],
      ["Read from the cache", read ? `${Math.round((100 * totals.cached_tokens) / read)} % of prompts` : null],
      ["Memory", memory && bytes(memory.resident_bytes)],
    ];
    const full = cache ? cache.used / cache.blocks : 0;
    const toggles = this.models.known.length > 1 && button(ready ? "Unload" : "Load", () => this.models.toggle(model.id), { sign: "power" });
    return el("article", { class: "card" },
      el("header", {}, icon("cpu"), el("b", {}, model.name || model.id), el("span", { class: ready ? "state good" : "state" }, STATES[model.state] ?? model.state), toggles),
      el("p", { class: "soft" }, [model.architecture, model.name !== model.id && model.id].filter(Boolean).join(" · ")),
      el("dl", {}, rows.filter(([, value]) => value).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
      cache ? el("label", { class: "wide" }, el("span", {}, `Cache: ${Math.round(100 * full)} % in use by answers in progress`),
        el("meter", { min: 0, max: 1, value: full })) : null);
  }
}

/** Read the histograms of a text in Prometheus's format: `name -> [[upper limit, number up to it], ...]`. */
export function parseHistograms(text) {
  const found = new Map();
  for (const [, name, limit, n] of text.matchAll(/^(quire_\w+)_bucket\{le="([^"]+)"\} (\S+)$/gm)) {
    if (!found.has(name)) found.set(name, []);
    found.get(name).push([limit === "+Inf" ? Infinity : Number(limit), Number(n)]);
  }
  return found;
}

/** Return a quantile of a histogram, interpolated within its bucket; null without values. */
export function quantile(buckets, q) {
  const total = buckets?.at(-1)?.[1];
  if (!total) return null;
  let [from, below] = [0, 0];
  for (const [limit, n] of buckets) {
    if (n >= q * total) return limit === Infinity ? from : from + (limit - from) * ((q * total - below) / (n - below));
    [from, below] = [limit, n];
  }
  return null;
}
