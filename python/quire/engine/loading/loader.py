"""Open a model file and start its decoder."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from ...errors import LoadError, UnsupportedError
from ...files.gguf import GGUFReader
from ...files.ollama import has_inner_encoder, open_model_file
from ...models import load_model
from ...params.engine_options import CacheDType, EngineConfig
from ...tokenizer import Tokenizer
from ...tokenizer.from_gguf import read_metadata
from .adapter_needs import library_bytes, takes_adapters
from .device_choice import device_at_hand, devices_of
from .draft import opened_draft, predictor_beside, wants_predictor
from .fit import Fit, fitted
from .kernel_choice import cache_dtype, kernel_set_of
from .key_overrides import apply_overrides
from .media import MediaSource, encoder_bytes, media_source, opened_media, opened_source
from .model_names import named_model
from .model_needs import needs_of
from .opened_model import ModelParts, OpenedModel
from .placement import asks_for_two_devices, memory_of_all
from .ranks import Follower, Rank, n_ranks_of, rank_config, start_ranks
from .shown_name import shown_name
from .sizes import check_weights

if TYPE_CHECKING:
    from ..._native.core import Device, Tensor
    from ..._native.engine import Decoder
    from ...models import LoadedModel
    from ..media import MediaInput

__all__ = [
    "fit_of",
    "open_decoder",
    "open_model",
    "open_reader",
    "open_share",
    "packaged_model",
]

_LOG = logging.getLogger("quire")
_T = TypeVar("_T")
# For an encoder-decoder model without a template: the messages on lines, ended like a text.
_SOURCE_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}{% if not loop.last %}\n{% endif %}{% endfor %}"
    "{{ eos_token }}"
)


def packaged_model() -> Path:
    """Return the path of the packaged model.  LoadError if the package was built without it."""
    path = Path(__file__).parents[2] / "data" / "tiny-chat-q8_0.gguf"
    if not path.is_file():
        raise LoadError(f"[loader] the packaged model is missing: {path}")
    return path


def open_model(path: str | os.PathLike[str] | None, config: EngineConfig, *, sums_inputs: bool = False) -> OpenedModel:
    """Open a GGUF file, a checkpoint folder, or (None) the package's model, and start its decoder.

    ``sums_inputs``: the executor sums the inputs of its products (``Executor.input_sums``); for stock kernels.

    Raises:
        LoadError: A file is missing or malformed.
        UnsupportedError: An architecture, tokenizer or device is not supported, or this machine lacks the instruction
            set.
        CapacityError: The weights or the cache do not fit into memory.
    """
    source = packaged_model() if path is None else Path(path)
    if n_ranks_of(config) > 1 and not sums_inputs:
        return _open_ranks(source, config)
    config = replace(config, device=device_at_hand(config, is_for_cpu=sums_inputs))
    if not asks_for_two_devices(config):
        kernel_set_of(config, devices_of(config)[0])  # raises before anything is read
    how = _How(ModelParts.start, sums_inputs, media_source(config.mmproj, source))
    return _open(source, config, how)


def _open_ranks(source: Path, config: EngineConfig) -> OpenedModel:
    """Open a model that several processes run, of which this one leads."""
    ranks = start_ranks(source, config)  # refuses a device that the options name
    try:
        if config.device != "cpu" and (unused := device_at_hand(config)) != "cpu":
            _LOG.warning("[parallel] the processes of a model run on the CPU: %s is not used", unused)
        own = rank_config(config, 0)
        return _open(source, own, _How(ModelParts.start, False, media_source(own.mmproj, source), ranks))
    except BaseException:
        ranks.end()
        raise


def open_share(path: Path, config: EngineConfig, rank: Follower) -> None:
    """Open another rank's share of a model and run its steps until rank 0 stops.  Raises as ``open_model``."""
    _open(path, rank_config(config, rank.group.rank), _How(ModelParts.follow, False, None, rank))


def _open(source: Path, config: EngineConfig, how: _How[_T]) -> _T:
    return _open_folder(source, config, how) if source.is_dir() else _open_file(source, config, how)


def open_decoder(path: str | os.PathLike[str] | None = None, config: EngineConfig | None = None) -> Decoder:
    """Open a model and return its decoder, on which ``LLM`` is built: it takes token ids and gives events.

    See ``Decoder.submit`` and ``Decoder.wait``.  ``close()`` frees its memory.  Raises the errors of ``LLM``.
    """
    named = named_model(path, "open_decoder")
    return open_model(named.path, named.completed(config or EngineConfig())).decoder


@dataclass(frozen=True)
class _How(Generic[_T]):
    """How the parts of a model are used, and arguments that are no options."""

    run: Callable[[ModelParts], _T]
    sums_inputs: bool
    media: MediaSource | None
    rank: Rank | None = None

    def open(self, reader: GGUFReader, path: Path, config: EngineConfig) -> _T:
        with _parts(reader, path, config, sums_inputs=self.sums_inputs, media=self.media, rank=self.rank) as parts:
            return self.run(parts)


