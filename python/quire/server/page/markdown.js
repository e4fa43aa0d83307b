// Render Markdown block by block: the part of CommonMark that models write, with tables, task lists, strikethrough,
// footnotes and formulas.
// HTML in it stays text, images become links, and only http, https and mailto links are kept.

import { button, copy, el } from "./dom.js";
import { pieces } from "./highlight.js";
import { inline } from "./inline.js";
import { formula } from "./math.js";
import { canShow, preview } from "./preview.js";

const DEEPEST = 8;
const LONG = 40; // lines of code that are shown folded
const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:\s+(.*?))?\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(\s+|$)/;
const QUOTE = /^ {0,3}>\s?/;
const MATH = /^ {0,3}(\$\$|\\\[)/;
const NOTE = /^ {0,3}\[\^([^\s\]]{1,40})\]:\s*/;
const DELIMITERS = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;

/** Shows Markdown in an element.  As an answer grows, only changed blocks are rendered again. */
export class MarkdownView {
  constructor(element) {
    this.element = element;
    this.sources = [];
    element.addEventListener("click", ({ target }) => {
      const name = target.dataset?.note;
      if (name) [...element.querySelectorAll(".note")].find((one) => one.dataset.note === name)?.focus();
    });
  }

  update(text) {
    const blocks = blocksOf(text.split("\n"));
    const first = blocks.find((block) => block.kind === "heading")?.level;
    for (const block of blocks) if (block.kind === "heading") block.level = Math.max(1, block.level - first + 1);
    let same = 0;
    while (same < blocks.length && blocks[same].source === this.sources[same]) same += 1;
    while (this.element.childNodes.length > same) this.element.lastChild.remove();
    this.element.append(...blocks.slice(same).map((block) => elementOf(block, 0)));
    this.sources = blocks.map((block) => block.source);
  }
}

/** Split lines into blocks: `{kind, lines, source, ...}`. */
function blocksOf(lines) {
  const blocks = [];
  for (let i = 0; i < lines.length; ) {
    if (!lines[i].trim()) {
      i += 1;
      continue;
    }
    const block = blockAt(lines, i);
    block.source = lines.slice(i, block.end).join("\n");
    blocks.push(block);
    i = block.end;
  }
  return blocks;
}

function blockAt(lines, start) {
  const line = lines[start];
  const fence = FENCE.exec(line);
  if (fence) return fenced(lines, start, fence);
  const heading = HEADING.exec(line);
  if (heading) return { kind: "heading", level: heading[1].length, lines: [heading[2] ?? ""], end: start + 1 };
  const math = MATH.exec(line) && displayed(lines, start);
  if (math) return math;
  const note = NOTE.exec(line);
  if (note) {
    let end = start + 1;
    while (end < lines.length && lines[end].trim() && !begins(lines, end)) end += 1;
    return { kind: "note", name: note[1], lines: [line.slice(note[0].length), ...lines.slice(start + 1, end)], end };
  }
  if (RULE.test(line)) return { kind: "rule", end: start + 1 };
  if (QUOTE.test(line)) {
    let end = start + 1;
    while (end < lines.length && lines[end].trim() && (QUOTE.test(lines[end]) || !begins(lines, end))) end += 1;
    return { kind: "quote", lines: lines.slice(start, end).map((one) => one.replace(QUOTE, "")), end };
  }
  if (ITEM.test(line)) return list(lines, start);
  if (isTable(lines, start)) {
    let end = start + 2;
    while (end < lines.length && lines[end].includes("|")) end += 1;
    return { kind: "table", lines: lines.slice(start, end), end };
  }
  let end = start + 1;
  while (end < lines.length && lines[end].trim() && !begins(lines, end)) end += 1;
  return { kind: "paragraph", lines: lines.slice(start, end), end };
}

/** Return true if a line starts another block, which ends the paragraph before it. */
function begins(lines, i) {
  return [FENCE, HEADING, RULE, QUOTE, ITEM, NOTE].some((form) => form.test(lines[i])) || isTable(lines, i);
}

const isTable = (lines, i) =>
  lines[i].includes("|") && i + 1 < lines.length && lines[i + 1].includes("-") && DELIMITERS.test(lines[i + 1]);

function fenced(lines, start, [line, fence, info]) {
  const indent = line.length - line.trimStart().length;
  let end = start + 1;
  const closes = (one) => one.trim().startsWith(fence) && !one.trim().replaceAll(fence[0], "");
  while (end < lines.length && !closes(lines[end])) end += 1;
  const code = lines.slice(start + 1, end).map((one) => one.slice(Math.min(indent, one.search(/\S|$/))));
  return { kind: "code", language: info.trim().split(/\s/, 1)[0].toLowerCase(), lines: code,
           end: Math.min(end + 1, lines.length) };
}

/** Return a formula that fills whole lines; null if it has no end, or text follows on its last line. */
function displayed(lines, start) {
  const open = MATH.exec(lines[start])[1];
  const close = open === "$$" ? "$$" : "\\]";
  const first = lines[start].trim().slice(2);
  for (let end = start; end < Math.min(lines.length, start + 200); end += 1) {
    const line = end === start ? first : lines[end];
    const at = line.indexOf(close);
    if (at < 0) continue;
    if (line.slice(at + 2).trim()) return null;
    const tex = end === start ? first.slice(0, at) : [first, ...lines.slice(start + 1, end), line.slice(0, at)].join("\n");
    return { kind: "math", tex: tex.trim(), end: end + 1 };
  }
  return null;
}

