// The tokens of an answer, coloured by how sure the model was, with the alternatives of the one under the pointer.

import { el } from "./dom.js";

const percent = (p) => (p >= 0.9995 ? "100 %" : `${(100 * p).toFixed(p < 0.1 ? 1 : 0)} %`);
const visible = (token) => token.replaceAll("\n", "⏎").replaceAll(" ", "␣") || "∅";

/** Show tokens `{token, p, top}`. */
export function tokensView(tokens) {
  const hint = el("p", { class: "soft" }, "Point at a word, or move to it with the arrow keys, to see the alternatives.");
  const detail = el("div", { class: "token-detail", role: "status" }, hint);
  const show = ({ target }) => {
    const one = tokens[target.dataset?.at];
    if (!one) return;
    detail.replaceChildren(el("ol", {}, one.top.map(([token, p]) =>
      el("li", { class: token === one.token ? "taken" : null }, el("code", {}, visible(token)),
        el("meter", { min: 0, max: 1, value: p, "aria-label": visible(token) }), el("span", {}, percent(p))))));
  };
  const text = el("div", { class: "tokens", onpointerover: show, onfocusin: show, onkeydown: move }, tokens.map(({ token, p }, at) =>
    el("span", { "data-at": at, tabindex: at ? -1 : 0, class: `p${Math.min(4, Math.floor(p * 5))}`, title: percent(p) }, token)));
  return el("div", { class: "probabilities" }, text, detail);
}

function move(event) {
  const next = { ArrowRight: "nextSibling", ArrowLeft: "previousSibling" }[event.key];
  if (!next || !event.target[next]) return;
  event.preventDefault();
  event.target[next].focus();
}
