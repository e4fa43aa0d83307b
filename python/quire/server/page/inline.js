// Inline Markdown: code, formulas, emphasis, links, footnotes, line breaks.

import { el } from "./dom.js";
import { formula } from "./math.js";

const DEEPEST = 6;
const MARKS = [["***", ["strong", "em"]], ["**", ["strong"]], ["__", ["strong"]], ["~~", ["del"]], ["*", ["em"]], ["_", ["em"]]];
const BARE = /https?:\/\/[^\s<>"'`]*[^\s<>"'`.,;:!?)\]}*_]/y;
const SPECIAL = /[\\`*_~[!<$\n]|https?:\/\//g;
const NOTE = /\[\^([^\s\]]{1,40})\]/y;

/** Convert text with inline marks to nodes. */
export function inline(text, depth = 0) {
  const nodes = [];
  let plain = "";
  // If nothing closes a mark from here on, nothing closes it later either.  Searching once keeps the time linear.
  const unclosed = new Set();
  const put = (node) => {
    if (plain) nodes.push(plain);
    plain = "";
    if (node) nodes.push(node);
  };
  for (let i = 0; i < text.length; ) {
    const [node, end] = nodeAt(text, i, depth, unclosed);
    if (node) {
      put(node);
      i = end;
      continue;
    }
    // Copy plain text up to the next special character.
    plain += text.slice(i, end);
    SPECIAL.lastIndex = end;
    const next = end < text.length ? (SPECIAL.exec(text)?.index ?? text.length) : text.length;
    plain += text.slice(end, next);
    i = next;
  }
  put(null);
  return nodes;
}

/** Return the node at a position and its end; without a node, the text up to that end is plain. */
function nodeAt(text, i, depth, unclosed) {
  const char = text[i];
  if (char === "\n") return [el("br"), i + 1];
  if (char === "\\" && (text[i + 1] === "(" || text[i + 1] === "[")) {
    const found = formulaAt(text, i, text[i + 1] === "(" ? "\\)" : "\\]", unclosed);
    if (found) return found;
  }
  if (char === "$") return dollarsAt(text, i, unclosed);
  if (char === "[" && text[i + 1] === "^") {
    NOTE.lastIndex = i;
    const found = NOTE.exec(text);
    if (found) return [el("sup", {}, el("button", { type: "button", class: "note-ref", "data-note": found[1], "aria-label": `Footnote ${found[1]}` }, found[1])), i + found[0].length];
  }
  if (char === "\\" && /[!-/:-@[-`{-~]/.test(text[i + 1] ?? "")) return [document.createTextNode(text[i + 1]), i + 2];
  if (char === "`") return codeAt(text, i, unclosed);
  if (char === "[" || (char === "!" && text[i + 1] === "[")) return linkAt(text, i, depth, unclosed);
  if (char === "<") {
    const found = /^<((?:https?:\/\/|mailto:)[^\s<>]+)>/.exec(text.slice(i, i + 2048));
    return found ? [link(found[1], [found[1]]), i + found[0].length] : [null, i + 1];
  }
  if (char === "h") {
    BARE.lastIndex = i;
    const found = BARE.exec(text)?.[0];
    if (found) return [link(found, [found]), i + found.length];
  }
  if (depth < DEEPEST && "*_~".includes(char)) return emphasisAt(text, i, depth, unclosed);
  return [null, i + 1];
}

/** A formula between `\\(` or `\\[` and its end. */
function formulaAt(text, i, end, unclosed) {
  if (unclosed.has(end)) return null;
  const to = text.indexOf(end, i + 2);
  if (to < 0) {
    unclosed.add(end);
    return null;
  }
  return [formula(text.slice(i + 2, to).trim(), end === "\\]"), to + 2];
}

