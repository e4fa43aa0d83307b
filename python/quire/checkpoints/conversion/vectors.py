"""Read how a checkpoint makes sparse vectors and vectors of tokens: SPLADE, BGE-M3 and ColBERT.

Sources: SPLADE (Formal et al. 2021), BGE-M3 (Chen et al. 2024), ColBERT (Khattab and Zaharia 2020), ColPali (Faysse et
al. 2024), and the files that sentence-transformers, FlagEmbedding, PyLate, ColBERT's own code and transformers save.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..._native.quant import dequantize
from ...errors import LoadError, UnsupportedError
from ...files.safetensors import SafetensorsFile
from ..mapping import Array, Entry, Fields, Target, read_json

if TYPE_CHECKING:
    from ..formats import StoredCheckpoint

__all__ = [
    "hides_expansion",
    "linear_heads",
    "logit_entries",
    "multi_entries",
    "page_entries",
    "splade_entries",
    "unread_heads",
]

# FlagEmbedding's files beside the model, with the names of their tensors in GGUF files.
_HEADS = {"sparse_linear": "sparse_head", "colbert_linear": "multi_head"}
_ACTIVATIONS = ("relu", "log1p_relu")


def splade_entries(place: str, config: Fields) -> Iterator[Entry]:
    """Yield the key of vectors over the vocabulary.  UnsupportedError for a pooling other than the maximum."""
    if (pooling := config.text("pooling_strategy", "max")) != "max":
        raise UnsupportedError(f"[convert] unsupported 'pooling_strategy' of '{place}': '{pooling}' (expected max)")
    activation = config.text("activation_function", "relu")
    if activation not in _ACTIVATIONS:
        expected = " or ".join(_ACTIVATIONS)
        raise UnsupportedError(
            f"[convert] unsupported 'activation_function' of '{place}': '{activation}' (expected {expected})"
        )
    config.refuse_unread(("word_embedding_dimension", "embedding_dimension", "chunk_size"))
    yield "quire.sparse.activation", "string", activation


def linear_heads(folder: Path, whole: Fields) -> Iterator[Target]:
    """Yield the matrices of BGE-M3's heads, from safetensors files beside the model; ``whole`` is config.json."""
    for file, name in _HEADS.items():
        path = folder / f"{file}.safetensors"
        if not path.is_file():
            continue
        tensors, dim = SafetensorsFile(path), whole.integer("hidden_size")
        found = {tensor: tensors.shape(tensor) for tensor in tensors}
        rows = found.get("weight", (0,))[0]
        if rows == 0 or found != {"weight": (rows, dim), "bias": (rows,)} or (name == "sparse_head" and rows != 1):
            raise LoadError(f"[convert] '{path}' holds {found}: expected weight [n, {dim}] and bias [n]")
        for tensor in found:
            values: Array = dequantize(tensors.tensor(tensor))
            yield Target(f"{name}.{tensor}", (), made=values)


def unread_heads(folder: Path) -> list[str]:
    """Return the heads that are only there as pickles, which can run code and are therefore not read."""
    stored = [f"{file}.pt" for file in _HEADS if (folder / f"{file}.pt").is_file()]
    return [name for name in stored if not (folder / name).with_suffix(".safetensors").is_file()]


def multi_entries(folder: Path) -> Iterator[Entry]:
    """Yield the keys of a model with a vector for each token, as PyLate or ColBERT's own code describes it."""
    yield "quire.multi", "bool", True
    path = folder / "config_sentence_transformers.json"
    config = Fields(path.name, read_json(path)) if path.is_file() else Fields(path.name, {})
    old = folder / "artifact.metadata"
    if old.is_file():
        yield from _old_entries(Fields(old.name, read_json(old)))
        return
    yield from _marks(config.text("query_prefix", "[Q] "), config.text("document_prefix", "[D] "))
    yield from _lengths(config.integer("query_length", 32, low=4), config.integer("document_length", 180, low=4))
    if config.flag("do_query_expansion", True):
        yield from _expansion(config.flag("attend_to_expansion_tokens", False))
    skipped = config.value("skiplist_words")
    if isinstance(skipped, list) and skipped:
        yield "quire.multi.skipped", "string[]", [str(word) for word in skipped]


def _old_entries(config: Fields) -> Iterator[Entry]:
    """Yield the keys for ColBERT's own artifact.metadata."""
    import string

    yield from _marks(config.text("query_token_id", "[unused0]"), config.text("doc_token_id", "[unused1]"))
    yield from _lengths(config.integer("query_maxlen", 32, low=4), config.integer("doc_maxlen", 220, low=4))
    yield from _expansion(config.flag("attend_to_mask_tokens", False))
    if config.flag("mask_punctuation", True):
        yield "quire.multi.skipped", "string[]", list(string.punctuation)


def _marks(query: str, document: str) -> Iterator[Entry]:
    yield "quire.multi.query_mark", "string", query
    yield "quire.multi.document_mark", "string", document


def _lengths(query: int, document: int) -> Iterator[Entry]:
    yield "quire.multi.query_tokens", "u32", query
    yield "quire.multi.document_tokens", "u32", document


# Models with a vector for each token of an image: the prompts that transformers' processors put around images, and
# before queries.
_PAGES = {
    "ColQwen2ForRetrieval": (
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Describe the image.<|im_end|><|endoftext|>",
        "Query: ",
    )
}
_N_PADS = 10  # padding tokens behind a query


def page_entries(folder: Path, whole: Fields) -> Iterator[Entry]:
    """Yield the keys of a model with a vector for each token of an image; nothing for others."""
    names = [name for name in whole.items("architectures") if isinstance(name, str) and name in _PAGES]
    if not names:
        return
    image, query = _PAGES[names[0]]
    path = folder / "processor_config.json"
    settings = Fields(path.name, read_json(path)) if path.is_file() else Fields(path.name, {})
    yield "quire.multi.image_prompt", "string", settings.text("visual_prompt_prefix", image)
    yield "quire.multi.query_prompt", "string", settings.text("query_prefix", query)
    yield "quire.multi.query_padding", "u32", _N_PADS


def logit_entries(checkpoint: StoredCheckpoint) -> Iterator[Entry]:
    """Yield the scale and the bias that make logits of cosines, which CLIP and SigLIP store as tensors."""
    for name in ("logit_scale", "logit_bias"):
        if name in checkpoint:
            value = float(checkpoint.values(name).reshape(-1)[0])
            yield f"quire.embedding.{name}", "f32", math.exp(value) if name == "logit_scale" else value


def hides_expansion(entries: Iterable[Entry]) -> bool:
    """Return whether the mask tokens of a query are not attended to, which the model's attention has to know."""
    return ("quire.multi.expansion", "string", "apart") in entries


def _expansion(attends: bool) -> Iterator[Entry]:
    yield "quire.multi.expansion", "string", "attended" if attends else "apart"
