"""Write docs/options.md: the engine's options, and what Quire does with those of other programs.

    PYTHONPATH=python python ci/make_options_page.py [--missing HELP]

``--missing`` reads another program's help text instead and lists its options that are missing in the table.
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
HEAD = """# Engine options, and options of other programs

`ci/make_options_page.py` writes this page.

## The engine

The options by their names in Python (`LLM`, `AsyncLLM`, `EngineConfig`) and on the command line. Those marked *(serve)*
concern several requests, so only `quire serve` has them.

| Python | default | command line | description |
|---|---|---|---|
"""
PROGRAM = """
## {program}

{intro}
- *works*: the option is translated to the one in the fourth column. It works in the commands of the last column; the
  others exit with 2 and name those commands.
- *note*: the option is accepted without effect. A line on standard error says why.
- *refused*: the command exits with 2 and says what to do instead.

| option | variable | | Quire's option, or the reason | commands |
|---|---|---|---|---|
"""
INTROS = {
    "llama.cpp": "Options of `llama-cli`, `llama-server` and related programs. A short option of several letters, such"
    " as `-ngl`, is never read as several options.",
    "vLLM": "Options of `vllm serve`, with dashes or underscores.",
    "Ollama": "Options of `ollama run`, `pull` and `show`, parameters of Modelfiles, and environment variables.",
    "others": "Options of transformers, MLX and other programs.",
}
# Commands that run a model; a row that works in all of them says so in short.
RUNNING = ("run", "chat", "serve", "embed", "rerank", "imatrix", "perplexity", "bench")


def engine_rows() -> list[str]:
    """Return the rows of the engine's options."""
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
    """Return the commands that have an option, by its names."""
    context = click.Context(cli)
    found: dict[str, tuple[str, ...]] = {}
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        for flag in {flag for each in command.params for flag in (*each.opts, *each.secondary_opts)}:
            found[flag] = (*found.get(flag, ()), name)
    return found


def where(row: ForeignOption) -> str:
    """Return the commands in which a row works."""
    if row.verdict != "works":
        return ""
    found = commands_with()["--host" if row.how == "address" else row.target]
    rest = [name for name in found if name not in RUNNING]
    return ", ".join(["all that run a model", *rest]) if set(RUNNING) <= set(found) else ", ".join(found)


def foreign_row(row: ForeignOption) -> str:
    """Format one row of a program."""
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
    """Return the whole page."""
    parts = [HEAD, "\n".join(engine_rows()), "\n"]
    for program, intro in INTROS.items():
        parts.append(PROGRAM.format(program=program, intro=intro))
        parts.append("\n".join(foreign_row(row) for row in ROWS if row.program == program) + "\n")
    return "".join(parts)


def missing(text: str) -> list[str]:
    """Return the options in a help text that are missing in the table."""
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
