"""Open the encoders of images and sounds that belong to a model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ..._native.core import DType
from ...errors import LoadError, ShapeError, UnsupportedError
from ...files.gguf import GGUFReader
from ...files.ollama import open_encoder_file
from .kernel_choice import cache_dtype

if TYPE_CHECKING:
    from ..._native.core import Device
    from ..._native.kernels import KernelSet
    from ...models import LoadedModel
    from ...models.media import Kind, MediaModel
    from ...params.engine_options import CacheDType, EngineConfig
    from ...tokenizer import Tokenizer
    from ..media import MediaInput

__all__ = ["MediaSource", "check_encoders", "encoder_shapes", "media_source", "opened_media", "opened_source"]

_LOG = logging.getLogger("quire")


@dataclass(frozen=True)
class MediaSource:
    """The file or folder of a model's encoders.

    ``is_found``: nobody named it, so that the model reads text only if it cannot be used.
    """

    path: Path
    is_found: bool


def media_source(mmproj: str | None, model: Path) -> MediaSource | None:
    """Return the file or folder of the encoders, for the option ``mmproj``; None for text only.

    Raises:
        LoadError: The option names a file that does not exist.
    """
    if mmproj is None:
        return None
    if mmproj != "auto":
        if not Path(mmproj).exists():
            raise LoadError(f"[media] mmproj not found: {mmproj}")
        return MediaSource(Path(mmproj), is_found=False)
    from ...checkpoints.reading import has_encoder
    from ...hub.projectors import projector_of

    found = projector_of(model)
    if found is None or (found.is_dir() and not has_encoder(found)):
        return None
    return MediaSource(found, is_found=True)


def opened_source(
    reader: GGUFReader,
    config: EngineConfig,
    tokenizer: Tokenizer | None,
    device: Device,
    *,
    kernel_set: KernelSet | None,
) -> MediaInput:
    """Open the encoder in the file of an encoder-decoder model that hears.  Raises as ``opened_media``."""
    if tokenizer is None:
        raise UnsupportedError("[media] transcripts need a model with a vocabulary")
    from ...models.media.whisper import load_source
    from ..media import MediaEncoder, MediaInput  # late: it imports numpy

    encoder = MediaEncoder(
        load_source(reader), device, threads=config.threads, kernels=config.kernels, kernel_set=kernel_set,
        kv_dtype=_kv_dtype(reader, kernel_set),
    )  # fmt: skip
    return MediaInput({"audio": encoder}, tokenizer.control_tokens.__getitem__)


class _OtherModelsError(LoadError):
    """The encoders belong to another model."""


def opened_media(
    source: MediaSource | None,
    config: EngineConfig,
    model: LoadedModel,
    tokenizer: Tokenizer | None,
    device: Device,
    *,
    kernel_set: KernelSet | None,
) -> MediaInput | None:
    """Open the encoders of a model; None without any, or if those that were found cannot be used, which is logged.

    Raises:
        LoadError: The file or folder is malformed, or does not belong to the model.
        UnsupportedError: The encoder's kind is unknown, or the model's architecture reads text only.
    """
    if source is None:
        return None
    try:
        return _opened(source.path, config, model, tokenizer, device, kernel_set=kernel_set)
    except _OtherModelsError as error:
        if not source.is_found:
            raise
        _LOG.info("%s", error)
    except (LoadError, ShapeError, UnsupportedError) as error:
        if not source.is_found:
            raise
        _LOG.warning("[media] cannot use %s, reading text only: %s", source.path.name, error)
    return None


def _opened(
    path: Path,
    config: EngineConfig,
    model: LoadedModel,
    tokenizer: Tokenizer | None,
    device: Device,
    *,
    kernel_set: KernelSet | None,
) -> MediaInput:
    if tokenizer is None:
        raise UnsupportedError("[media] images need a model with a vocabulary")
    from ...models.media import load_media
    from ..media import MediaEncoder, MediaInput  # late: it imports numpy

    def token_of(text: str) -> int:
        ids = tokenizer.encode(text, add_special=False, parse_special=True)
        if len(ids) != 1:
            raise _OtherModelsError(f"[media] {text!r} is not a token of the model: the encoder is another model's")
        return ids[0]

    # The weights of a checkpoint are converted when the first item arrives; until then their shapes are enough.
    with_weights = _once(partial(_converted, path)) if path.is_dir() else None
    with encoder_shapes(path) as reader:
        models, kv_dtype = load_media(reader), _kv_dtype(reader, kernel_set)
    check_encoders(models, model)
    encoders = {
        kind: MediaEncoder(
            encoder, device, threads=config.threads, kernels=config.kernels, kernel_set=kernel_set, kv_dtype=kv_dtype,
            with_weights=None if with_weights is None else partial(with_weights, kind),
        )
        for kind, encoder in models.items()
    }  # fmt: skip
    media = MediaInput(encoders, token_of)
    if "image" in models and find_spec("PIL") is None:
        raise UnsupportedError('images need Pillow: pip install "quire-llm[media]"')
    return media


def check_encoders(encoders: Mapping[Kind, MediaModel], model: LoadedModel) -> None:
    """Raise an error if a model cannot read what these encoders return."""
    dim = model.config.dim
    if any(encoder.gives_vectors for encoder in encoders.values()):
        from ...models.clip_text import ClipText

        text = model.model
        if not isinstance(text, ClipText) or any(encoder.n_out != text.n_out for encoder in encoders.values()):
            raise _OtherModelsError(
                "[media] the encoder makes vectors unlike those of the model: it is another model's"
            )
        return
    for encoder in encoders.values():
        if encoder.n_out % dim:
            raise _OtherModelsError(
                f"[media] the encoder returns {encoder.n_out} numbers, the model has a width of {dim}: it is another "
                "model's"
            )
    model.trace(1, media_width=max(encoder.n_out for encoder in encoders.values()))


def encoder_bytes(source: MediaSource | None, config: EngineConfig, device: Device) -> int:
    """Return the bytes that encoders take on a device with the first image, which may be of ``FIRST_PATCHES``.

    0 without any, and if they cannot be used.  Larger images take more when they arrive.
    """
    if source is None:
        return 0
    from ...models.media import load_media
    from ..media import memory_of

    kernels = config.kernels
    try:
        with encoder_shapes(source.path) as reader:
            n_bytes = sum(memory_of(model, device, kernels) for model in load_media(reader).values())
            return n_bytes + (reader.size_bytes if device.kind == "cpu" else 0)
    except (LoadError, ShapeError, UnsupportedError):
        return 0  # ``opened_media`` tells


@contextmanager
def encoder_shapes(path: Path) -> Iterator[GGUFReader]:
    """Read an ``mmproj`` file, or a checkpoint as the file that it would be converted to, with zeros as weights."""
    if not path.is_dir():
        yield open_encoder_file(path)
        return
    with _folder_reader(path) as reader:
        yield GGUFReader(reader.path)


def _kv_dtype(reader: GGUFReader, kernel_set: KernelSet | None) -> CacheDType:
    """Return the type of keys and values: BF16 if products with the file's matrices round to BF16 as well.

    Products of F16 are computed in F32, which takes longer.
    """
    is_exact = any(info.name.endswith("attn_out.weight") and info.dtype == DType("f32") for info in reader.tensors)
    return cache_dtype("auto", None if is_exact else kernel_set)


def _converted(folder: Path) -> Mapping[Kind, MediaModel]:
    """Read the encoders of a checkpoint."""
    from ...models.media import load_media

    with _folder_reader(folder) as reader:
        return load_media(reader)


def _once(load: Callable[[], Mapping[Kind, MediaModel]]) -> Callable[[Kind], MediaModel]:
    """Return a function that loads all encoders at its first call, and returns one of them."""
    loaded: dict[Kind, MediaModel] = {}

    def get(kind: Kind) -> MediaModel:
        if not loaded:
            loaded.update(load())
        return loaded.pop(kind)

    return get


@contextmanager
def _folder_reader(folder: Path) -> Iterator[GGUFReader]:
    import tempfile

    from ...checkpoints.conversion.projector import ProjectorReader
    from ...checkpoints.reading import checkpoint_dtype

    with (
        tempfile.TemporaryDirectory(prefix="quire-") as scratch,
        ProjectorReader(folder, Path(scratch), checkpoint_dtype(folder)) as reader,
    ):
        yield reader
