"""The draft model: a smaller one that proposes tokens."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from .._native.engine import ModelDrafter
from .._native.graph import Executor
from .._native.kv import CacheLayout
from ..errors import UnsupportedError
from ..gguf import GGUFReader
from ..models import load_model
from ..tokenizer import Tokenizer
from .config import CacheDType, EngineConfig
from .sizes import BLOCK_TOKENS, ModelNeeds, Sizes

if TYPE_CHECKING:
    from .._native.core import Device
    from .._native.kernels import KernelSet
    from ..models import LoadedModel

__all__ = ["DraftModel", "opened_draft"]


@dataclass(frozen=True)
class DraftModel:
    """A draft model that was read, and the type of its cache."""

    name: str
    model: LoadedModel
    size_bytes: int
    kv_dtype: CacheDType

    def add_to(self, needs: ModelNeeds) -> ModelNeeds:
        """What the target needs, and this model beside it: each block of the target has one here."""
        c = self.model.config
        return replace(
            needs,
            weights_bytes=needs.weights_bytes + self.size_bytes,
            block_bytes=needs.block_bytes + self.block_bytes,
            token_bytes=needs.token_bytes + 4 * (8 * c.dim + 4 * c.widest),
            fixed_bytes=needs.fixed_bytes + 4 * c.n_vocab * 64,
        )

    @property
    def block_bytes(self) -> int:
        """Of 32 tokens in its cache."""
        return CacheLayout(self.model.cache, self.kv_dtype).block_bytes

    def _n_blocks(self, sizes: Sizes) -> int:
        """One for each of the target, or of one context where windows leave the target with less than all."""
        return sizes.n_blocks if sizes.cache_bytes == 0 else -(-sizes.n_ctx // BLOCK_TOKENS) + 1

    def cache_bytes_beside(self, sizes: Sizes) -> int:
        """What is left of the cache for the target; 0 where it has all of its blocks."""
        return 0 if sizes.cache_bytes == 0 else sizes.cache_bytes - (self._n_blocks(sizes) - 1) * self.block_bytes

    def drafter(
        self, target: Executor, sizes: Sizes, device: Device, config: EngineConfig, kernel_set: KernelSet | None
    ) -> tuple[ModelDrafter, int]:
        """The model with a cache of its own, on the target's threads; and the bytes that it takes as it is used."""
        n_ctx = min(sizes.n_ctx, self.model.config.n_ctx_train)
        executor = Executor(
            self.model.trace(n_ctx),
            device,
            n_blocks=self._n_blocks(sizes),
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
        return ModelDrafter(executor, n_ctx=n_ctx), reserved


@contextmanager
def opened_draft(
    config: EngineConfig, device: Device, tokenizer: Tokenizer | None, n_vocab: int, kv_dtype: CacheDType
) -> Iterator[DraftModel | None]:
    """The draft model that ``config`` names, while its file is read; None where it names none.

    UnsupportedError for a model of another tokenizer, or one that cannot draft.
    """
    if config.draft is None:
        yield None
        return
    path = Path(config.draft)
    if device.kind != "cpu":
        raise UnsupportedError(f"[draft] the device must be the CPU for a draft model but is {device.name}")
    with tempfile.TemporaryDirectory(prefix="quire-") as scratch, _reader(path, Path(scratch), config) as reader:
        model = load_model(reader)
        _check(path.name, model, Tokenizer.from_gguf(Path(reader.path)), tokenizer, n_vocab)
        yield DraftModel(path.name, model, reader.size_bytes, kv_dtype)


@contextmanager
def _reader(path: Path, scratch: Path, config: EngineConfig) -> Iterator[GGUFReader]:
    if path.is_dir():
        from ..checkpoint import checkpoint_dtype
        from ..convert import CheckpointReader

        with CheckpointReader(path, scratch, checkpoint_dtype(path)) as reader:
            yield reader
    else:
        yield GGUFReader(path, config.load)


def _check(name: str, model: LoadedModel, own: Tokenizer, target: Tokenizer | None, n_vocab: int) -> None:
    if model.config.is_encoder:
        raise UnsupportedError(f"[draft] {name} must generate text but is an encoder")
    if CacheLayout(model.cache, "f32").state_bytes > 0:
        raise UnsupportedError(
            f"[draft] {name} must be without recurrent states, which cannot be cut back, but has some"
        )
    if target is None:
        raise UnsupportedError("[draft] the model must have a tokenizer for a draft model but has none")
    # Vocabularies that are padded to other sizes are the same.
    texts, shown = (own.vocabulary.texts, target.vocabulary.texts), (own.all_token_bytes(), target.all_token_bytes())
    n_same = min(len(texts[0]), len(texts[1]), model.config.n_vocab, n_vocab)
    for i in range(n_same):
        if texts[0][i] != texts[1][i] or shown[0][i] != shown[1][i]:
            raise UnsupportedError(
                f"[draft] {name} must have the model's tokenizer but token {i} is {texts[0][i]!r:.40} there and "
                f"{texts[1][i]!r:.40} here"
            )
    longer = max(shown, key=len)
    if any(longer[n_same:]):
        raise UnsupportedError(
            f"[draft] {name} must have the model's tokenizer but has {len(texts[0])} tokens where that has "
            f"{len(texts[1])}"
        )
    if own.eog_ids != target.eog_ids:
        raise UnsupportedError(
            f"[draft] {name} must end its texts as the model does but does with tokens {sorted(own.eog_ids)} and not "
            f"{sorted(target.eog_ids)}"
        )
