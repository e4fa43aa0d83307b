"""Open the models that draft tokens: a smaller model, an EAGLE-3 head, or the model's own predictor."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..._native.engine import CacheTiersConfig, HeadDrafter, ModelDrafter
from ..._native.graph import CacheSpec, Executor, Trace
from ..._native.kv import CacheLayout
from ...errors import UnsupportedError
from ...files.gguf import GGUFReader
from ...files.ollama import open_model_file
from ...models import is_head, load_head, load_model, trace_predictor
from ...params.engine_options import CacheDType, EngineConfig
from ...tokenizer import Tokenizer
from .cache_identity import cache_identity, tiers_of
from .draft_head import check_tokens, draft_is_head
from .shown_name import shown_name
from .sizes import BLOCK_TOKENS, MOST_SEQUENCES, ModelNeeds, Sizes

if TYPE_CHECKING:
    from ..._native.core import Device
    from ..._native.engine import Drafter
    from ..._native.kernels import KernelSet
    from ...models import LoadedModel
    from ...models.base import Config
    from ...nn import Fusion

__all__ = ["DraftModel", "cache_bytes_beside", "opened_draft", "predictor_beside", "wants_predictor"]

_KEPT_ROWS = 512  # rows of features kept per sequence at most, as in native head_drafter.cpp


@dataclass(frozen=True)
class DraftModel:
    """A model that drafts tokens, the memory that it takes beside the target's weights, and the type of its cache.

    ``fusion``: for a head, how the target computes its features.  ``identity``: of the file with the head's weights.
    ``cache_identity``: names what its cache depends on; None if its cache has no tiers, as a head's rows depend on more
    than their text.
    """

    config: Config
    cache: list[CacheSpec]
    trace: Callable[[int], Trace]
    drafter_of: Callable[[Executor, int, CacheTiersConfig], Drafter]
    size_bytes: int
    kept_bytes: int
    kv_dtype: CacheDType
    fusion: Fusion | None = None
    identity: str = ""
    cache_identity: Callable[[int, KernelSet | None], bytes] | None = None

    def add_to(self, needs: ModelNeeds) -> ModelNeeds:
        """Return the needs of the target and this model together: each block of the target has one here."""
        c = self.config
        n_states = 0 if self.fusion is None else self.fusion.projection.weight.shape[-1]
        return replace(
            needs,
            weights_bytes=needs.weights_bytes + self.size_bytes,
            block_bytes=needs.block_bytes + self.block_bytes,
            token_bytes=needs.token_bytes + 4 * (8 * c.dim + 4 * c.widest + 2 * n_states),
            fixed_bytes=needs.fixed_bytes + 4 * c.n_vocab * 64 + self.kept_bytes,
        )

    @property
    def block_bytes(self) -> int:
        """Bytes of a block (32 tokens) of its cache."""
        return CacheLayout(self.cache, self.kv_dtype).block_bytes

    def n_blocks(self, sizes: Sizes) -> int:
        """Return one block for each of the target's; the blocks of one context if windows limit the target's cache."""
        return sizes.n_blocks if sizes.cache_bytes == 0 else -(-sizes.n_ctx // BLOCK_TOKENS) + 1

    def ram_bytes(self, config: EngineConfig, target_block_bytes: int) -> int:
        """Return its part of the host's memory below the caches: by the sizes of blocks."""
        if self.cache_identity is None:
            return 0
        return config.cache_ram * self.block_bytes // (self.block_bytes + target_block_bytes)

    def drafter(
        self,
        target: Executor,
        sizes: Sizes,
        device: Device,
        config: EngineConfig,
        kernel_set: KernelSet | None,
        *,
        target_block_bytes: int,
    ) -> tuple[Drafter, int]:
        """Return the drafter, with its own cache and on the target's threads, and the bytes that it takes in use."""
        n_ctx = min(sizes.n_ctx, self.config.n_ctx_train)
        executor = Executor(
            self.trace(n_ctx),
            device,
            n_blocks=self.n_blocks(sizes),
            threads=config.threads,
            kv_dtype=self.kv_dtype,
            kernels=config.kernels,
            kernel_set=kernel_set,
            max_rows=sizes.max_step_tokens,
            max_sequences=sizes.max_sequences,
            repack="lock" if config.load == "lock" else "release",
            cpus=[i for i in range((config.cpu_mask or 0).bit_length()) if (config.cpu_mask or 0) >> i & 1],
            team_of=target if target.kernels == "cpu" else None,
        )
        reserved = executor.memory_bytes["cache"] + executor.memory_bytes["compute"]
        tiers, identity = CacheTiersConfig(), self.cache_identity
        if identity is not None:
            ram_bytes = self.ram_bytes(config, target_block_bytes)
            tiers = tiers_of(config, ram_bytes, lambda: identity(n_ctx, kernel_set))
        return self.drafter_of(executor, n_ctx, tiers), reserved


def cache_bytes_beside(drafts: Sequence[DraftModel], sizes: Sizes) -> int:
    """Return the bytes of cache that the drafts leave to the target; 0 if it has all of its blocks."""
    if sizes.cache_bytes == 0:
        return 0
    return sizes.cache_bytes - sum((draft.n_blocks(sizes) - 1) * draft.block_bytes for draft in drafts)


def wants_predictor(config: EngineConfig, device: Device) -> bool:
    """Return whether to read the layer of the model's file that predicts later tokens.  It only runs on the CPU.

    An EAGLE head takes precedence, as it needs features of its own kind.
    """
    if draft_is_head(config):
        return False
    if config.speculation == "mtp" and device.kind != "cpu":
        raise UnsupportedError(f"[speculation] 'mtp' is only supported on the CPU, not on {device.name}")
    return config.speculation in ("auto", "mtp") and device.kind == "cpu"


