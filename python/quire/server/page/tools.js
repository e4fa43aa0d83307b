// The server's tools, and how the conversation shows calls.

import { callTool, listTools } from "./api.js";
import { $, button, duration, el, icon } from "./dom.js";

export class Toolbox {
  constructor() {
    Object.assign(this, { tools: [], session: null });
  }

  async refresh() {
    const { data = [], session = null } = await listTools().catch(() => ({}));
    Object.assign(this, { tools: data, session });
  }

  get(name) {
    return this.tools.find((tool) => tool.name === name);
  }

  /** The tools that a chat with these settings offers to the model. */
  offered({ tools = {} }) {
    return this.tools.filter((tool) => tools[tool.name] !== "never");
  }

  /** Return true if calls of a tool run without asking: by the operator's word or the user's. */
  runsAlways(name, { tools = {} }) {
    return this.get(name)?.approval === "always" || tools[name] === "always";
  }

  /** Run a call that the policy or the user allowed.  A failure is a result that the model reads. */
  async run({ function: { name, arguments: given } }, signal) {
    try {
      return await callTool({ name, arguments: given || {}, approved: true }, this.session, signal);
    } catch (error) {
      if (error.code === "invalid_session") {
        await this.refresh();
        return await callTool({ name, arguments: given || {}, approved: true }, this.session, signal).catch(failed);
      }
      return failed(error);
    }
  }
}

const failed = (error) => ({ content: error.name === "AbortError" ? "the user cancelled this call" : `the call failed: ${error.message}`, is_error: true });

/** Return JSON in readable form, and anything else as it is. */
function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // an unfinished call
  }
}

/** Show a call: its arguments, and its result or what the user can decide.  `state`: `asks`, `running`, `done` or nothing. */
export function callView(call, { state, result, tool } = {}, { decide } = {}) {
  const name = tool ? `${tool.tool} (${tool.server})` : call.function.name;
  const said = { asks: "wants to use", running: "is using", done: result?.is_error ? "could not use" : "used" }[state];
  const view = el("details", { class: `call ${state ?? ""}`, open: state !== "done" },
    el("summary", {}, icon(result?.is_error ? "triangle-alert" : "wrench"), said ? `The model ${said} ${name}` : `Calls ${name}`,
      result?.seconds != null && el("small", {}, duration(result.seconds))),
    el("pre", { tabindex: "0", "aria-label": "Arguments" }, pretty(call.function.arguments)));
  if (state === "asks") {
    view.append(el("div", { class: "call-actions" }, button("Allow once", () => decide(call, "once"), { class: "primary", sign: "check" }),
      button("Always in this chat", () => decide(call, "always")), button("Don't allow", () => decide(call, "no"), { sign: "x" })));
  }
  if (state === "running") view.append(el("p", { class: "soft" }, el("span", { class: "pulse" }), "Running…"));
  if (result) view.append(el("pre", { tabindex: "0", class: result.is_error ? "bad" : null, "aria-label": "Result" }, pretty(result.content)));
  return view;
}

/** Let the user choose for each tool if it is offered and if it asks. */
export function showTools(toolbox, settings, changed) {
  const opener = $("tools-button");
  $("tools-section").hidden = opener.hidden = !toolbox.tools.length;
  opener.title = `${toolbox.offered(settings).length} of ${toolbox.tools.length} tools offered to the model`;
  opener.setAttribute("aria-label", opener.title);
  if ($("tools").contains(document.activeElement)) return;
  $("tools").replaceChildren(...toolbox.tools.map((tool) => {
    const choice = el("select", { "aria-label": tool.name, onchange: () => changed({ ...settings.tools, [tool.name]: choice.value }) },
      tool.approval === "always" ? new Option("Runs without asking", "ask") : [new Option("Ask each time", "ask"), new Option("Always allow", "always")],
      new Option("Don't offer", "never"));
    choice.value = settings.tools?.[tool.name] ?? "ask";
    return el("label", { class: "wide", title: tool.definition.function.description }, el("span", {}, `${tool.tool} `, el("small", {}, tool.server)), choice);
  }));
}