/** Parse a list: items have the same kind of mark, and lines indented like an item's text belong to it. */
function list(lines, start) {
  const [, indent, first] = ITEM.exec(lines[start]);
  const ordered = /\d/.test(first);
  const items = [];
  let end = start;
  while (end < lines.length) {
    const line = lines[end];
    const mark = ITEM.exec(line);
    const deep = line.search(/\S/);
    if (mark && mark[1].length <= indent.length + 1 && !RULE.test(line)) {
      if (/\d/.test(mark[2]) !== ordered) break;
      items.push({ width: mark[0].length, lines: [line.slice(mark[0].length)] });
    } else if (deep < 0) {
      // A blank line ends the list unless an item or an indented line follows.
      const next = lines.slice(end + 1).find((one) => one.trim());
      if (next === undefined || !(ITEM.test(next) || next.search(/\S/) > indent.length)) break;
      items.at(-1).lines.push("");
    } else if (deep > indent.length || (!begins(lines, end) && lines[end - 1].trim())) {
      items.at(-1).lines.push(line.slice(Math.min(deep, items.at(-1).width)));
    } else break;
    end += 1;
  }
  return { kind: "list", ordered, from: ordered ? Number.parseInt(first, 10) : 1, items, end };
}

function elementOf(block, depth) {
  switch (block.kind) {
    case "heading": return el(`h${Math.min(block.level + 2, 6)}`, {}, inline(block.lines[0]));
    case "rule": return el("hr");
    case "math": return formula(block.tex, true);
    case "note": return el("p", { class: "note", "data-note": block.name, tabindex: "-1" }, el("sup", {}, block.name), " ", inline(block.lines.join("\n")));
    case "quote": return el("blockquote", {}, nested(block.lines, depth));
    case "list": return listElement(block, depth);
    case "table": return tableElement(block.lines);
    case "code": return codeElement(block.lines.join("\n"), block.language);
    default: return el("p", {}, inline(block.lines.map((line) => line.trimStart()).join("\n")));
  }
}

function nested(lines, depth) {
  if (depth >= DEEPEST) return [el("p", {}, lines.join("\n"))];
  return blocksOf(lines).map((block) => elementOf(block, depth + 1));
}

function listElement({ ordered, from, items }, depth) {
  const made = items.map((item) => {
    const task = /^\[([ xX])\]\s+/.exec(item.lines[0]);
    const lines = task ? [item.lines[0].slice(task[0].length), ...item.lines.slice(1)] : item.lines;
    const blocks = nested(lines, depth);
    // Render an item with a single paragraph without paragraph spacing.
    const tight = blocks.map((one, i) => (one.tagName === "P" && (i === 0 || !lines.includes("")) ? [...one.childNodes] : one));
    const box = task && el("input", { type: "checkbox", disabled: true, checked: task[1] !== " ", "aria-label": "task" });
    return el("li", { class: task ? "task" : null }, box, tight.flat());
  });
  return el(ordered ? "ol" : "ul", ordered && from !== 1 ? { start: from } : {}, made);
}

/** Split a row into cells; a bar after a backslash or within backticks belongs to the cell. */
function cells(row) {
  const found = [""];
  let code = false;
  for (let i = 0; i < row.length; i++) {
    if (row[i] === "\\" && row[i + 1] === "|") found[found.length - 1] += row[++i];
    else if (row[i] === "|" && !code) found.push("");
    else {
      if (row[i] === "`") code = !code;
      found[found.length - 1] += row[i];
    }
  }
  const trimmed = found.map((cell) => cell.trim());
  if (trimmed[0] === "") trimmed.shift();
  if (trimmed.at(-1) === "") trimmed.pop();
  return trimmed;
}

function tableElement([head, delimiters, ...rows]) {
  const sides = cells(delimiters).map((one) => {
    if (/^:.*:$/.test(one)) return "center";
    return one.endsWith(":") ? "end" : null;
  });
  const titles = cells(head);
  const row = (tag, of) => el("tr", {}, titles.map((_, i) =>
    el(tag, { class: sides[i] && `to-${sides[i]}` }, inline(of[i] ?? ""))));
  const table = el("table", {}, el("thead", {}, row("th", titles)), el("tbody", {}, rows.map((one) => row("td", cells(one)))));
  return el("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table" }, table);
}

function codeElement(code, language) {
  const coloured = pieces(code, language).map(([kind, text]) => (kind ? el("span", { class: kind }, text) : text));
  const n_lines = code.split("\n").length;
  const long = n_lines > LONG;
  const made = el("div", { class: long ? "code folded" : "code" });
  const unfold = button(`Show all ${n_lines} lines`, () => {
    made.classList.remove("folded");
    unfold.remove();
  }, { class: "unfold" });
  const show = canShow(language, code) && button("Preview", () => {
    const shown = made.querySelector("iframe");
    if (shown) shown.remove();
    else made.append(preview(code, language));
    show.setAttribute("aria-pressed", String(!shown));
  }, { sign: "eye", "aria-pressed": "false" });
  made.append(el("div", { class: "code-head" }, el("span", {}, language || "code"), el("span", { class: "space" }), show,
    button("Copy", (event) => copy(code, event.currentTarget), { sign: "copy" })), el("pre", { tabindex: "0" }, el("code", {}, coloured)));
  if (long) made.append(unfold);
  return made;
}
