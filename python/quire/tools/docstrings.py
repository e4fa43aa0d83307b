"""Read what a docstring says about a function and its parameters."""

from __future__ import annotations

import re

__all__ = ["described"]

_SECTION = re.compile(r"(Args|Arguments|Parameters|Returns|Return|Yields|Raises|Example|Examples|Note|Notes):?")
_GOOGLE = re.compile(r"\*{0,2}(\w+)(?: *\([^)]*\))?: *(.*)")
_NUMPY = re.compile(r"(\w+)(?: *:.*)?")
_SPHINX = re.compile(r":param(?: [^:]*?)? (\w+): *(.*)")


def described(docstring: str) -> tuple[str, dict[str, str]]:
    """Return the text before the first section, and the description of each parameter.

    Google's style, NumPy's and Sphinx's are read.
    """
    head: list[str] = []
    about: dict[str, list[str]] = {}
    section, name = "", ""
    lines = docstring.splitlines()
    for i, line in enumerate(lines):
        text = line.strip()
        if set(text) == {"-"} and i and _SECTION.fullmatch(lines[i - 1].strip()):
            section, name = f"numpy {lines[i - 1].strip()}", ""
        elif text.endswith(":") and line == text and _SECTION.fullmatch(text):
            section, name = text[:-1], ""
        elif found := _SPHINX.fullmatch(text):
            section, name = "sphinx", found[1]
            about[name] = [found[2]]
        elif section == "sphinx" and text.startswith(":"):
            name = ""
        elif not section:
            if not (i + 1 < len(lines) and set(lines[i + 1].strip()) == {"-"}):
                head.append(text)
        elif (found := _entry(section, line)) is not None:
            name = found[1]
            about[name] = [found[2] if "numpy" not in section else ""]
        elif name and text:
            about[name].append(text)
    shown = {key: " ".join(filter(None, parts)) for key, parts in about.items()}
    return "\n".join(head).strip(), {key: text for key, text in shown.items() if text}


def _entry(section: str, line: str) -> re.Match[str] | None:
    """Return the match of a line that begins a parameter; deeper lines continue one."""
    depth = len(line) - len(line.lstrip())
    if section in ("Args", "Arguments", "Parameters"):
        return _GOOGLE.fullmatch(line.strip()) if 0 < depth <= 4 else None
    if section == "numpy Parameters":
        return _NUMPY.fullmatch(line) if depth == 0 else None
    return None
