"""Combine the opened parts of a model into a running decoder."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from ..._native.engine import (
    CacheTiersConfig,
    Decoder,
    DecoderConfig,
    Drafter,
    GrammarDrafter,
    LookupDrafter,
    VocabInfo,
)
from ..._native.graph import Executor, ExecutorBase
from ..._native.kv import CacheLayout
from ...errors import RequestError, UnsupportedError
from ..adapters import NO_LIBRARY, AdapterLibrary
from .cache_identity import cache_identity, tiers_of
from .draft import cache_bytes_beside
from .kernel_choice import packed_cache_of
from .memory import memory_at_hand
from .model_needs import kinds_of, needs_of
from .model_output import ModelOutput, output_of, pooling_of
from .ranks import Follower, Lead, Rank, Shape
from .retrieval import Retrieval, retrieval_of
from .sampling_advice import advised_sampling
from .shown_name import shown_name
from .sizes import Sizes, choose_sizes
from .text_advice import TextAdvice, text_advice

if TYPE_CHECKING:
    from pathlib import Path

    from ..._native.core import Device
    from ..._native.kernels import KernelSet
    from ...files.gguf import GGUFReader
    from ...models import LoadedModel
    from ...nn.steering import Steering
    from ...params.engine_options import CacheDType, EngineConfig
    from ...tokenizer import Tokenizer
    from ..engine import Pooling
    from ..media import MediaInput
    from ..steering import ControlVectors
    from .draft import DraftModel
    from .fit import Fit

__all__ = ["ModelParts", "OpenedModel"]

_LOG = logging.getLogger("quire")


@dataclass(frozen=True)
class OpenedModel:
    """A model with its decoder running.  ``tokenizer`` is None for files without a vocabulary.

    ``executor``: runs the decoder's steps; it must not be used while requests are in flight.
    """

    decoder: Decoder
    executor: Executor
    tokenizer: Tokenizer | None
    model_name: str
    architecture: str
    n_vocab: int
    sizes: Sizes
    reserved_bytes: int  # for the cache and a step, which the system allocates on first use
    sampling: Mapping[str, object]
    pooling: Pooling | None  # None if the file's is unknown
    kv_dtype: CacheDType
    isa: str | None  # for Quire's own kernels; None if the model runs on ggml's
    output: ModelOutput
    advice: TextAdvice
    retrieval: Retrieval
    device: str  # resolved from the options
    cache_kinds: tuple[str, ...]  # by group of layers: "full", "window 512", "chunk 8192", "source"
    has_state: bool
    n_ctx_train: int  # positions that the model was trained on
    n_source: int = 0  # rows of sound that the encoder of an encoder-decoder model reads
    media: MediaInput | None = None
    control_vectors: ControlVectors | None = None
    embeds: tuple[int, int] | None = None  # numbers of an embedding, and of a row in its place; None: none are read
    adapters: AdapterLibrary | None = None  # None: those of the options are a part of the model


@dataclass(frozen=True)
class ModelParts:
    """The parts of a model that is about to run.

    ``path`` names it.  ``fit``: its placement on devices; None for the CPU alone.  ``drafts``: models that draft for
    it.  ``repack``: as in ``Executor``; None: by the options.  ``has_library``: adapters are not a part of ``model``.
    """

    reader: GGUFReader
    path: Path
    config: EngineConfig
    devices: Sequence[Device]
    model: LoadedModel
    adapter_bytes: int
    tokenizer: Tokenizer | None
    fit: Fit | None
    kv_dtype: CacheDType
    kernel_set: KernelSet | None
    drafts: Sequence[DraftModel]
    repack: Literal["no", "keep", "release", "lock"] | None
    sums_inputs: bool
    has_library: bool = False
    media: MediaInput | None = None
    media_bytes: int = 0  # that encoders take; 0 if the fit counts them
    media_path: Path | None = None  # the encoders' file or folder
    rank: Rank | None = None  # this process's place among several; None: there are no others

    def start(self) -> OpenedModel:
        """Start the decoder.  CapacityError if the sizes do not fit."""
        reader, config, model = self.reader, self.config, self.model
        cache = CacheLayout(model.cache, self.kv_dtype)
        if "q" in self.kv_dtype and not cache.groups:
            raise UnsupportedError(
                f"[engine] kv_dtype {self.kv_dtype} has no use: {shown_name(self.path)} caches no keys and values"
            )
        vectors = self._control_vectors()
        sizes, n_ctx_train = self._sizes()
        if isinstance(self.rank, Lead):
            self.rank.tell(Shape(sizes, self._media_width))
        executor = self._executor(sizes, self._media_width, None if vectors is None else vectors.steering)
        drafters: list[Drafter] = [GrammarDrafter(), LookupDrafter()]
        reserved = executor.memory_bytes["cache"] + executor.memory_bytes["compute"]
        for draft in self.drafts:
            drafter, n_bytes = draft.drafter(
                executor, sizes, self.devices[0], config, self.kernel_set, target_block_bytes=cache.block_bytes
            )
            drafters.append(drafter)
            reserved += n_bytes
        return OpenedModel(
            decoder=self._decoder(
                self.rank.lead(executor) if isinstance(self.rank, Lead) else executor, sizes, drafters
            ),
            executor=executor,
            tokenizer=self.tokenizer,
            model_name=reader.metadata.text("general.name", self.path.stem),
            architecture=model.config.arch,
            n_vocab=model.config.n_vocab,
            sizes=sizes,
            reserved_bytes=reserved,
            sampling=advised_sampling(reader.metadata),
            pooling=pooling_of(reader.metadata, model.config),
            kv_dtype=self.kv_dtype,
            isa=None if self.kernel_set is None else self.kernel_set.isa,
            output=output_of(reader, model.config, self.tokenizer),
            advice=text_advice(reader.metadata),
            retrieval=retrieval_of(reader, model.config, self.tokenizer),
            device=config.device,
            cache_kinds=kinds_of(cache),
            has_state=cache.state_bytes > 0,
            n_ctx_train=n_ctx_train,
            n_source=model.config.n_source,
            media=self.media,
            adapters=self._adapters(executor),
            control_vectors=vectors,
            embeds=(model.config.dim, self._media_width) if config.enable_prompt_embeds else None,
        )

    def follow(self) -> None:
        """Run the steps of rank 0 on this rank's share, until it stops."""
        assert isinstance(self.rank, Follower)
        shape = self.rank.shape()
        self.rank.follow(self._executor(shape.sizes, shape.media_width, None))

    @property
    def _media_width(self) -> int:
        """The numbers of a row that images, sounds and embeddings put in place of a token's."""
        config = self.model.config
        width = 0 if self.media is None or config.n_source else self.media.width
        if not self.config.enable_prompt_embeds:
            return width
        if config.n_source:
            raise UnsupportedError(f"[prompt_embeds] unsupported for {config.arch}, which encodes its prompts")
        return max(width, config.dim)

    def _control_vectors(self) -> ControlVectors | None:
        config, files = self.model.config, self.config.control_vectors
        if not files:
            return None
        if self.fit is not None or config.n_source or self.config.draft is not None:
            raise UnsupportedError("[engine] control vectors need a model that generates on the CPU, without a draft")
        from ..steering import ControlVectors

        return ControlVectors(files, config.dim, config.n_layer, self.config.control_vector_layers)

    def _adapters(self, executor: Executor) -> AdapterLibrary | None:
        """Return the adapters that requests choose from, unless they are a part of the model."""
        config = self.config
        if not self.has_library:
            if config.lora_modules:
                raise UnsupportedError(f"{NO_LIBRARY}: use adapters in place of lora_modules")
            if config.adapters and config.packed_cache is not None:
                raise RequestError("[engine] packed_cache cannot be combined with adapters here")
            return None
        library = AdapterLibrary(
            executor,
            self.reader,
            self.model.products,
            max_loras=config.max_loras,
            max_bytes=config.lora_cache_size,
            max_rank=config.max_lora_rank,
            generates=self.model.config.decoder_start is None and not self.model.config.n_source,
        )
        for path, scale in config.adapters:
            library.add(path, scale=scale)
        for name, path in config.lora_modules:
            library.add(path, name)
        return library

    def _sizes(self) -> tuple[Sizes, int]:
        """Return the sizes of the cache and of a step, and the number of positions that the model was trained on."""
        needs = needs_of(
            self.path, self.reader, self.model, self.config, kv_dtype=self.kv_dtype, adapter_bytes=self.adapter_bytes,
            own_kernels=self.fit is None and self.kernel_set is not None,
        )  # fmt: skip
        needs = replace(needs, media_bytes=self.media_bytes)
        for draft in self.drafts:
            needs = draft.add_to(needs)
        sizes = choose_sizes(needs, self.config, self._memory()) if self.fit is None else self.fit.sizes
        if sizes.n_ctx > needs.n_ctx_train:
            _LOG.warning(
                "[n_ctx] %d tokens exceed the %d that %s was trained on: answers get worse beyond those",
                sizes.n_ctx, needs.n_ctx_train, shown_name(self.path),
            )  # fmt: skip
        return sizes, needs.n_ctx_train

    def _memory(self) -> int:
        """Return the bytes that this process may use: processes that split matrices take as much each."""
        return memory_at_hand(self.config, self.devices[0]) // (1 if self.rank is None else self.rank.n_split)

    def _executor(self, sizes: Sizes, media_width: int, steering: Steering | None) -> Executor:
        config, device = self.config, self.devices[0]
        head = next((draft for draft in self.drafts if draft.fusion is not None), None)
        mask = config.cpu_mask or 0
        trace = self.model.trace(
            sizes.n_ctx,
            config.taps,
            fusion=None if head is None else head.fusion,
            media_width=media_width,
            steering=steering,
        )
        if self.rank is not None:
            trace = self.rank.staged(trace, self.model.config.n_layer)
        executor = Executor(
            trace,
            device,
            n_blocks=sizes.n_blocks,
            n_states=sizes.n_states,
            cache_bytes=cache_bytes_beside(self.drafts, sizes),
            threads=config.threads,
            kv_dtype=self.kv_dtype,
            kernels=config.kernels,
            kernel_set=self.kernel_set,
            max_rows=sizes.max_step_tokens,
            max_sequences=sizes.max_sequences,
            repack=self.repack or ("lock" if config.load == "lock" else "release"),
            packed_cache=packed_cache_of(self.reader, device, config, head),
            cpus=[i for i in range(mask.bit_length()) if mask >> i & 1],
            sums_inputs=self.sums_inputs,
            places={} if self.fit is None else self.fit.places,
            more_devices=self.devices[1:],
        )
        for note in executor.packed_cache_notes:
            _LOG.warning("[packed-cache] %s", note)
        if config.packed_cache is not None and not executor.memory_bytes["packed"]:
            _LOG.warning("[packed-cache] this machine packs no weights of this model, so none are cached")
        return executor

    def _decoder(self, executor: ExecutorBase, sizes: Sizes, drafters: Sequence[Drafter]) -> Decoder:
        config = self.config
        return Decoder(
            executor,
            _vocab_info(self.tokenizer, self.model.config.n_vocab),
            DecoderConfig(
                n_ctx=sizes.n_ctx,
                policy=config.policy,
                step_s=config.step_s,
                snapshot_tokens=config.snapshot_tokens,
                speculation=config.speculation or ("auto" if self.drafts else "grammar"),
                draft_max=config.draft_max,
                draft_min=config.draft_min,
                decoder_start=self.model.config.decoder_start,
                tiers=self._tiers(sizes),
            ),
            drafters,
        )

    def _tiers(self, sizes: Sizes) -> CacheTiersConfig:
        own = CacheLayout(self.model.cache, self.kv_dtype).block_bytes
        ram_bytes = self.config.cache_ram - sum(draft.ram_bytes(self.config, own) for draft in self.drafts)
        return tiers_of(self.config, ram_bytes, lambda: self._identity(sizes))

    def _identity(self, sizes: Sizes) -> bytes:
        return cache_identity(
            self.reader,
            self.config,
            n_ctx=sizes.n_ctx,
            fit=self.fit,
            kernel_set=self.kernel_set,
            devices=[device.name for device in self.devices],
            media=self.media_path,
            merges_adapters=not self.has_library,
        )


def _vocab_info(tokenizer: Tokenizer | None, n_vocab: int) -> VocabInfo:
    if tokenizer is None:
        return VocabInfo(n_vocab, [], [b""] * n_vocab)
    shown = tokenizer.all_token_bytes()
    shown += [b""] * (n_vocab - len(shown))
    return VocabInfo(n_vocab, sorted(tokenizer.eog_ids), shown)
