"""Open the vision encoder that belongs to a model."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import LoadError, UnsupportedError
from ...files.gguf import GGUFReader

if TYPE_CHECKING:
    from ..._native.core import Device
    from ...params.engine_options import EngineConfig
    from ...tokenizer import Tokenizer
    from ..vision import Vision

__all__ = ["opened_vision", "vision_source"]


def vision_source(mmproj: str | None, model: Path) -> str | None:
    """Return the file or folder of the vision encoder; ``"auto"`` stands for the one that lies with the model.

    Raises:
        LoadError: There is none, or several, or the path does not exist.
    """
    if mmproj is None:
        return None
    if mmproj != "auto":
        if not Path(mmproj).exists():
            raise LoadError(f"[vision] mmproj not found: {mmproj}")
        return mmproj
    if model.is_dir():
        return str(model)
    found = sorted(path for path in model.parent.glob("*mmproj*.gguf") if path != model)
    if len(found) != 1:
        names = ", ".join(path.name for path in found[:4]) or "no mmproj*.gguf"
        raise LoadError(f"[vision] {names} in {model.parent}: name the vision encoder with mmproj")
    return str(found[0])


def opened_vision(config: EngineConfig, tokenizer: Tokenizer | None, device: Device) -> Vision | None:
    """Open the encoder that the options name; None without one.

    Raises:
        LoadError: The file or folder is malformed, or does not belong to the model.
        UnsupportedError: The encoder's kind is unknown.
    """
    if config.mmproj is None:
        return None
    if tokenizer is None:
        raise UnsupportedError("[vision] images need a model with a vocabulary")
    from ..vision import Vision, VisionEncoder  # late: it imports numpy

    path = Path(config.mmproj)
    with ExitStack() as stack:
        reader = _folder_reader(stack, path) if path.is_dir() else GGUFReader(path)
        encoder = VisionEncoder(reader, device, threads=config.threads, kernels=config.kernels)
    model = encoder.model
    pads = tokenizer.encode(model.pad, add_special=False, parse_special=True)
    if len(pads) != 1:
        raise LoadError(f"[vision] {model.pad!r} is not a token of the model: the vision encoder is another model's")
    return Vision(encoder, model.processor, pads[0], model.markup)


def _folder_reader(stack: ExitStack, folder: Path) -> GGUFReader:
    import tempfile

    from ...checkpoints.conversion.projector import ProjectorReader
    from ...checkpoints.reading import checkpoint_dtype

    scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="quire-"))
    return stack.enter_context(ProjectorReader(folder, Path(scratch), checkpoint_dtype(folder)))
