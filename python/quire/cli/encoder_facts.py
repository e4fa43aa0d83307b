"""Facts about a model's encoders of images and sounds, for ``quire info``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import QuireError
from .text import one_line, size_text

if TYPE_CHECKING:
    from ..files.gguf import GGUFReader

__all__ = ["EncoderFacts", "encoder_facts", "encoder_file", "print_encoders"]

_CLIP = "clip"  # the architecture of mmproj files


@dataclass(frozen=True)
class EncoderFacts:
    """The encoders of a file or folder.

    Attributes:
        kinds: What a model reads with them besides text: ``image``, ``audio``.
        projectors: Their names in the file.
        unused_because: Why they cannot be used; None if they can.
    """

    path: str
    kinds: tuple[str, ...] = ()
    projectors: tuple[str, ...] = ()
    n_parameters: int = 0
    size_bytes: int = 0
    unused_because: str | None = None


def encoder_file(path: Path) -> GGUFReader | None:
    """Open an ``mmproj`` file; None for other files and folders.  LoadError for a file that is damaged."""
    from ..files.gguf import GGUFReader

    reader = GGUFReader(path) if path.is_file() else None
    return reader if reader is not None and _is_encoder(reader) else None


def _is_encoder(reader: GGUFReader) -> bool:
    return reader.metadata.text("general.architecture", "") == _CLIP


def encoder_facts(path: Path, reader: GGUFReader) -> EncoderFacts | None:
    """Describe the encoders of an ``mmproj`` file, or those that lie with a model; None for a model without any."""
    from ..engine.loading.media import check_encoders, encoder_shapes, media_source
    from ..files.ollama import has_inner_encoder

    source = path
    if not _is_encoder(reader):
        found = media_source("auto", path)
        if found is None and not has_inner_encoder(reader):
            return None
        source = path if found is None else found.path
    from ..models import load_model
    from ..models.media import load_media  # late: it imports numpy

    facts = EncoderFacts(str(source))
    try:
        with encoder_shapes(source) as shapes:
            facts = EncoderFacts(
                str(source),
                projectors=_projectors(shapes),
                n_parameters=sum(math.prod(info.shape) for info in shapes.tensors),
                size_bytes=sum(info.size_bytes for info in shapes.tensors),
            )
            encoders = load_media(shapes)
            if not _is_encoder(reader):
                check_encoders(encoders, load_model(reader))
    except QuireError as error:
        return EncoderFacts(**{**vars(facts), "unused_because": str(error)})
    return EncoderFacts(**{**vars(facts), "kinds": tuple(sorted(encoders, reverse=True))})


def _projectors(reader: GGUFReader) -> tuple[str, ...]:
    keys = (f"{_CLIP}.projector_type", f"{_CLIP}.vision.projector_type", f"{_CLIP}.audio.projector_type")
    return tuple(dict.fromkeys(reader.metadata.text(key) for key in keys if key in reader.metadata))


def print_encoders(facts: EncoderFacts | None, path: Path) -> None:
    """Print what the model at ``path`` reads with its encoders; nothing for a model without any."""
    if facts is None:
        return
    name = "own encoder" if facts.path == str(path) else one_line(Path(facts.path).name)
    told = ", ".join([*facts.projectors, f"{facts.n_parameters:,} parameters", size_text(facts.size_bytes)])
    if facts.unused_because is not None:
        print(f"input: text ({name} cannot be used: {one_line(facts.unused_because)})")
        return
    print(f"input: {', '.join(('text', *facts.kinds))} ({name}: {told})")