def predictor_beside(name: str, model: LoadedModel, config: EngineConfig, kv_dtype: CacheDType) -> DraftModel | None:
    """Return the model's predictor, which shares its matrices.  None if it has none; UnsupportedError for ``"mtp"``."""
    if model.predictor is None:
        if config.speculation == "mtp":
            raise UnsupportedError(
                f"[speculation] {name} has no layer that predicts later tokens (nextn), which 'mtp' needs"
            )
        return None
    return DraftModel(
        model.config,
        [model.predictor.cache],
        model.trace_predictor,
        lambda executor, n_ctx, _: HeadDrafter(executor, n_ctx=n_ctx),
        size_bytes=0,
        kept_bytes=_kept_bytes(model.config.dim, config),
        kv_dtype=kv_dtype,
    )


@contextmanager
def opened_draft(
    config: EngineConfig, device: Device, tokenizer: Tokenizer | None, target: LoadedModel, kv_dtype: CacheDType
) -> Iterator[DraftModel | None]:
    """Yield the draft model or head that ``config`` names, or None, while its file is open.

    UnsupportedError for a draft with another tokenizer, one that cannot draft, and a head of another model.
    """
    if config.draft is None:
        yield None
        return
    path = Path(config.draft)
    if device.kind != "cpu":
        raise UnsupportedError(f"[draft] drafts are only supported on the CPU, not on {device.name}")
    with tempfile.TemporaryDirectory(prefix="quire-") as scratch, _reader(path, Path(scratch), config) as reader:
        if is_head(reader.metadata):
            check_tokens(shown_name(path), reader, tokenizer)
            yield _head_beside(reader, target, config, kv_dtype)
            return
        model = load_model(reader)
        _check(shown_name(path), model, Tokenizer.from_gguf(Path(reader.path)), tokenizer, target.config.n_vocab)
        yield DraftModel(
            model.config,
            model.cache,
            model.trace,
            lambda executor, n_ctx, tiers: ModelDrafter(executor, n_ctx=n_ctx, tiers=tiers),
            size_bytes=reader.size_bytes,
            kept_bytes=0,
            kv_dtype=kv_dtype,
            cache_identity=lambda n_ctx, kernel_set: cache_identity(
                reader,
                config,
                n_ctx=n_ctx,
                fit=None,
                kernel_set=kernel_set,
                devices=[device.name],
                media=None,
                merges_adapters=False,
            ),
        )


def _head_beside(reader: GGUFReader, target: LoadedModel, config: EngineConfig, kv_dtype: CacheDType) -> DraftModel:
    loaded = load_head(reader, target)
    return DraftModel(
        loaded.config,
        [loaded.head.cache],
        lambda n_ctx: trace_predictor(loaded.head, n_ctx),
        lambda executor, n_ctx, _: HeadDrafter(executor, n_ctx=n_ctx, name="eagle", tokens=loaded.tokens),
        size_bytes=reader.size_bytes,
        kept_bytes=_kept_bytes(loaded.config.dim, config),
        kv_dtype=kv_dtype,
        fusion=loaded.fusion,
        identity=reader.identity,
    )


def _kept_bytes(dim: int, config: EngineConfig) -> int:
    return 4 * dim * _KEPT_ROWS * (config.max_sequences or MOST_SEQUENCES)


@contextmanager
def _reader(path: Path, scratch: Path, config: EngineConfig) -> Iterator[GGUFReader]:
    if path.is_dir():
        from ...checkpoints.conversion import CheckpointReader
        from ...checkpoints.reading import checkpoint_dtype

        with CheckpointReader(path, scratch, checkpoint_dtype(path)) as reader:
            yield reader
    else:
        yield open_model_file(path, config.load)


def _check(name: str, model: LoadedModel, own: Tokenizer, target: Tokenizer | None, n_vocab: int) -> None:
    if model.config.is_encoder:
        raise UnsupportedError(f"[draft] {name} is an encoder, which cannot draft")
    if CacheLayout(model.cache, "f32").state_bytes > 0:
        raise UnsupportedError(
            f"[draft] {name} has recurrent states, which cannot be rolled back to the accepted tokens"
        )
    if target is None:
        raise UnsupportedError("[draft] the model has no tokenizer, which a draft model needs")
    # Vocabularies may be padded to different sizes.
    texts, shown = (own.vocabulary.texts, target.vocabulary.texts), (own.all_token_bytes(), target.all_token_bytes())
    n_same = min(len(texts[0]), len(texts[1]), model.config.n_vocab, n_vocab)
    for i in range(n_same):
        if texts[0][i] != texts[1][i] or shown[0][i] != shown[1][i]:
            raise UnsupportedError(
                f"[draft] {name} has another tokenizer than the model: token {i} is {texts[0][i]!r:.40} in the "
                f"draft and {texts[1][i]!r:.40} in the model"
            )
    longer = max(shown, key=len)
    if any(longer[n_same:]):
        raise UnsupportedError(
            f"[draft] {name} has another tokenizer than the model: {len(texts[0])} tokens in the draft and "
            f"{len(texts[1])} in the model"
        )
    if own.eog_ids != target.eog_ids:
        raise UnsupportedError(
            f"[draft] {name} ends its texts with tokens {sorted(own.eog_ids)}, the model with {sorted(target.eog_ids)}"
        )
