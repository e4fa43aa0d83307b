"""Write docs/options.md: what becomes of other programs' options and variables, and which options the engine has.

    PYTHONPATH=python python ci/make_options_page.py [--missing HELP]

``--missing`` reads the help text of a program instead, and names its options that the table does not have.
"""

from __future__ import annotations

import re
import sys
from dataclasses import fields
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))
import click  # noqa: E402
from quire.cli.foreign_table import ROWS, ForeignOption  # noqa: E402
from quire.cli.main import COMMANDS, cli  # noqa: E402
from quire.params.engine_options import EngineConfig, engine_options  # noqa: E402

PAGE = ROOT / "docs" / "options.md"
HEAD = """# Options of the engine, and those of other programs

This page is written by `ci/make_options_page.py`.

## The engine

The same options by their names in Python (`LLM`, `AsyncLLM`, `EngineConfig`) and on the command line; some are for
`quire serve` alone, as they are about several requests.

| Python | default | command line | what |
|---|---|---|---|
"""
PROGRAM = """
## {program}

{intro}
*works*: it stands for our option. *note*: it is accepted, and a line on standard error tells why it has no effect.
*refused*: the command ends with exit code 2 and tells what to do. The last column has the commands in which it works;
the others say so and end with exit code 2, too.

| option | variable | what becomes of it | | commands |
|---|---|---|---|---|
"""
INTROS = {
    "llama.cpp": "Names of `llama-cli`, `llama-server` and their kin, long and short. A short name of several letters"
    " is never torn apart into others.",
    "vLLM": "Names of `vllm serve`, with dashes or underscores.",
    "Ollama": "Options of `ollama run`, `pull` and `show`, names of parameters, and variables.",
    "others": "What users of transformers, MLX and other programs type.",
}
# Those that open a model to run it: where a row has all of them, it says so.
RUNNING = ("run", "chat", "serve", "embed", "rerank", "imatrix", "perplexity", "bench")


def engine_rows() -> list[str]:
    """The engine's options."""
    rows, known = [], engine_options()
    for entry in fields(EngineConfig):
        option = known[entry.name]
        flags = " ".join(f"`{flag}`" for flag in option.flags.split())
        text = option.text.replace("|", "\\|")
        where = " (serve)" if option.server_only else ""
        rows.append(f"| `{entry.name}` | `{entry.default!r}` | {flags}{where} | {text} |")
    return rows


@cache
def commands_with() -> dict[str, tuple[str, ...]]:
    """The commands that have an option, by its names."""
    context = click.Context(cli)
    found: dict[str, tuple[str, ...]] = {}
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        for flag in {flag for each in command.params for flag in (*each.opts, *each.secondary_opts)}:
            found[flag] = (*found.get(flag, ()), name)
    return found


def where(row: ForeignOption) -> str:
    """The commands in which a row works; the others refuse it by name."""
    if row.verdict != "works":
        return ""
    found = commands_with()["--host" if row.how == "address" else row.target]
    rest = [name for name in found if name not in RUNNING]
    return ", ".join(["all that run a model", *rest]) if set(RUNNING) <= set(found) else ", ".join(found)


def foreign_row(row: ForeignOption) -> str:
    """One row of a program."""
    names = " ".join(f"`{name}`" for name in row.names)
    text = row.text
    if row.verdict == "works":
        text = f"`{row.target}{'' if row.value is None else ' ' + row.value}`"
        if row.elsewhere:
            text += f"; elsewhere: {row.elsewhere}"
    if row.neutral:
        text += f" ({', '.join(row.neutral)}: no effect)"
    variable = f"`{row.env}`" if row.env else ""
    return f"| {names} | {variable} | {row.verdict} | {text} | {where(row)} |".replace("\\ ", "\\\\ ")


def page() -> str:
    """The whole page."""
    parts = [HEAD, "\n".join(engine_rows()), "\n"]
    for program, intro in INTROS.items():
        parts.append(PROGRAM.format(program=program, intro=intro))
        parts.append("\n".join(foreign_row(row) for row in ROWS if row.program == program) + "\n")
    return "".join(parts)


def missing(text: str) -> list[str]:
    """Options that a help text shows and the table does not have."""
    known = {name for row in ROWS for name in row.names} | {"-h", "--help"}
    found: set[str] = set()
    for line in text.splitlines():
        if line.startswith("-") and not line.startswith("-----"):
            names = re.split(r"\s{2,}(?![-\s])", line)[0]
            found |= set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w.-]*", names))
    return sorted(found - known)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--missing"]:
        print(*missing(Path(sys.argv[2]).read_text(encoding="utf-8")), sep="\n")
    else:
        PAGE.write_text(page(), encoding="utf-8")
