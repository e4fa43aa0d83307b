"""``quire convert``: convert a Hugging Face checkpoint to GGUF."""

from __future__ import annotations

from pathlib import Path

import click

from ..errors import UnsupportedError
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
@click.option("--mmproj", "only_encoder", is_flag=True, help="Write only the encoder of images or sounds, to OUT.gguf.")
@click.option("--no-mmproj", "no_encoder", is_flag=True, help="Leave out the encoder of images or sounds.")
def command(
    *, folder: str, out: str | None, out_file: str | None, dtype: str, only_encoder: bool, no_encoder: bool
) -> None:
    """Convert the Hugging Face checkpoint in DIR to the GGUF file OUT.gguf.

    The encoder of a model that reads images or sounds is written beside it, to mmproj-OUT.gguf.  An existing file is
    replaced only once the new one is complete.
    """
    out = one_output(out, out_file)
    if out is None:
        raise click.UsageError("no output file: use quire convert DIR OUT.gguf")
    if only_encoder and no_encoder:
        raise click.UsageError("--mmproj and --no-mmproj exclude each other")
    from ..checkpoints.conversion import convert
    from ..checkpoints.conversion.projector import convert_projector
    from ..checkpoints.reading import has_encoder

    dtype = dtype.lower()
    if only_encoder:
        convert_projector(folder, out, dtype)
        _tell(Path(out))
        return
    with progress_bar("converting") as advance:
        convert(folder, out, dtype, progress=advance)
    _tell(Path(out))
    if no_encoder or not has_encoder(Path(folder)):
        return
    encoder = Path(out).with_name(f"mmproj-{Path(out).name}")
    try:
        convert_projector(folder, encoder, dtype)
    except UnsupportedError as error:
        note(f"only the text model was written: {one_line(str(error))}")
    else:
        _tell(encoder)


def _tell(path: Path) -> None:
    note(f"wrote {one_line(str(path))}, {size_text(path.stat().st_size)}")