/** A formula between dollar signs, as far as they are not prices: `$5 and $6` is text. */
function dollarsAt(text, i, unclosed) {
  const mark = text[i + 1] === "$" ? "$$" : "$";
  const begin = i + mark.length;
  if (unclosed.has(mark) || (mark === "$" && /\s|^$/.test(text[begin] ?? ""))) return [null, begin];
  for (let to = text.indexOf(mark, begin + 1); to >= 0; to = text.indexOf(mark, to + 1)) {
    const before = text[to - 1];
    if (mark === "$" && text[to + 1] === "$") break;
    if (before === "\\") continue;
    if (mark === "$" && (/\s/.test(before) || /\d/.test(text[to + 1] ?? ""))) return [null, begin];
    return [formula(text.slice(begin, to).trim(), mark === "$$"), to + mark.length];
  }
  unclosed.add(mark);
  return [null, begin];
}

function codeAt(text, i, unclosed) {
  const ticks = /^`+/.exec(text.slice(i, i + 64))[0];
  const wanted = `\`${ticks.length}`;
  if (!unclosed.has(wanted)) {
    for (let end = text.indexOf(ticks, i + ticks.length); end >= 0; end = text.indexOf(ticks, end)) {
      let after = end;
      while (text[after] === "`") after += 1;
      if (after - end === ticks.length) {
        const code = text.slice(i + ticks.length, end).replaceAll("\n", " ");
        const padded = /^ .*\S.* $/.test(code) ? code.slice(1, -1) : code;
        return [el("code", {}, padded), after];
      }
      end = after;
    }
    unclosed.add(wanted);
  }
  return [null, i + ticks.length];
}

function linkAt(text, i, depth, unclosed) {
  const begin = text[i] === "!" ? i + 2 : i + 1;
  if (unclosed.has("](") || depth >= DEEPEST) return [null, begin];
  const middle = text.indexOf("](", begin);
  if (middle < 0) {
    unclosed.add("](");
    return [null, begin];
  }
  const label = text.slice(begin, middle);
  const target = /^\(<?([^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)*)>?(?:\s+["'(][^"')]*["')])?\)/.exec(text.slice(middle + 1, middle + 4096));
  if (!target || label.includes("[") || label.length > 1000) return [null, begin];
  return [link(target[1], inline(label, depth + 1)), middle + 1 + target[0].length];
}

/** Create a link that opens in a new tab; for addresses that are not http, https or mailto, only its text. */
function link(target, label) {
  if (!/^(?:https?:\/\/|mailto:)/i.test(target)) return el("span", {}, label);
  return el("a", { href: target, target: "_blank", rel: "noopener noreferrer nofollow" }, label);
}

function emphasisAt(text, i, depth, unclosed) {
  for (const [mark, tags] of MARKS) {
    if (!text.startsWith(mark, i) || unclosed.has(mark)) continue;
    const begin = i + mark.length;
    if (/\s|^$/.test(text[begin] ?? "") || (mark[0] === "_" && isWord(text[i - 1]))) continue;
    const end = closing(text, begin, mark);
    if (end < 0) {
      unclosed.add(mark);
      continue;
    }
    const inner = inline(text.slice(begin, end), depth + 1);
    const node = tags.reduceRight((children, tag) => [el(tag, {}, children)], inner)[0];
    return [node, end + mark.length];
  }
  let end = i + 1;
  while (text[end] === text[i]) end += 1;
  return [null, end];
}

const isWord = (char) => char !== undefined && /[\p{L}\p{N}]/u.test(char);

function closing(text, begin, mark) {
  for (let end = text.indexOf(mark, begin + 1); end >= 0; end = text.indexOf(mark, end + 1)) {
    const before = text[end - 1];
    let run = end;
    while (text[run] === mark[0]) run += 1;
    // A double mark inside single marks is a mark of its own; of three characters, the last one closes.
    const pair = mark.length === 1 && (run - end) % 2 === 0;
    if (mark.length === 1) end = run - 1;
    else if (mark.length === 2 && run - end === 3) end = run - 2;
    if (pair || /\s/.test(before) || before === "\\") continue;
    if (mark[0] === "_" && isWord(text[end + mark.length])) continue;
    return end;
  }
  return -1;
}
