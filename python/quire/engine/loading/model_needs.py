"""Compute the memory that a model needs, from its file and its description."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from ..._native.graph import packed_row_bytes
from ..._native.kv import CacheLayout
from ...files.gguf import GGUFReader
from ...params.engine_options import CacheDType, EngineConfig
from .shown_name import shown_name
from .sizes import MOST_SEQUENCES, GroupNeeds, ModelNeeds
from .text_advice import text_advice

if TYPE_CHECKING:
    from ...models import LoadedModel

__all__ = ["kinds_of", "needs_of"]

# Per token of a vocabulary: its text and bytes in several forms, and its node in the tree for masks.
_TOKEN_BYTES = 700


def kinds_of(cache: CacheLayout) -> tuple[str, ...]:
    """Return the names of the groups of layers."""
    return tuple(
        f"window {group.window}"
        if group.window
        else f"chunk {group.chunk}"
        if group.chunk
        else "source"
        if group.of_source
        else "full"
        for group in cache.groups
    )


def _limited_groups(cache: CacheLayout) -> tuple[GroupNeeds, ...]:
    """Return the groups of layers with a window or chunks."""
    reaches = [(group.block_bytes, group.window or group.chunk) for group in cache.groups]
    return tuple(GroupNeeds(n_bytes, reach) for n_bytes, reach in reaches if reach)


def _packing_bytes(reader: GGUFReader) -> int:
    """Return the bytes that packing adds to the file's, for matrices that are expanded to a type of more bits."""
    more = 0
    for info in reader.tensors:
        if len(info.shape) > 1 and info.shape[-1]:
            row_bytes = packed_row_bytes(info.dtype, info.shape[-1])
            more += math.prod(info.shape[:-1]) * row_bytes - info.size_bytes
    return more


def needs_of(
    path: Path,
    reader: GGUFReader,
    model: LoadedModel,
    config: EngineConfig,
    *,
    kv_dtype: CacheDType,
    adapter_bytes: int,
    own_kernels: bool = False,
) -> ModelNeeds:
    """Return the needs of a model.  A step has a few rows as wide as the model and as its feed-forward layers."""
    c, cache = model.config, CacheLayout(model.cache, kv_dtype)
    return ModelNeeds(
        name=shown_name(path),
        n_ctx_train=c.n_ctx_train,
        weights_bytes=reader.size_bytes + adapter_bytes + (_packing_bytes(reader) if own_kernels else 0),
        block_bytes=max(1, cache.block_bytes),
        token_bytes=4 * (8 * c.dim + 4 * c.widest),
        paged=own_kernels,
        fixed_bytes=c.n_vocab * (_TOKEN_BYTES + 4 * (config.max_sequences or MOST_SEQUENCES)),
        state_bytes=cache.state_bytes,
        undivided=c.is_encoder,
        reads_source=c.decoder_start is not None,
        n_source=c.n_source,
        n_ctx_advised=text_advice(reader.metadata).max_tokens,
        limited=_limited_groups(cache),
    )