def _open_folder(folder: Path, config: EngineConfig, how: _How[_T]) -> _T:
    """Open a checkpoint, whose tensors are converted one by one as the model asks for them."""
    import tempfile

    from ...checkpoints.conversion import CheckpointReader
    from ...checkpoints.reading import checkpoint_dtype

    with (
        tempfile.TemporaryDirectory(prefix="quire-") as scratch,
        CheckpointReader(folder, Path(scratch), checkpoint_dtype(folder), config.hf_overrides) as reader,
    ):
        if config.quantize is not None:
            return _open_quantized(reader, config, how)
        check_weights(folder.name, reader.size_bytes, memory_of_all(config, devices_of(config)))
        return how.open(reader, Path(reader.path), config)


def _open_quantized(source: GGUFReader, config: EngineConfig, how: _How[_T]) -> _T:
    """Open a model whose tensors are quantized one by one as it asks for them."""
    import tempfile

    from ...quantization import QuantizedReader

    assert config.quantize is not None
    with (
        tempfile.TemporaryDirectory(prefix="quire-") as scratch,
        QuantizedReader(source, Path(scratch), config.quantize, threads=config.threads) as reader,
    ):
        available = memory_of_all(config, devices_of(config))
        check_weights(Path(source.path).name, reader.size_bytes, available)
        return how.open(reader, Path(reader.path), config)


def _open_file(path: Path, config: EngineConfig, how: _How[_T]) -> _T:
    if config.hf_overrides is not None:
        raise UnsupportedError("[engine] hf_overrides needs a checkpoint folder: use override_kv for a GGUF file")
    # Weights in the packed cache are copied from there; mapping the file avoids reading them twice.
    mapped = config.packed_cache is not None and config.load == "copy"
    available = memory_of_all(config, devices_of(config))
    is_quantized = config.quantize is not None
    if path.is_file() and not is_quantized:
        check_weights(path.name, path.stat().st_size, available)  # before any of them is read
    reader = open_model_file(path, "mmap" if mapped or is_quantized else config.load)
    if how.media is None and config.mmproj == "auto" and has_inner_encoder(reader):
        how = replace(how, media=MediaSource(path, is_found=True))
    return _open_quantized(reader, config, how) if is_quantized else how.open(reader, path, config)


def open_reader(
    reader: GGUFReader,
    path: Path,
    config: EngineConfig,
    *,
    sums_inputs: bool = False,
    repack: Literal["no", "keep", "release", "lock"] | None = None,
    media: MediaSource | None = None,
) -> OpenedModel:
    """Open the model that a reader reads.  ``path`` names it and has its vocabulary.  Raises as ``open_model``.

    ``repack``: as in ``Executor``; None: by the options.  ``media``: the model's encoders; None: text only.
    """
    with _parts(reader, path, config, sums_inputs=sums_inputs, repack=repack, media=media) as parts:
        return parts.start()


@contextmanager
def _parts(
    reader: GGUFReader,
    path: Path,
    config: EngineConfig,
    *,
    sums_inputs: bool = False,
    repack: Literal["no", "keep", "release", "lock"] | None = None,
    media: MediaSource | None = None,
    rank: Rank | None = None,
) -> Iterator[ModelParts]:
    if config.device == "default":  # callers that opened the file themselves
        config = replace(config, device=device_at_hand(config, is_for_cpu=sums_inputs or repack is not None))
    devices = devices_of(config)
    apply_overrides(reader, config)
    reader = reader if rank is None else rank.share_of(reader)
    # Converted tensors must not fill the host's memory on their way to a device, so the fit uses the shapes alone.
    is_shape = reader.is_made and devices[0].kind != "cpu"
    has_library = rank is None and takes_adapters(devices, sums_inputs=sums_inputs)
    if rank is None:
        model, adapter_bytes = _adapted(_shape(reader) if is_shape else reader, config, has_library=has_library)
    else:
        model, adapter_bytes = rank.model_of(reader), 0
    config = _within_positions(config, model, reader, path)
    tokenizer = Tokenizer(read_metadata(reader.metadata)) if "tokenizer.ggml.model" in reader.metadata else None
    if tokenizer is not None and tokenizer.chat_template is None and model.config.decoder_start is not None:
        tokenizer = Tokenizer(replace(tokenizer.vocabulary, chat_templates={"default": _SOURCE_TEMPLATE}))
    _check_calls_are_known(tokenizer)
    fit = None
    if devices[0].kind != "cpu":
        fit, kv_dtype = _fitted(path, reader, model, config, adapter_bytes=adapter_bytes, media=media)
        if fit.note:
            _LOG.warning("[fit] %s", fit.note)
        if not fit.devices:
            fit, config = None, replace(config, device="cpu", n_gpu_layers=0)
            devices = devices_of(config)
    if is_shape:
        is_whole = fit is not None and fit.placement is None
        place = devices[0] if is_whole else None
        model, adapter_bytes = _adapted(reader, config, place, has_library=has_library)
    kernel_set = kernel_set_of(config, devices[0], fit.placement if fit else None)
    if fit is None:
        kv_dtype = cache_dtype(config.kv_dtype, kernel_set, is_kept=not model.config.is_encoder)
    # A model on a device may have a part on the CPU, whose kernels are not the encoder's.
    encoder_kernels = kernel_set if devices[0].kind == "cpu" else None
    if model.config.n_source:
        encoders: MediaInput | None = opened_source(reader, config, tokenizer, devices[0], kernel_set=encoder_kernels)
    else:
        encoders = opened_media(media, config, model, tokenizer, devices[0], kernel_set=encoder_kernels)
    predictor = predictor_beside(shown_name(path), model, config, kv_dtype)
    with opened_draft(config, devices[0], tokenizer, model, kv_dtype) as draft:
        yield ModelParts(
            reader, path, config, devices, model, adapter_bytes, tokenizer, fit, kv_dtype, kernel_set,
            drafts=[each for each in (predictor, draft) if each is not None], repack=repack, sums_inputs=sums_inputs,
            has_library=has_library,
            media=encoders, media_bytes=0 if encoders is None or fit else encoder_bytes(media, config, devices[0]),
            media_path=None if encoders is None or media is None else media.path, rank=rank,
        )  # fmt: skip


