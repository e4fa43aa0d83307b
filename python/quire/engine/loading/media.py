"""Open the encoders of images and sounds that belong to a model."""

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
    from ..media import MediaInput

__all__ = ["media_source", "opened_media"]


def media_source(mmproj: str | None, model: Path) -> str | None:
    """Return the file or folder of the encoders; ``"auto"`` stands for the one that lies with the model.

    Raises:
        LoadError: There is none, or several, or the path does not exist.
    """
    if mmproj is None:
        return None
    if mmproj != "auto":
        if not Path(mmproj).exists():
            raise LoadError(f"[media] mmproj not found: {mmproj}")
        return mmproj
    if model.is_dir():
        return str(model)
    found = sorted(path for path in model.parent.glob("*mmproj*.gguf") if path != model)
    if len(found) != 1:
        names = ", ".join(path.name for path in found[:4]) or "no mmproj*.gguf"
        raise LoadError(f"[media] {names} in {model.parent}: name the encoder with mmproj")
    return str(found[0])


def opened_media(config: EngineConfig, tokenizer: Tokenizer | None, device: Device) -> MediaInput | None:
    """Open the encoders that the options name; None without any.

    Raises:
        LoadError: The file or folder is malformed, or does not belong to the model.
        UnsupportedError: The encoder's kind is unknown.
    """
    if config.mmproj is None:
        return None
    if tokenizer is None:
        raise UnsupportedError("[media] images need a model with a vocabulary")
    from ...models.media import load_media
    from ..media import MediaEncoder, MediaInput  # late: it imports numpy

    def token_of(text: str) -> int:
        ids = tokenizer.encode(text, add_special=False, parse_special=True)
        if len(ids) != 1:
            raise LoadError(f"[media] {text!r} is not a token of the model: the encoder is another model's")
        return ids[0]

    path = Path(config.mmproj)
    with ExitStack() as stack:
        models = load_media(_folder_reader(stack, path) if path.is_dir() else GGUFReader(path))
    encoders = {
        kind: MediaEncoder(model, device, threads=config.threads, kernels=config.kernels)
        for kind, model in models.items()
    }
    return MediaInput(encoders, token_of)


def _folder_reader(stack: ExitStack, folder: Path) -> GGUFReader:
    import tempfile

    from ...checkpoints.conversion.projector import ProjectorReader
    from ...checkpoints.reading import checkpoint_dtype

    scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="quire-"))
    return stack.enter_context(ProjectorReader(folder, Path(scratch), checkpoint_dtype(folder)))
