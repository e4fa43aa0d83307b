// The view of a conversation: its questions and answers with their buttons.

import { $, copy, duration, el, icon, iconButton, button, plural } from "./dom.js";
import { MarkdownView } from "./markdown.js";
import { attachmentsView } from "./media_view.js";
import { tokensView } from "./probabilities.js";
import { callView } from "./tools.js";

/** The icon and words of answers that did not end normally. */
const STATES = {
  stopped: ["square", "You stopped this answer."],
  interrupted: ["circle-alert", "This answer was interrupted when the page was closed or reloaded. What arrived is kept."],
  failed: ["triangle-alert", "This answer failed."],
};

/** Shows a conversation.  `actions`: edit(node, text), regenerate(node), again(node), resume(node), shorten(node), show(node),
 * choose(node), callState(node, call), decide(node, call, word). */
export class Turns {
  constructor(actions) {
    this.actions = actions;
    this.element = $("turns");
    this.following = true;
    this.pending = new Map();
    this.element.addEventListener("scroll", () => {
      if (this.settling) return;
      const { scrollTop, scrollHeight, clientHeight } = this.element;
      this.following = scrollHeight - scrollTop - clientHeight < 40;
      this.down.hidden = this.following;
    });
    this.down = iconButton("arrow-down", "To the end", () => this.toEnd(), { id: "down", hidden: true });
    $("scroll-down").append(this.down);
  }

  /** Render the whole conversation again. */
  render(conversation, answers) {
    Object.assign(this, { conversation, answers, views: new Map() });
    const turns = conversation.path().filter((node) => node.role !== "tool").map((node) => this.#place(node));
    this.element.replaceChildren(...turns);
    $("welcome").hidden = turns.length > 0;
    document.body.classList.toggle("empty", !turns.length);
    this.toEnd();
  }

  /** Update an answer; several calls between two frames cause one update. */
  update(node) {
    if (!this.pending.size) requestAnimationFrame(() => this.#flush());
    this.pending.set(node.id, node);
  }

  #flush() {
    const nodes = [...this.pending.values()];
    this.pending.clear();
    nodes.forEach((node) => this.draw(node));
  }

  draw(node) {
    const view = this.views.get(node.id);
    if (!view) return;
    const running = this.answers.isRunning(node) || node.state === "running";
    view.turn.classList.toggle("running", running);
    view.turn.setAttribute("aria-busy", String(running));
    view.thought.hidden = !node.reasoning;
    if (node.reasoning) {
      view.thoughtText.textContent = node.reasoning;
      view.thoughtTitle.textContent = node.content || !running ? "Thoughts" : "Thinking…";
    }
    view.markdown.update(node.content);
    view.calls.replaceChildren(...(node.tool_calls ?? []).filter(Boolean).map((call) =>
      callView(call, running ? {} : this.actions.callState(node, call), { decide: (one, word) => this.actions.decide(node, one, word) })));
    view.stats.replaceChildren(...statsOf(node));
    view.probabilities.hidden = !node.tokens;
    this.#showEnd(node, view, running);
    this.follow(this.following);
  }

  /** Say how an answer ended if it is not complete, with what can be done about it. */
  #showEnd(node, view, running) {
    const cut = node.stats?.finish === "length" && !node.state;
    view.end.hidden = running || (!cut && !STATES[node.state]);
    if (view.end.hidden) return;
    const [sign, text] = STATES[node.state] ?? ["info", "The answer reached the length limit."];
    view.end.className = node.state === "failed" ? "end bad" : "end";
    const full = node.code === "context_length_exceeded";
    view.end.replaceChildren(icon(sign), el("span", {}, node.error ?? text), ...[
      node.content && button("Continue", () => this.actions.resume(node), { sign: "play" }),
      full && button("Drop the oldest messages", () => this.actions.shorten(node)),
      button(node.state === "failed" && !node.content ? "Try again" : "Start over", () => this.actions.again(node), { sign: "rotate-ccw" })].filter(Boolean));
  }

  /** Scroll to the end, unless the user has scrolled up to read. */
  follow(wanted) {
    if (wanted) this.element.scrollTop = this.element.scrollHeight;
  }

