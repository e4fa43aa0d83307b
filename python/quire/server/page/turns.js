// The view of a conversation: its questions and answers with their buttons.

import { $, button, copy, el } from "./dom.js";
import { MarkdownView } from "./markdown.js";

/** Shows a conversation.  `actions`: edit(node, text), regenerate(node), resume(node), show(node). */
export class Turns {
  constructor(actions) {
    this.actions = actions;
    this.element = $("turns");
    this.following = true;
    this.element.addEventListener("scroll", () => {
      const { scrollTop, scrollHeight, clientHeight } = this.element;
      this.following = scrollHeight - scrollTop - clientHeight < 40;
      $("down").hidden = this.following;
    });
    $("down").addEventListener("click", () => this.follow(true));
  }

  /** Render the whole conversation again. */
  render(conversation) {
    this.views = new Map();
    const turns = conversation.path().map((node) => this.#turn(conversation, node));
    this.element.replaceChildren(...turns);
    $("welcome").hidden = turns.length > 0;
    this.follow(true);
  }

  /** Update an answer; several calls between two frames cause one update. */
  update(node, running) {
    this.latest = [node, running];
    this.pending ??= requestAnimationFrame(() => this.draw(...this.latest));
  }

  draw(node, running) {
    cancelAnimationFrame(this.pending);
    this.pending = null;
    const view = this.views.get(node.id);
    if (!view) return;
    view.turn.classList.toggle("running", running);
    view.turn.setAttribute("aria-busy", String(running));
    view.thought.hidden = !node.reasoning;
    if (node.reasoning) {
      view.thoughtText.textContent = node.reasoning;
      const done = node.content || !running;
      view.thoughtTitle.textContent = done ? "Thought" : "Thinking…";
    }
    view.markdown.update(node.content);
    view.calls.replaceChildren(...(node.tool_calls ?? []).map(callElement));
    view.stats.textContent = statsOf(node);
    view.error.hidden = !node.error;
    view.error.textContent = node.error ?? "";
    this.follow(this.following);
  }

  /** Scroll to the end, unless the user has scrolled up to read. */
  follow(wanted) {
    if (wanted) this.element.scrollTop = this.element.scrollHeight;
  }

  #turn(conversation, node) {
    const place = conversation.siblings(node);
    const at = place.indexOf(node);
    const branches = place.length > 1 && el("span", { class: "branches" },
      button("‹", "Previous branch", () => this.actions.show(place[at - 1]), { disabled: at === 0 }),
      el("span", {}, `${at + 1}/${place.length}`),
      button("›", "Next branch", () => this.actions.show(place[at + 1]), { disabled: at === place.length - 1 }));
    const copyButton = button("Copy", "Copy", (event) => copy(node.content, event.currentTarget));
    if (node.role === "user") return this.#question(node, branches, copyButton);

    const body = el("div", { class: "body" });
    const thoughtText = el("div", { class: "thought-text" });
    const thoughtTitle = el("summary", {}, "Thought");
    const view = {
      markdown: new MarkdownView(body),
      thought: el("details", { class: "thought" }, thoughtTitle, thoughtText), thoughtText, thoughtTitle,
      calls: el("div", { class: "calls" }),
      stats: el("span", { class: "stats" }),
      error: el("p", { class: "error", role: "alert" }),
    };
    const tools = el("div", { class: "tools" }, branches, copyButton,
      button("Regenerate", "Regenerate", () => this.actions.regenerate(node)),
      button("Continue", "Continue", () => this.actions.resume(node)), view.stats);
    view.turn = el("article", { class: `turn ${node.role}`, "aria-label": "Answer" },
      view.thought, body, view.calls, view.error, tools);
    this.views.set(node.id, view);
    this.draw(node, false);
    return view.turn;
  }

  #question(node, branches, copyButton) {
    const text = el("div", { class: "body plain" }, node.content);
    const files = (node.attachments ?? []).map((file) =>
      el("details", { class: "file" }, el("summary", {}, file.name), el("pre", {}, file.text)));
    const edit = button("Edit", "Edit", () => turn.replaceChildren(this.#editor(node, () => turn.replaceWith(this.#question(node, branches, copyButton)))));
    const turn = el("article", { class: "turn user", "aria-label": "Question" }, files, text,
      el("div", { class: "tools" }, branches, copyButton, edit));
    return turn;
  }

  #editor(node, cancel) {
    const area = el("textarea", { rows: Math.min(12, node.content.split("\n").length + 1), "aria-label": "Edit message" });
    area.value = node.content;
    const send = () => this.actions.edit(node, area.value);
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") cancel();
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        send();
      }
    });
    setTimeout(() => area.focus());
    return el("div", { class: "editor" }, area, el("div", { class: "tools" }, button("Send", "Send", send), button("Cancel", "Cancel", cancel)));
  }
}

function callElement(call) {
  let shown = call.function.arguments;
  try {
    shown = JSON.stringify(JSON.parse(shown), null, 2);
  } catch {
    // Show an unfinished call as it is.
  }
  return el("details", { class: "call", open: true }, el("summary", {}, `Calls ${call.function.name}`), el("pre", { tabindex: "0" }, shown));
}

/** Describe the speed and size of an answer. */
function statsOf({ stats }) {
  if (!stats) return "";
  const parts = [];
  if (stats.tokens_per_second) parts.push(`${stats.tokens_per_second.toFixed(1)} tokens/s`);
  if (stats.first_ms != null) parts.push(`first after ${Math.round(stats.first_ms)} ms`);
  if (stats.tokens) parts.push(`${stats.tokens} tokens`);
  if (stats.finish === "length") parts.push("cut off at the limit");
  return parts.join(" · ");
}