def _shape(reader: GGUFReader) -> GGUFReader:
    """Return the file of a reader that makes its tensors, with zeros in their place."""
    found = GGUFReader(reader.path)
    found.metadata = reader.metadata
    return found


def _within_positions(config: EngineConfig, model: LoadedModel, reader: GGUFReader, path: Path) -> EngineConfig:
    """Limit the context of encoders, and of models with a table of positions, to their positions; this is logged.

    Other models can go beyond the positions that they were trained on.
    """
    most = model.config.n_ctx_train
    if config.n_ctx is None or config.n_ctx <= most:
        return config
    if not model.config.is_encoder and "position_embd.weight" not in {tensor.name for tensor in reader.tensors}:
        return config
    _LOG.warning(
        "[n_ctx] %d tokens exceed the %d positions of %s: using %d",
        config.n_ctx, most, shown_name(path), most,
    )  # fmt: skip
    return replace(config, n_ctx=most)


def fit_of(reader: GGUFReader, path: Path, config: EngineConfig) -> Fit:
    """Return the fit of a model on the devices of the options, allocating nothing.  Raises as ``open_model``."""
    config = replace(config, device=device_at_hand(config))
    if devices_of(config)[0].kind == "cpu":
        raise UnsupportedError("[fit] nothing to fit on the CPU: choose another device")
    model, adapter_bytes = _adapted(reader, config, has_library=takes_adapters(devices_of(config)))
    media = media_source(config.mmproj, path)
    return _fitted(path, reader, model, config, adapter_bytes=adapter_bytes, media=media)[0]


def _fitted(
    path: Path,
    reader: GGUFReader,
    model: LoadedModel,
    config: EngineConfig,
    *,
    adapter_bytes: int,
    media: MediaSource | None,
) -> tuple[Fit, CacheDType]:
    kv_dtype = cache_dtype(config.kv_dtype, None, is_kept=not model.config.is_encoder)  # one type for all layers
    needs = needs_of(path, reader, model, config, kv_dtype=kv_dtype, adapter_bytes=adapter_bytes)
    # Measuring the model's parts leaves them out.
    beside = adapter_bytes if takes_adapters(devices_of(config)) else 0
    needs = replace(needs, media_bytes=encoder_bytes(media, config, devices_of(config)[0]), adapter_bytes=beside)
    return fitted(needs, model, config, devices_of(config), kv_dtype), kv_dtype


def _adapted(
    reader: GGUFReader, config: EngineConfig, device: Device | None = None, *, has_library: bool
) -> tuple[LoadedModel, int]:
    """Return the model, on the device or in host memory, and the bytes of its adapters.

    ``has_library``: requests choose among the adapters, which are no part of the model.
    """
    predicts = wants_predictor(config, devices_of(config)[0])

    def place(tensor: Tensor) -> Tensor:
        return tensor if device is None else tensor.to(device)

    if has_library or not config.adapters:
        on_device = devices_of(config)[0].kind != "cpu"
        return load_model(reader, place, predicts=predicts), library_bytes(config, on_device=on_device)
    from ...checkpoints.conversion import opened_adapters

    with opened_adapters(config.adapters, reader, config.load) as adapters:
        model = load_model(reader, place, adapters, predicts=predicts)
        return model, sum(adapter.reader.size_bytes for adapter in adapters)


def _check_calls_are_known(tokenizer: Tokenizer | None) -> None:
    """Warn if the model's template takes tools but no known format reads its calls."""
    source = None if tokenizer is None else tokenizer.chat_template
    if source is None or "tools" not in source:
        return
    from ...chat.detection import tool_support

    if tool_support(source).is_unknown:
        _LOG.warning(
            "[chat] the template takes tools but writes calls in no known format, so calls stay in the text: choose a "
            "format with tool_format"
        )