  /** Scroll to the end, again for as long as turns that come into view turn out higher than estimated. */
  toEnd() {
    this.following = this.settling = true;
    this.down.hidden = true;
    let [frames, stable] = [0, 0];
    const settle = () => {
      const { scrollTop, scrollHeight, clientHeight } = this.element;
      stable = scrollHeight - scrollTop - clientHeight < 2 ? stable + 1 : 0;
      this.follow(true);
      frames += 1;
      if (stable < 3 && frames < 20) requestAnimationFrame(settle);
      else this.settling = false;
    };
    settle();
  }

  #place(node) {
    const group = this.conversation.compared(node);
    if (group.length < 2 || node.role !== "assistant") return this.#turn(node);
    return el("div", { class: "compare" }, group.map((one) => {
      const chosen = one.id === node.id;
      const head = el("header", {}, el("b", {}, one.label ?? one.model ?? "Answer"),
        chosen ? el("span", { class: "soft" }, icon("check"), "Continues from here") : button("Continue from here", () => this.actions.choose(one)));
      return el("div", { class: chosen ? "column chosen" : "column" }, head, this.#turn(one));
    }));
  }

  #branches(node) {
    const place = this.conversation.siblings(node);
    if (place.length < 2 || node.group) return null;
    const at = place.indexOf(node);
    return el("span", { class: "branches" },
      iconButton("chevron-left", "Previous branch", () => this.actions.show(place[at - 1]), { disabled: at === 0 }),
      el("span", {}, `${at + 1}/${place.length}`),
      iconButton("chevron-right", "Next branch", () => this.actions.show(place[at + 1]), { disabled: at === place.length - 1 }));
  }

  #turn(node) {
    const copyButton = iconButton("copy", "Copy", (event) => copy(node.content, event.currentTarget));
    if (node.role === "user") return this.#question(node, copyButton);

    const body = el("div", { class: "body" });
    const thoughtText = el("div", { class: "thought-text" });
    const thoughtTitle = el("span", {}, "Thoughts");
    const view = {
      markdown: new MarkdownView(body),
      thought: el("details", { class: "thought" }, el("summary", {}, icon("brain"), thoughtTitle), thoughtText), thoughtText, thoughtTitle,
      calls: el("div", { class: "calls" }),
      stats: el("span", { class: "stats" }),
      end: el("div", { class: "end", role: "status", hidden: true }),
      probabilities: iconButton("percent", "Show probabilities", () => this.#probabilities(node, view, body), { hidden: true, "aria-pressed": "false" }),
    };
    const tools = el("div", { class: "tools" }, this.#branches(node), copyButton,
      iconButton("refresh-cw", "Regenerate", () => this.actions.regenerate(node)),
      iconButton("play", "Continue", () => this.actions.resume(node)), view.probabilities, view.stats);
    view.turn = el("article", { class: `turn ${node.role}`, "aria-label": "Answer" },
      el("h2", { class: "unseen" }, "Answer"), view.thought, body, view.calls, view.end, tools);
    this.views.set(node.id, view);
    this.draw(node);
    return view.turn;
  }

  #probabilities(node, view, body) {
    const shown = view.tokens?.isConnected;
    if (shown) view.tokens.replaceWith(body);
    else body.replaceWith((view.tokens = tokensView(node.tokens)));
    view.probabilities.setAttribute("aria-pressed", String(!shown));
  }

  #question(node, copyButton) {
    const edit = iconButton("pencil", "Edit", () => {
      const editor = this.#editor(node, () => editor.replaceWith(turn));
      turn.replaceWith(editor);
    });
    const turn = el("article", { class: "turn user", "aria-label": "Question" }, el("h2", { class: "unseen" }, "Question"), attachmentsView(node.attachments),
      node.content && el("div", { class: "body plain" }, node.content), el("div", { class: "tools" }, this.#branches(node), copyButton, edit));
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
    return el("article", { class: "turn user editing" }, el("div", { class: "editor" }, area,
      el("div", { class: "row end-row" }, button("Cancel", cancel), button("Send", send, { class: "primary" }))));
  }
}

/** Describe the speed and size of an answer. */
function statsOf({ stats, model, label }) {
  if (!stats?.tokens) return [];
  const short = [plural(stats.tokens, "token")];
  if (stats.tokens_per_second) short.push(`${stats.tokens_per_second.toFixed(1)} tokens/s`);
  const long = [model && `Model: ${label ?? model}`, stats.first_s != null && `First word after ${duration(stats.first_s)}`,
    stats.prompt != null && `Read ${plural(stats.prompt, "token")}, ${stats.cached} of them from the cache`].filter(Boolean);
  return [el("span", { title: long.join("\n") }, short.join(" · "))];
}
