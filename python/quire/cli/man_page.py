"""Build the manual page of all commands from their help texts."""

from __future__ import annotations

import click

from .help_page import options_by_section, page_settings
from .help_sections import COMMAND_GROUPS, EXAMPLES

__all__ = ["man_page"]

_EXIT_CODES = (
    ("0", "success"), ("1", "an error of Quire or of the system"), ("2", "incorrect usage"),
    ("3", "a file or model that cannot be loaded"), ("130", "Ctrl-C"), ("141", "the reader of a pipe closed it"),
)  # fmt: skip
_VARIABLES = (
    ("HF_TOKEN, HF_HOME, HF_ENDPOINT, HF_HUB_OFFLINE", "as for huggingface_hub"),
    ("QUIRE_MODELS", "the registry file of model names [~/.config/quire/models.toml]"),
    ("QUIRE_LOG=debug", "adds the traceback to errors"),
)


def man_page() -> str:
    """Return the page as troff text; ``man -l -`` shows it."""
    from .main import cli

    root = click.Context(cli, info_name="quire", **page_settings())
    parts = [
        '.TH QUIRE 1 "" "Quire" "User commands"',
        ".SH NAME\nquire \\- run language models on this machine",
        ".SH SYNOPSIS\n.B quire\n.I COMMAND\n[\\fIOPTIONS\\fR] [\\fIARGUMENTS\\fR]",
        f".SH DESCRIPTION\n{_paragraphs(cli.help or '')}",
    ]
    for title, names in COMMAND_GROUPS:
        parts.append(f".SH {_text(title.upper())}")
        parts += [_command(root, name) for name in names]
    parts.append(".SH EXIT STATUS\n" + "\n".join(map(_entry, _EXIT_CODES)))
    parts.append(".SH ENVIRONMENT\n" + "\n".join(map(_entry, _VARIABLES)))
    parts.append(".SH EXAMPLES\n" + _code(EXAMPLES["quire"]))
    return "\n".join(parts) + "\n"


def _command(root: click.Context, name: str) -> str:
    from .main import cli

    command = cli.get_command(root, name)
    assert command is not None
    context = click.Context(command, info_name=name, parent=root)
    usage = " ".join(command.collect_usage_pieces(context))
    parts = [f".SS quire {name} {_text(usage)}", _paragraphs(command.help or "")]
    for title, rows in options_by_section(command, context):
        parts.append(f".PP\n\\fI{_text(title)}\\fR")
        parts += map(_entry, rows)
    if name in EXAMPLES:
        parts.append(".PP\n\\fIExamples\\fR\n" + _code(EXAMPLES[name]))
    return "\n".join(parts)


def _entry(row: tuple[str, str]) -> str:
    return f".TP\n.B {_text(row[0])}\n{_text(row[1])}"


def _paragraphs(text: str) -> str:
    paragraphs = (" ".join(part.split()) for part in text.split("\n\n"))
    return "\n.PP\n".join(map(_text, filter(None, paragraphs)))


def _code(lines: tuple[str, ...]) -> str:
    return ".PP\n.nf\n" + "\n".join(map(_text, lines)) + "\n.fi"


def _text(text: str) -> str:
    """Escape text so that troff reads no requests or escapes in it."""
    shown = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return f"\\&{shown}" if shown.startswith(".") else shown
