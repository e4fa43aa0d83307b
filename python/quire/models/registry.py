"""Which file defines which architecture, and loading a model by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import LoadError, UnsupportedError
from ..gguf import GGUFReader, Metadata
from ..nn import CacheSpec, Trace, Weights
from . import gemma3, llama, qwen2, qwen3, qwen3moe
from .base import Config, Model, trace

if TYPE_CHECKING:
    from .._native.core import Tensor

_Maker = Callable[[Metadata, Weights, int], Model]
ARCHITECTURES: dict[str, _Maker] = {
    **dict.fromkeys(llama.ARCHES, llama.MODEL),
    **dict.fromkeys(qwen2.ARCHES, qwen2.MODEL),
    **dict.fromkeys(qwen3.ARCHES, qwen3.MODEL),
    **dict.fromkeys(qwen3moe.ARCHES, qwen3moe.MODEL),
    **dict.fromkeys(gemma3.ARCHES, gemma3.MODEL),
}


@dataclass(frozen=True)
class LoadedModel:
    """A model's weights, in place, and its traced forward pass."""

    config: Config
    cache: list[CacheSpec]
    trace: Trace


def n_vocab_of(reader: GGUFReader) -> int:
    """Rows of the token embedding.  LoadError when the file's other words on it disagree."""
    shape = reader.tensor_info("token_embd.weight").shape
    if len(shape) != 2:
        raise LoadError(f"[weights] tensor 'token_embd.weight' must have 2 dimensions but is {list(shape)}")
    n_vocab = shape[0]
    m = reader.metadata
    if "tokenizer.ggml.tokens" in m and (n := len(m.strings("tokenizer.ggml.tokens"))) != n_vocab:
        raise LoadError(f"[gguf] the vocabulary must have as many tokens as the embedding, {n_vocab}, but has {n}")
    return n_vocab


def load_model(reader: GGUFReader, place: Callable[[Tensor], Tensor] = lambda tensor: tensor) -> LoadedModel:
    """Declare the weights of the file's architecture and trace its forward pass.

    ``place`` puts each tensor where the model runs (default: where the reader has it).  Raises UnsupportedError for an
    architecture that Quire does not know, listing those it knows; LoadError for keys and tensors that do not fit.
    """
    arch = reader.metadata.text("general.architecture")
    maker = ARCHITECTURES.get(arch)
    if maker is None:
        raise UnsupportedError(
            f"[models] the architecture must be one of {', '.join(sorted(ARCHITECTURES))} but is '{arch}'"
        )
    weights = Weights(reader, place)
    model = maker(reader.metadata, weights, n_vocab_of(reader))
    weights.finish()
    return LoadedModel(model.config, model.cache(), trace(model))
