"""The layout of ``--help``: common options first, the others by subject, then examples and where the docs are."""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from .help_sections import Section

__all__ = ["Command", "options_by_section", "page_settings"]

_SHORT = "quire.cli.help_page.short"
_FEW = 14  # up to this many options are listed without headings
_RANGE = re.compile(r"(?:;\s*)?(?:-?[\d.]+<=?)?x(?:<=?-?[\d.]+|>=?-?[\d.]+)?\]$")
_EMPTY = re.compile(r"\s*\[\]$")


def page_settings() -> dict[str, Any]:
    """Return settings for the program's context: the help options, and lines up to 100 columns wide."""
    return {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class Command(click.Command):
    """A command whose help is grouped.  ``-h`` shows only the first group, ``--help`` all of them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments and remember which kind of help they ask for."""
        ctx.meta[_SHORT] = "-h" in args and "--help" not in args
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under their headings, then the examples."""
        from .help_sections import EXAMPLES

        sections = options_by_section(self, ctx)
        is_short = ctx.meta.get(_SHORT) and len(sections) > 1
        for title, rows in sections[:1] if is_short else sections:
            with formatter.section(title):
                formatter.write_dl(rows, col_max=34)
        if is_short:
            formatter.write_paragraph()
            formatter.write(f"{ctx.command_path} --help lists all {sum(len(rows) for _, rows in sections)} options.\n")
        if self.name is not None and self.name in EXAMPLES:
            with formatter.section("Examples"):
                for line in EXAMPLES[self.name]:
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write where the documentation is."""
        from .help_sections import docs_of

        formatter.write_paragraph()
        formatter.write(f"Documentation: {docs_of(self.name or '')}\n")


def options_by_section(command: click.Command, ctx: click.Context) -> list[tuple[str, list[tuple[str, str]]]]:
    """List every option once, under the first heading that names it; the rest go under the last heading."""
    from .help_sections import SECTIONS

    rest = {
        parameter.name or "": record
        for parameter in command.get_params(ctx)
        if isinstance(parameter, click.Option) and (record := _record(parameter, ctx)) is not None
    }
    sections: tuple[Section, ...] = SECTIONS.get(command.name or "", ())
    if len(rest) <= _FEW:
        return [("Options", list(rest.values()))]
    found = []
    shown_help = getattr(command.get_help_option(ctx), "name", "")
    for section in sections:
        names = (*section.options, shown_help) if section is sections[0] else section.options
        rows = [rest.pop(name) for name in names if name in rest]
        if rows:
            found.append((section.title, rows))
    return [*found, ("Other options", list(rest.values()))] if rest else found


def _record(option: click.Option, ctx: click.Context) -> tuple[str, str] | None:
    """Return the option's names and help text, without its numeric range, which errors report.

    Only the first short and the first long name are shown; docs/options.md has all of them.
    """
    shown = copy.copy(option)
    long = [name for name in option.opts if name.startswith("--")][:1]
    shown.opts = [name for name in option.opts if not name.startswith("--")][:1] + long
    record = shown.get_help_record(ctx)
    if record is None:
        return None
    names, text = record
    return names, _EMPTY.sub("", _RANGE.sub("]", text)).strip()
