// Formulas, written as MathML by Temml, which is loaded when the first one appears.

import { el } from "./dom.js";

let loading;
let temml;

function load() {
  loading ??= (async () => {
    document.head.append(el("link", { rel: "stylesheet", href: "page/temml.css" }));
    temml = (await import("./temml.js")).default;
  })();
  return loading;
}

/** Create a formula; it shows its source until the library is there, or if it is not valid. */
export function formula(tex, display) {
  const made = el(display ? "div" : "span", { class: display ? "math display" : "math" }, tex);
  if (temml) draw(made, tex, display);
  else load().then(() => draw(made, tex, display), () => {});
  return made;
}

function draw(element, tex, displayMode) {
  const drawn = document.createElement("span");
  try {
    temml.render(tex, drawn, { displayMode, throwOnError: true, trust: false, maxExpand: 500, maxSize: [20, 20] });
  } catch {
    element.classList.add("invalid");
    return;
  }
  element.replaceChildren(...drawn.childNodes);
  element.title = tex;
}
