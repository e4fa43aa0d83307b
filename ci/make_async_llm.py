#!/usr/bin/env python3
"""Write the verbs of AsyncLLM in python/quire/engine/async_llm.py from those of LLM in llm.py.

    python ci/make_async_llm.py

Signatures and bodies are the same, except that calls are awaited and streams are async generators.  Of docstrings, the
first paragraph is kept.  Code outside the marks is written by hand.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ENGINE = Path(__file__).resolve().parent.parent / "python" / "quire" / "engine"
SOURCE, TARGET = ENGINE / "llm.py", ENGINE / "async_llm.py"
BEGIN = "    # BEGIN verbs (written by ci/make_async_llm.py from llm.py)\n"
END = "    # END verbs\n"
_KEPT = {"close", "session"}  # written by hand in both


def verbs(source: str) -> str:
    """Return the public methods of LLM as those of AsyncLLM."""
    (llm,) = [n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == "LLM"]
    methods = [n for n in llm.body if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")]
    return "\n".join(_awaited(source, method) for method in methods if method.name not in _KEPT)


def _awaited(source: str, method: ast.FunctionDef) -> str:
    first = min([method.lineno, *(node.lineno for node in method.decorator_list)])
    text = "".join(line + "\n" for line in source.splitlines()[first - 1 : method.end_lineno])
    whole = ast.get_docstring(method, clean=False) or ""
    text = text.replace(f'"""{whole}"""', f'"""{whole.partition(chr(10) * 2)[0]}"""')
    text = re.sub(r"\bLLM\.", "AsyncLLM.", text)
    text, n_streams = re.subn(r"\) -> Generator\[(\w+), None, None\]:", r") -> AsyncGenerator[\1, None]:", text)
    if n_streams:
        return text
    text = re.sub(r"^    def ", "    async def ", text, flags=re.MULTILINE)
    return re.sub(r"return self\.(_run|_run_turn)\(", r"return await self.\1(", text)


def page(source: str, target: str) -> str:
    """Return the module of AsyncLLM with the verbs of this module of LLM."""
    head, _, rest = target.partition(BEGIN)
    _, mark, tail = rest.partition(END)
    if not mark:
        raise SystemExit(f"{TARGET}: no lines {BEGIN.strip()!r} and {END.strip()!r}")
    return head + BEGIN + verbs(source) + END + tail


if __name__ == "__main__":
    made = page(SOURCE.read_text(encoding="utf-8"), TARGET.read_text(encoding="utf-8"))
    TARGET.write_text(made, encoding="utf-8")
    subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", str(TARGET)], check=True)
