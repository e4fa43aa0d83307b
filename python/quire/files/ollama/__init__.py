"""Model files in Ollama's own form, read as llama.cpp would have written them.

Ollama's library has files with keys and tensor names of its own, and with the encoder of images in the same file.
``text`` and ``encoders`` have a table of each family's differences.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ...errors import UnsupportedError
from ..gguf import GGUFReader

if TYPE_CHECKING:
    from ..gguf import LoadMode

__all__ = ["has_inner_encoder", "open_encoder_file", "open_model_file"]

# Tensors of an encoder that is in the file of the text model.
_ENCODER = ("v.", "a.", "mm.")


def open_model_file(path: str | os.PathLike[str], load: LoadMode = "mmap") -> GGUFReader:
    """Open the file of a text model; raises as ``GGUFReader``."""
    from .text import FORMS

    reader = GGUFReader(path, load)
    form = FORMS.get(reader.metadata.text("general.architecture", ""))
    return reader if form is None or not form.fits(reader) else form.translated(reader)


def open_encoder_file(path: str | os.PathLike[str], load: LoadMode = "mmap") -> GGUFReader:
    """Open an ``mmproj`` file, or the encoder in the file of a text model.

    Raises:
        LoadError: Something is wrong with the file.
        CapacityError: As in ``GGUFReader``.
        UnsupportedError: Encoders of this family are unsupported in the file of the text model.
    """
    from .encoders import FORMS

    reader = GGUFReader(path, load)
    arch = reader.metadata.text("general.architecture", "")
    form = FORMS.get(arch)
    if form is not None and form.fits(reader):
        return form.translated(reader)
    if arch != "clip" and has_inner_encoder(reader):
        raise UnsupportedError(
            f"[media] the encoder of {arch:.40} in Ollama's own form is unsupported: give llama.cpp's with --mmproj"
        )
    return reader


def has_inner_encoder(reader: GGUFReader) -> bool:
    """Return True if the file of a text model has the tensors of an encoder, too; Whisper's is a part of the model."""
    from .view import TranslatedReader

    stored = reader.source if isinstance(reader, TranslatedReader) else reader
    if stored.metadata.text("general.architecture", "") == "whisper":
        return False
    return any(info.name.startswith(_ENCODER) for info in stored.tensors)
