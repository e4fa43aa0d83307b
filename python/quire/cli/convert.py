"""``quire convert``: convert a Hugging Face checkpoint to GGUF."""

from __future__ import annotations

from pathlib import Path

import click

from .help_page import Command
from .model_argument import one_output
from .progress import progress_bar
from .text import note, one_line, size_text

__all__ = ["command"]


@click.command("convert", cls=Command)
@click.argument("folder", metavar="DIR")
@click.argument("out", metavar="OUT.gguf", required=False)
@click.option("-o", "--output", "--outfile", "out_file", metavar="FILE", help="Same as OUT.gguf.")
@click.option(
    "--dtype",
    "--outtype",
    type=click.Choice(["f32", "f16", "bf16", "q8_0"], case_sensitive=False),
    default="bf16",
    show_default=True,
    help="Type of matrices; vectors are stored as f32.",
)
def command(*, folder: str, out: str | None, out_file: str | None, dtype: str) -> None:
    """Convert the Hugging Face checkpoint in DIR to the GGUF file OUT.gguf.

    An existing OUT.gguf is replaced only once the new file is complete.
    """
    out = one_output(out, out_file)
    if out is None:
        raise click.UsageError("no output file: use quire convert DIR OUT.gguf")
    from ..checkpoints.conversion import convert

    with progress_bar("converting") as advance:
        convert(folder, out, dtype, progress=advance)
    note(f"wrote {one_line(out)}, {size_text(Path(out).stat().st_size)}")
