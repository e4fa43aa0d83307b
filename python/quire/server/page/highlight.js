// Syntax highlighting of comments, strings, numbers and keywords.  One scanner serves all languages, with a table.

const C_LIKE = { line: "//", block: ["/*", "*/"], quotes: "\"'`" };
const HASH = { line: "#", quotes: "\"'" };
const words = (text) => new Set(text.split(" "));

const LANGUAGES = {
  python: {
    ...HASH, triple: true,
    keywords: words("and as assert async await break case class continue def del elif else except finally for from global " +
      "if import in is lambda match None nonlocal not or pass raise return True False try while with yield self"),
  },
  javascript: {
    ...C_LIKE,
    keywords: words("async await break case catch class const continue default delete do else export extends false finally " +
      "for from function if import in instanceof let new null of return static super switch this throw true try typeof " +
      "undefined var void while yield interface type enum implements readonly public private"),
  },
  c: {
    ...C_LIKE, quotes: "\"'",
    keywords: words("auto bool break case catch char class const constexpr continue default delete do double else enum " +
      "explicit extern false float for friend goto if inline int long mutable namespace new noexcept nullptr operator " +
      "override private protected public return short signed sizeof static struct switch template this throw true try " +
      "typedef typename union unsigned using virtual void volatile while string var foreach interface package import " +
      "final extends implements func go defer chan map range select type"),
  },
  rust: {
    ...C_LIKE, quotes: "\"",
    keywords: words("as async await break const continue crate dyn else enum extern false fn for if impl in let loop match " +
      "mod move mut pub ref return self Self static struct super trait true type unsafe use where while"),
  },
  shell: {
    ...HASH,
    keywords: words("if then else elif fi for while do done case esac in function return export local set unset echo cd " +
      "exit sudo source alias"),
  },
  sql: {
    line: "--", quotes: "'\"", anyCase: true,
    keywords: words("select from where and or not null insert into values update set delete create table drop alter index " +
      "join left right inner outer on group by order having limit as distinct union all primary key foreign references " +
      "case when then else end count sum avg min max"),
  },
  json: { quotes: "\"", keywords: words("true false null") },
  yaml: { ...HASH, keywords: words("true false null yes no") },
  css: { block: ["/*", "*/"], quotes: "\"'", keywords: words("important media import root var calc") },
  html: { block: ["<!--", "-->"], quotes: "\"'", keywords: words("html head body div span script style a p table tr td") },
};
const ALIASES = {
  py: "python", python3: "python", js: "javascript", ts: "javascript", typescript: "javascript", jsx: "javascript",
  tsx: "javascript", cpp: "c", "c++": "c", cc: "c", h: "c", hpp: "c", java: "c", cs: "c", csharp: "c", go: "c", cuda: "c",
  kotlin: "c", swift: "c", rs: "rust", sh: "shell", bash: "shell", zsh: "shell", console: "shell", yml: "yaml",
  toml: "yaml", xml: "html", svg: "html",
};

/** Split code into pieces, each with a class (`""`, `comment`, `string`, `number`, `keyword`). */
export function pieces(code, name) {
  const language = LANGUAGES[ALIASES[name] ?? name];
  if (!language) return [["", code]];
  const found = [];
  let plain = "";
  const put = (kind, text) => {
    if (plain) found.push(["", plain]);
    plain = "";
    found.push([kind, text]);
  };
  for (let i = 0; i < code.length; ) {
    const [kind, end] = tokenAt(code, i, language);
    if (kind) put(kind, code.slice(i, end));
    else plain += code.slice(i, end);
    i = end;
  }
  if (plain) found.push(["", plain]);
  return found;
}

function tokenAt(code, i, language) {
  const { line, block, quotes = "", keywords, triple, anyCase } = language;
  if (block && code.startsWith(block[0], i)) {
    const end = code.indexOf(block[1], i + block[0].length);
    return ["comment", end < 0 ? code.length : end + block[1].length];
  }
  if (line && code.startsWith(line, i)) {
    const end = code.indexOf("\n", i);
    return ["comment", end < 0 ? code.length : end];
  }
  if (quotes.includes(code[i])) return ["string", endOfString(code, i, triple)];
  const word = /[\p{L}_$][\p{L}\p{N}_$]*|\d[\d_.]*(?:[eE][+-]?\d+)?[\p{L}\d]*/uy;
  word.lastIndex = i;
  const match = word.exec(code)?.[0];
  if (!match) return ["", i + 1];
  if (/\d/.test(match[0])) return ["number", i + match.length];
  return [keywords.has(anyCase ? match.toLowerCase() : match) ? "keyword" : "", i + match.length];
}

function endOfString(code, start, triple) {
  const quote = code[start];
  const long = quote.repeat(3);
  if (triple && code.startsWith(long, start)) {
    const end = code.indexOf(long, start + 3);
    return end < 0 ? code.length : end + 3;
  }
  for (let i = start + 1; i < code.length; i++) {
    if (code[i] === "\\") i++;
    else if (code[i] === quote) return i + 1;
    else if (code[i] === "\n" && quote !== "`") return i;
  }
  return code.length;
}
