// Tool calls in the conversation.

import { el, icon } from "./dom.js";

/** Show a call with its arguments. */
export function callView(call) {
  let shown = call.function.arguments;
  try {
    shown = JSON.stringify(JSON.parse(shown), null, 2);
  } catch {
    // Show an unfinished call as it is.
  }
  return el("details", { class: "call", open: true }, el("summary", {}, icon("wrench"), `Calls ${call.function.name}`),
    el("pre", { tabindex: "0" }, shown));
}
