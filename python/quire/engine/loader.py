"""From a model file to a running decoder."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from .._native.engine import Decoder, DecoderConfig, Drafter, GrammarDrafter, LookupDrafter, VocabInfo
from .._native.graph import Executor, PackedCache
from .._native.kernels import KernelSet
from .._native.kv import CacheLayout
from ..errors import LoadError, UnsupportedError
from ..gguf import GGUFReader
from ..models import load_model
from ..tokenizer import Tokenizer
from .config import CacheDType, EngineConfig, KvDType
from .device_choice import device_at_hand, devices_of
from .draft import DraftModel, cache_bytes_beside, opened_draft, predictor_beside, wants_predictor
from .engine import Pooling
from .fit import Fit, fitted
from .memory import memory_at_hand
from .model_needs import kinds_of, needs_of
from .model_output import ModelOutput, output_of, pooling_of
from .placement import Placement, asks_for_two_devices, memory_of_all
from .sampling_advice import advised_sampling
from .sizes import Sizes, check_weights, choose_sizes
from .text_advice import TextAdvice, text_advice

if TYPE_CHECKING:
    from .._native.core import Device, Tensor
    from ..models import LoadedModel

__all__ = [
    "OpenedModel",
    "cache_dtype",
    "fit_of",
    "open_decoder",
    "open_model",
    "open_reader",
    "packaged_model",
]

_LOG = logging.getLogger("quire")
# Of an encoder-decoder model whose file has none: messages one below the other, ended as a text is.
_SOURCE_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}{% if not loop.last %}\n{% endif %}{% endfor %}"
    "{{ eos_token }}"
)


@dataclass(frozen=True)
class OpenedModel:
    """A model with its decoder running.  ``tokenizer`` is None for files without a vocabulary.

    ``executor``: what the decoder runs on; nobody may touch it while requests are under way.
    """

    decoder: Decoder
    executor: Executor
    tokenizer: Tokenizer | None
    model_name: str
    architecture: str
    n_vocab: int
    sizes: Sizes
    reserved_bytes: int  # of the cache and of a step, which are taken as they are used
    sampling: Mapping[str, object]
    pooling: Pooling | None  # None where the file asks for one that is not known
    kv_dtype: CacheDType
    isa: str | None  # of our own kernels; None where the model runs by ggml's
    output: ModelOutput
    advice: TextAdvice
    device: str  # what the options' device stands for
    cache_kinds: tuple[str, ...]  # by group of layers: "full", "window 512", "chunk 8192", "source"
    has_state: bool
    n_ctx_train: int  # positions that the model was trained on


def packaged_model() -> Path:
    """The model in the package; LoadError where it was built without."""
    path = Path(__file__).parent.parent / "data" / "tiny-chat-q8_0.gguf"
    if not path.is_file():
        raise LoadError(f"[loader] the package's model must be at {path} but is not")
    return path


def open_model(path: str | os.PathLike[str] | None, config: EngineConfig, *, sums_inputs: bool = False) -> OpenedModel:
    """Open a GGUF file, a checkpoint folder, or (None) the package's model, and start its decoder.

    ``sums_inputs``: the executor adds up what its products read (``Executor.input_sums``); for stock kernels.
    Raises LoadError for what is absent or malformed, UnsupportedError for an architecture, tokenizer or device that
    Quire does not know (listing those it knows) and for an instruction set that this machine does not run,
    CapacityError when the weights or the cache do not fit into memory.
    """
    config = replace(config, device=device_at_hand(config, is_for_cpu=sums_inputs))
    if not asks_for_two_devices(config):
        _kernel_set(config, devices_of(config)[0])  # refused before anything is read
    source = packaged_model() if path is None else Path(path)
    if source.is_dir():
        return _open_folder(source, config, sums_inputs)
    return _open_file(source, config, sums_inputs)


def open_decoder(path: str | os.PathLike[str] | None = None, config: EngineConfig | None = None) -> Decoder:
    """The decoder alone of a model: what ``LLM`` is made of, for token ids and events (``Decoder.submit``, ``wait``).

    ``close()`` gives its memory back.  Raises as ``LLM`` does.
    """
    return open_model(path, config or EngineConfig()).decoder


def cache_dtype(kv_dtype: KvDType, kernel_set: KernelSet | None, *, is_kept: bool = True) -> CacheDType:
    """What ``"auto"`` stands for where a model runs by these kernels (None: ggml's); all others are themselves.

    BF16 is what most models were trained in, and as large as F16, but scores and sums of F16 are multiplied as F32, at
    half the rate of BF16 where there are instructions for that.  What only a step needs (``is_kept`` false) is exact.
    """
    if kv_dtype != "auto":
        return kv_dtype
    if not is_kept:
        return "f32"
    return "bf16" if kernel_set is not None and kernel_set.multiplies_bf16 else "f16"


def _packed_cache(
    reader: GGUFReader, device: Device, config: EngineConfig, head: DraftModel | None
) -> PackedCache | None:
    """``head``: what has a matrix of the model's pass in a file of its own."""
    if config.packed_cache is None:
        return None
    if device.kind != "cpu":
        raise UnsupportedError(f"[packed-cache] the device must be the CPU for packed weights but is {device.name}")
    source = reader.identity
    if head is not None:
        source = f"{source} {head.identity}" if source and head.identity else ""
    return PackedCache(config.packed_cache, source=source, load=config.load, source_is_mapped=reader.is_mapped)


def _kernel_set(config: EngineConfig, device: Device, placement: Placement | None = None) -> KernelSet | None:
    """The kernels of our own that the model runs by, or its part on the CPU; None where it runs by ggml's."""
    if placement is not None and not config.deterministic:
        return KernelSet(config.isa)
    if device.kind != "cpu":
        if config.isa is not None:
            raise UnsupportedError(f"[isa] the device must be the CPU for an instruction set but is {device.name}")
        if config.deterministic:
            raise UnsupportedError(f"[deterministic] the device must be the CPU for fixed bits but is {device.name}")
        return None
    return None if config.kernels == "stock" else KernelSet(config.isa, deterministic=config.deterministic)


def _open_folder(folder: Path, config: EngineConfig, sums_inputs: bool) -> OpenedModel:
    """A checkpoint, whose tensors are converted one by one as the model asks for them."""
    import tempfile

    from ..checkpoint import checkpoint_dtype
    from ..convert import CheckpointReader

    with (
        tempfile.TemporaryDirectory(prefix="quire-") as scratch,
        CheckpointReader(folder, Path(scratch), checkpoint_dtype(folder)) as reader,
    ):
        if config.quantize is not None:
            return _open_quantized(reader, config, sums_inputs)
        check_weights(folder.name, reader.size_bytes, memory_of_all(config, devices_of(config)))
        return open_reader(reader, Path(reader.path), config, sums_inputs=sums_inputs)


def _open_quantized(source: GGUFReader, config: EngineConfig, sums_inputs: bool) -> OpenedModel:
    """A model, whose tensors are quantized one by one as it asks for them."""
    import tempfile

    from ..quantization import QuantizedReader

    assert config.quantize is not None
    with (
        tempfile.TemporaryDirectory(prefix="quire-") as scratch,
        QuantizedReader(source, Path(scratch), config.quantize, threads=config.threads) as reader,
    ):
        available = memory_of_all(config, devices_of(config))
        check_weights(Path(source.path).name, reader.size_bytes, available)
        return open_reader(reader, Path(reader.path), config, sums_inputs=sums_inputs)


def _open_file(path: Path, config: EngineConfig, sums_inputs: bool) -> OpenedModel:
    # What the cache holds is copied from there, so that the file is not read for nothing.
    mapped = config.packed_cache is not None and config.load == "copy"
    available = memory_of_all(config, devices_of(config))
    if config.quantize is not None:
        return _open_quantized(GGUFReader(path), config, sums_inputs)
    if path.is_file():
        check_weights(path.name, path.stat().st_size, available)  # before anything of them is read
    return open_reader(GGUFReader(path, "mmap" if mapped else config.load), path, config, sums_inputs=sums_inputs)


def open_reader(
    reader: GGUFReader,
    path: Path,
    config: EngineConfig,
    *,
    sums_inputs: bool = False,
    repack: Literal["no", "keep", "release", "lock"] | None = None,
) -> OpenedModel:
    """Open what a reader reads; ``path`` names it and has its vocabulary.  Raises as ``open_model``.

    ``repack``: as ``Executor`` takes it; None: as the options have it.
    """
    if config.device == "default":  # of who has a reader of his own
        config = replace(config, device=device_at_hand(config, is_for_cpu=sums_inputs or repack is not None))
    devices = devices_of(config)
    # What is made on the way to a device is not to fill the host's memory: shapes, which the file has, say what fits.
    is_shape = reader.is_made and devices[0].kind != "cpu"
    model, adapter_bytes = _adapted(GGUFReader(reader.path) if is_shape else reader, config)
    tokenizer = Tokenizer.from_gguf(path) if "tokenizer.ggml.model" in reader.metadata else None
    if tokenizer is not None and tokenizer.chat_template is None and model.config.decoder_start is not None:
        tokenizer = Tokenizer(replace(tokenizer.vocabulary, chat_templates={"default": _SOURCE_TEMPLATE}))
    _check_calls_are_known(tokenizer)
    fit = None
    if devices[0].kind != "cpu":
        fit, kv_dtype = _fitted(path, reader, model, config, adapter_bytes)
        if fit.note:
            _LOG.warning("[fit] %s", fit.note)
        if not fit.devices:
            fit, config = None, replace(config, device="cpu", n_gpu_layers=0)
            devices = devices_of(config)
    if is_shape:
        is_whole = fit is not None and fit.placement is None
        model, adapter_bytes = _adapted(reader, config, devices[0] if is_whole else None)
    kernel_set = _kernel_set(config, devices[0], fit.placement if fit else None)
    if fit is None:
        kv_dtype = cache_dtype(config.kv_dtype, kernel_set, is_kept=not model.config.is_encoder)
    predictor = predictor_beside(path.name, model, config, kv_dtype)
    with opened_draft(config, devices[0], tokenizer, model, kv_dtype) as draft:
        return _open_with(
            reader, path, config, devices, model, fit=fit,
            tokenizer=tokenizer, kv_dtype=kv_dtype, kernel_set=kernel_set,
            drafts=[each for each in (predictor, draft) if each is not None], repack=repack,
            sums_inputs=sums_inputs, adapter_bytes=adapter_bytes,
        )  # fmt: skip


def fit_of(reader: GGUFReader, path: Path, config: EngineConfig) -> Fit:
    """What fits of a model on the device of the options, for which nothing is taken.  Raises as ``open_model``."""
    config = replace(config, device=device_at_hand(config))
    if devices_of(config)[0].kind == "cpu":
        raise UnsupportedError("[fit] the device must be another one than the CPU but is the CPU")
    model, adapter_bytes = _adapted(reader, config)
    return _fitted(path, reader, model, config, adapter_bytes)[0]


def _fitted(
    path: Path, reader: GGUFReader, model: LoadedModel, config: EngineConfig, adapter_bytes: int
) -> tuple[Fit, CacheDType]:
    kv_dtype = cache_dtype(config.kv_dtype, None, is_kept=not model.config.is_encoder)  # one type for all layers
    needs = needs_of(path, reader, model, config, kv_dtype=kv_dtype, adapter_bytes=adapter_bytes)
    return fitted(needs, model, config, devices_of(config), kv_dtype), kv_dtype


def _adapted(reader: GGUFReader, config: EngineConfig, device: Device | None = None) -> tuple[LoadedModel, int]:
    """The model with its adapters, on the device or in the host's memory, and what the adapters take."""
    predicts = wants_predictor(config, devices_of(config)[0])

    def place(tensor: Tensor) -> Tensor:
        return tensor if device is None else tensor.to(device)

    if not config.adapters:
        return load_model(reader, place, predicts=predicts), 0
    from ..convert import opened_adapters

    with opened_adapters(config.adapters, reader, config.load) as adapters:
        model = load_model(reader, place, adapters, predicts=predicts)
        return model, sum(adapter.reader.size_bytes for adapter in adapters)


def _open_with(
    reader: GGUFReader,
    path: Path,
    config: EngineConfig,
    devices: Sequence[Device],
    model: LoadedModel,
    *,
    fit: Fit | None,
    tokenizer: Tokenizer | None,
    kv_dtype: CacheDType,
    kernel_set: KernelSet | None,
    drafts: Sequence[DraftModel],
    repack: Literal["no", "keep", "release", "lock"] | None,
    sums_inputs: bool,
    adapter_bytes: int,
) -> OpenedModel:
    device, n_vocab = devices[0], model.config.n_vocab
    cache = CacheLayout(model.cache, kv_dtype)
    if "q" in kv_dtype and not cache.groups:
        raise UnsupportedError(
            f"[engine] kv_dtype {kv_dtype} must go with a model that caches keys and values but {path.name} caches none"
        )
    needs = needs_of(
        path, reader, model, config, kv_dtype=kv_dtype, adapter_bytes=adapter_bytes,
        own_kernels=fit is None and kernel_set is not None,
    )  # fmt: skip
    for draft in drafts:
        needs = draft.add_to(needs)
    sizes = choose_sizes(needs, config, memory_at_hand(config, device)) if fit is None else fit.sizes
    if sizes.n_ctx > needs.n_ctx_train:
        _LOG.warning(
            "[n_ctx] %d tokens are more than the %d that %s was trained on: beyond those, answers get worse",
            sizes.n_ctx, needs.n_ctx_train, path.name,
        )  # fmt: skip
    head = next((draft for draft in drafts if draft.fusion is not None), None)
    executor = Executor(
        model.trace(sizes.n_ctx, config.taps, fusion=None if head is None else head.fusion),
        device,
        n_blocks=sizes.n_blocks,
        n_states=sizes.n_states,
        cache_bytes=cache_bytes_beside(drafts, sizes),
        threads=config.threads,
        kv_dtype=kv_dtype,
        kernels=config.kernels,
        kernel_set=kernel_set,
        max_rows=sizes.max_step_tokens,
        max_sequences=sizes.max_sequences,
        repack=repack or ("lock" if config.load == "lock" else "release"),
        packed_cache=_packed_cache(reader, device, config, head),
        cpus=[i for i in range((config.cpu_mask or 0).bit_length()) if (config.cpu_mask or 0) >> i & 1],
        sums_inputs=sums_inputs,
        places={} if fit is None else fit.places,
        more_devices=devices[1:],
    )
    for note in executor.packed_cache_notes:
        _LOG.warning("[packed-cache] %s", note)
    if config.packed_cache is not None and not executor.memory_bytes["packed"]:
        _LOG.warning("[packed-cache] nothing of this model is packed on this machine, so nothing is kept")
    drafters: list[Drafter] = [GrammarDrafter(), LookupDrafter()]
    reserved = executor.memory_bytes["cache"] + executor.memory_bytes["compute"]
    for draft in drafts:
        drafter, n_bytes = draft.drafter(executor, sizes, device, config, kernel_set)
        drafters.append(drafter)
        reserved += n_bytes
    decoder = Decoder(
        executor,
        _vocab_info(tokenizer, n_vocab),
        DecoderConfig(
            n_ctx=sizes.n_ctx,
            policy=config.policy,
            step_s=config.step_s,
            snapshot_tokens=config.snapshot_tokens,
            speculation=config.speculation or ("auto" if drafts else "grammar"),
            draft_max=config.draft_max,
            draft_min=config.draft_min,
            decoder_start=model.config.decoder_start,
        ),
        drafters,
    )
    name = reader.metadata.text("general.name", path.stem)
    sampling = advised_sampling(reader.metadata)
    output = output_of(reader, model.config, tokenizer)
    return OpenedModel(
        decoder,
        executor,
        tokenizer,
        name,
        model.config.arch,
        n_vocab,
        sizes,
        reserved,
        sampling,
        pooling_of(reader.metadata, model.config),
        kv_dtype,
        None if kernel_set is None else kernel_set.isa,
        output,
        text_advice(reader.metadata),
        config.device,
        kinds_of(cache),
        cache.state_bytes > 0,
        needs.n_ctx_train,
    )


def _check_calls_are_known(tokenizer: Tokenizer | None) -> None:
    """Say it where the model takes tools, but nobody would know its calls."""
    source = None if tokenizer is None else tokenizer.chat_template
    if source is None or "tools" not in source:
        return
    from ..chat.detection import tool_support

    if tool_support(source).is_unknown:
        _LOG.warning(
            "[chat] the template takes tools but writes calls in no known format, so that calls will stay text: "
            "tool_format chooses a format by its name"
        )


def _vocab_info(tokenizer: Tokenizer | None, n_vocab: int) -> VocabInfo:
    if tokenizer is None:
        return VocabInfo(n_vocab, [], [b""] * n_vocab)
    shown = tokenizer.all_token_bytes()
    shown += [b""] * (n_vocab - len(shown))
    return VocabInfo(n_vocab, sorted(tokenizer.eog_ids), shown)
