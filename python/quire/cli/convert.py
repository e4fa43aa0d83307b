"""``quire convert``: a Hugging Face checkpoint to a GGUF file."""

from __future__ import annotations

from pathlib import Path

import click

from .progress import progress_bar
from .text import note, one_line, size_text

__all__ = ["command"]


@click.command("convert")
@click.argument("folder", metavar="DIR")
@click.argument("out", metavar="OUT.gguf")
@click.option(
    "--dtype",
    type=click.Choice(["f32", "f16", "bf16", "q8_0"]),
    default="bf16",
    show_default=True,
    help="Type of matrices; vectors are f32.",
)
def command(*, folder: str, out: str, dtype: str) -> None:
    """Write the Hugging Face checkpoint in DIR as the GGUF file OUT.gguf.

    OUT.gguf is replaced when, and only when, the new file is complete.
    """
    from ..convert import convert

    with progress_bar("converting") as advance:
        convert(folder, out, dtype, progress=advance)
    note(f"wrote {one_line(out)}, {size_text(Path(out).stat().st_size)}")
