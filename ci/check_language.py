#!/usr/bin/env python3
"""Check the wording of comments, docstrings, error messages and commit subjects, as far as a program can.

    python ci/check_language.py            everything that git tracks, except the folders in ci/unswept.txt
    python ci/check_language.py PATH...    these files and folders, swept or not
    python ci/check_language.py --unswept  how many findings are left in each folder of ci/unswept.txt
    python ci/check_language.py --commits N  only the subjects of the last N commits

Findings:

- A comment or docstring that starts with "Of", "What", "Whether", "Who", "Whoever", "Whose", "That which" or
  "The same", unless a noun follows.  Name the subject first.
- A message of the form "x must be y but is z".  Say what went wrong with the value, then what to do.
- A commit subject that is longer than 72 characters, is not imperative, ends with a full stop or names an issue.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Folders whose wording has not been revised yet, one a line.  Remove a line once `check_language.py FOLDER` is silent.
# FOLDER/* means the files directly in it.
UNSWEPT = (ROOT / "ci/unswept.txt").read_text(encoding="utf-8").split()

C_LIKE = {".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".js", ".mjs"}
PYTHON = {".py", ".pyi", ".pyx", ".pxd"}
HASH = {".cmake", ".cfg", ".sh", ".toml", ".yaml", ".yml"}

# "> 75  # of 96" and "The same request was running" are plain English, "The same for rows" is not.
BARE_START = re.compile(
    r"(of(?! \d)|what|whether|who|whoever|whose|that which|the same(?=[;:,.]| (?:as|for|in|of|with|where)\b))\b(?!-)",
    re.IGNORECASE,
)
MUST_BUT = re.compile(r"\bmust\b.*\bbut\b", re.DOTALL)
C_TOKEN = re.compile(
    r"""//(?P<line>[^\n]*)
      | /\*(?P<block>.*?)\*/
      | R"(?P<mark>[^()\s\\]*)\((?P<raw>.*?)\)(?P=mark)"
      | "(?P<string>(?:\\.|[^"\\\n])*)"
      | (?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])*'
      | `(?P<template>(?:\\.|[^`\\])*)`
      | (?P<end>[;{}]|^\#include[^\n]*)""",
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
SUBJECT_LENGTH = 72
# First words that look like a past tense, a gerund or a third person but are imperatives.
IMPERATIVES = {
    *("bleed", "embed", "exceed", "feed", "need", "proceed", "seed", "shed", "shred", "speed", "succeed", "wed"),
    *("bring", "ping", "ring", "spring", "string", "swing"),
    *("alias", "bias", "bypass", "canvas", "focus"),
}

Finding = tuple[int, str]  # line, text
Comment = tuple[int, int, bool, str]  # line, column, whether code precedes it on the line, text


def check_comments(comments: Iterator[tuple[int, str]]) -> Iterator[Finding]:
    """Report comments that start with a bare relative clause."""
    for line, text in comments:
        if start := BARE_START.match(text.lstrip("/!*#<- \t\n")):
            yield line, f"starts with {start[1]!r}: {' '.join(text.split())[:70]}"


def must_but(line: int, text: str) -> Iterator[Finding]:
    if MUST_BUT.search(text):
        yield line, f"a message of the old form: {' '.join(text.split())[:70]}"


def join_lines(comments: Iterator[Comment]) -> Iterator[tuple[int, str]]:
    """Merge comments at one column of consecutive lines, as only the first line starts a sentence."""
    last_line, last_column = -1, -1
    for line, column, is_trailing, text in comments:
        if is_trailing or (line, column) != (last_line + 1, last_column):
            yield line, text
        last_line, last_column = line, column


def check_c(source: str) -> Iterator[Finding]:
    """Check C++, CUDA and JavaScript; a message is everything quoted up to the next semicolon or brace."""
    comments: list[Comment] = []
    quoted: list[str] = []
    first_line = line = 1
    position = 0
    for token in C_TOKEN.finditer(source):
        line += source.count("\n", position, token.start())
        position = token.start()
        before = source[source.rfind("\n", 0, position) + 1 : position]
        if (text := token["line"] or token["block"]) is not None:
            comments.append((line, len(before), bool(before.strip()), text))
        elif token["end"]:
            yield from must_but(first_line, " ".join(quoted))
            quoted = []
        elif (text := token["string"] or token["raw"] or token["template"]) is not None:
            first_line = first_line if quoted else line
            quoted.append(text)
    yield from check_comments(join_lines(iter(comments)))


def check_hash(source: str) -> Iterator[Finding]:
    """Check comments of CMake, shell, TOML and YAML."""
    found = (
        (number, len(m[1]), bool(m[1].strip()), m[2])
        for number, line in enumerate(source.splitlines(), 1)
        if (m := re.match(r"(|.*\s)#(\s.*)", line))
    )
    yield from check_comments(join_lines(found))


def python_comments(source: str) -> Iterator[Comment]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line, column = token.start
            yield line, column, bool(token.line[:column].strip()), token.string


def messages(node: ast.AST) -> tuple[str, list[Finding]]:
    """Return the text quoted in an expression, and the findings in its lists, tables and nested statements.

    Everything quoted in one call or sum is one message; each element of a list, set, tuple or dict is one of its own.
    """
    if isinstance(node, ast.Constant):
        return (node.value if isinstance(node.value, str) else ""), []
    text: list[str] = []
    findings: list[Finding] = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            continue  # visited on its own
        inner, found = messages(child)
        findings += found
        if isinstance(node, ast.List | ast.Tuple | ast.Set | ast.Dict):
            findings += must_but(getattr(child, "lineno", 0), inner)
        else:
            text.append(inner)
    return " ".join(filter(None, text)), findings


def check_python(source: str) -> Iterator[Finding]:
    """Check Python; a message is everything quoted in one simple statement, outside lists."""
    yield from check_comments(join_lines(python_comments(source)))
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.stmt):
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from check_comments(iter([(node.lineno, node.value.value)]))
        else:
            text, findings = messages(node)
            yield from must_but(node.lineno, text)
            yield from findings


def check_cython(source: str) -> Iterator[Finding]:
    """Check Cython: Python's comments and docstrings, and the strings between one line of code and the next."""
    comments: list[Comment] = []
    quoted: list[tuple[int, str]] = []
    starts_line = True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        text, (line, column) = token.string, token.start
        if token.type == tokenize.COMMENT:
            comments.append((line, column, bool(token.line[:column].strip()), text))
        elif token.type == tokenize.STRING or tokenize.tok_name[token.type] == "FSTRING_MIDDLE":
            if starts_line:
                comments.append((line, column, True, text.lstrip("rbuf").lstrip("\"'")))
            else:
                quoted.append((line, text))
        elif token.type == tokenize.NEWLINE:
            if quoted:
                yield from must_but(quoted[0][0], " ".join(text for _, text in quoted))
            quoted = []
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            starts_line = token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    yield from check_comments(join_lines(iter(comments)))


def check_file(path: Path) -> list[Finding]:
    """Return line and finding for one file; none for a type that is not checked."""
    suffix = path.suffix
    if suffix in C_LIKE:
        check = check_c
    elif suffix in {".py", ".pyi"}:
        check = check_python
    elif suffix in PYTHON:
        check = check_cython
    elif suffix in HASH or path.name == "CMakeLists.txt":
        check = check_hash
    elif not suffix and path.read_bytes()[:2] == b"#!":
        check = check_python if b"python" in path.read_bytes().split(b"\n")[0] else check_hash
    else:
        return []
    return sorted(check(path.read_text(encoding="utf-8")))


def check_subject(subject: str) -> list[str]:
    """Return what is wrong with a commit subject."""
    word = subject.split(" ", maxsplit=1)[0]
    lower = word.lower().rstrip(":")
    found = []
    if len(subject) > SUBJECT_LENGTH:
        found.append(f"{len(subject)} characters, the limit is {SUBJECT_LENGTH}")
    if lower not in IMPERATIVES and re.search(r"(ed|ing|[^su]s)$", lower):
        found.append(f"starts with {word!r}: use the imperative")
    if re.search(r"#\d+\b|\bissues? \d+\b", subject, re.IGNORECASE):
        found.append("names an issue: say what the commit does")
    if subject.endswith("."):
        found.append("ends with a full stop")
    return found


def check_commits(count: int) -> list[str]:
    """Return the findings in the subjects of the last `count` commits; none without git."""
    log = subprocess.run(
        ["git", "log", f"-{count}", "--no-merges", "--format=%h %s"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if log.returncode:
        return []
    commits = (line.split(" ", 1) for line in log.stdout.splitlines())
    return [f"commit {name}: {finding}: {subject}" for name, subject in commits for finding in check_subject(subject)]


def tracked_files(paths: list[str]) -> list[Path]:
    """The files below `paths`: those that git knows or would add, or all of them outside a repository."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z", *paths],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0:
        files = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:
        roots = [ROOT / name for name in paths] or [ROOT]
        files = [file for root in roots for file in ([root] if root.is_file() else sorted(root.rglob("*")))]
    return [file for file in files if file.is_file() and not file.is_symlink()]


def unswept_folder(name: str) -> str | None:
    """The entry of ci/unswept.txt that covers a file, None for a file in a revised folder."""
    for entry in UNSWEPT:
        folder = entry.removesuffix("/*")
        if name == entry or (name.rpartition("/")[0] == folder if entry != folder else name.startswith(folder + "/")):
            return entry
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=lambda path: str(Path(path).resolve()))
    parser.add_argument("--unswept", action="store_true", help="count the findings in each folder of ci/unswept.txt")
    parser.add_argument("--commits", type=int, metavar="N", help="check only the subjects of the last N commits")
    args = parser.parse_args()
    findings = []
    left = dict.fromkeys(UNSWEPT, 0)
    if not args.paths:
        findings += check_commits(args.commits or 50)
    for file in [] if args.commits else tracked_files(args.paths):
        name = file.relative_to(ROOT).as_posix() if file.is_relative_to(ROOT) else str(file)
        folder = None if args.paths else unswept_folder(name)
        if folder is None:
            findings += [f"{name}:{line}: {finding}" for line, finding in check_file(file)]
        elif args.unswept:
            left[folder] += len(check_file(file))
    if args.unswept:
        for folder, count in left.items():
            print(f"{count:5} {folder}")
        return 0
    print("".join(f"{finding}\n" for finding in findings), end="")
    return bool(findings)


if __name__ == "__main__":
    sys.exit(main())
