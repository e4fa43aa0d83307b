"""Read which vectors a model makes besides embeddings: sparse ones, and one for each token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from ...errors import LoadError, UnsupportedError
from ...tokenizer.word_pieces import SPACE
from .pooled_head import Hidden, hidden_of

if TYPE_CHECKING:
    from ...files.gguf import GGUFReader, Metadata
    from ...models.base import Config
    from ...tokenizer import Tokenizer
    from .pooled_head import Array

__all__ = ["MultiRules", "Output", "PageRules", "Retrieval", "retrieval_of"]

Output: TypeAlias = Literal["dense", "sparse", "multi"]
_PREFIX = "quire.multi."


@dataclass(frozen=True)
class MultiRules:
    """How ColBERT reads texts.

    Attributes:
        marks: Tokens after the first one, by kind of text.
        lengths: Most tokens of a text, by kind.
        expansion: Queries are filled up with mask tokens, which other tokens attend to or not; None: they are not.
        mask: The mask token.
        skipped: Tokens of documents whose vectors are left out.
    """

    marks: dict[str, int]
    lengths: dict[str, int]
    expansion: Literal["attended", "apart"] | None
    mask: int
    skipped: frozenset[int]


@dataclass(frozen=True)
class PageRules:
    """How ColPali and its relatives read images and queries.

    Attributes:
        image_prompt: The text around an image, with the model's placeholder for it.
        query_prompt: The text before a query.
        pad: The padding token behind queries.
        n_pads: How many of them.
    """

    image_prompt: str
    query_prompt: str
    pad: int
    n_pads: int


@dataclass(frozen=True)
class Retrieval:
    """The kinds of vectors that a model makes.

    Attributes:
        sparse: BGE-M3's head, which weighs each token of the text; None: there is none.
        vocabulary: The activation of vectors over the vocabulary (SPLADE); None: the model does not make them.
        multi: The head for vectors of tokens of BGE-M3 or, with ``pages``, of ColPali; None: there is none.
        rules: How ColBERT reads texts; None: the model is another.
        logits: Scale and bias that make logits of cosines (CLIP, SigLIP); None: the file has none.
        pages: How ColPali reads images and queries; None: the model is another.
        unread: Files with heads that were not read.
        after_pooling: sentence-transformers' dense layers that the model cannot contain.
    """

    sparse: Hidden | None = None
    vocabulary: str | None = None
    multi: Hidden | None = None
    rules: MultiRules | None = None
    pages: PageRules | None = None
    logits: tuple[float, float] | None = None
    unread: tuple[str, ...] = ()
    after_pooling: tuple[Hidden, ...] = ()

    def finished(self, vectors: Array) -> Array:
        """Return pooled vectors ``[n, n_hidden]`` after the layers that follow pooling."""
        for layer in self.after_pooling:
            vectors = layer(vectors)
        return vectors

    def logits_of(self, cosine: float) -> float:
        """Return transformers' logit of a text and an image.  UnsupportedError if the file has no scale for it."""
        if self.logits is None:
            raise UnsupportedError("[rerank] the model's file has no scale for logits: ask for cosines")
        scale, bias = self.logits
        return scale * cosine + bias

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The kinds of vectors, the usual one first."""
        found: list[Output] = []
        if self.vocabulary is None and self.rules is None and self.pages is None:
            found.append("dense")
        if self.sparse is not None or self.vocabulary is not None:
            found.append("sparse")
        if self.multi is not None or self.rules is not None:
            found.append("multi")
        return tuple(found)

    def check(self, output: str) -> None:
        """Raise UnsupportedError if the model does not make such vectors."""
        if output in self.outputs:
            return
        expected = ", ".join(self.outputs)
        why = "".join(
            f"; {name} is a pickle, which can run code: save its tensors as {name.removesuffix('.pt')}.safetensors"
            for name in self.unread
        )
        raise UnsupportedError(f"[encode] the model gives no {output} vectors: expected {expected}{why}")


def retrieval_of(reader: GGUFReader, config: Config, tokenizer: Tokenizer | None) -> Retrieval:
    """Read the kinds of vectors that a model makes.  LoadError if its keys contradict each other."""
    metadata, dim = reader.metadata, config.dim
    heads = {
        name: hidden_of(reader, name, dim, activation=activation)
        for name, activation in (("sparse_head", "relu"), ("multi_head", "identity"))
        if f"{name}.weight" in reader
    }
    vocabulary = metadata.text("quire.sparse.activation", "") or None
    if vocabulary not in (None, "relu", "log1p_relu"):
        raise LoadError(f"[loader] unknown quire.sparse.activation '{vocabulary:.40}': expected relu or log1p_relu")
    if vocabulary is not None and "mlm.output.bias" not in reader:
        raise LoadError("[loader] quire.sparse.activation needs a head for masked tokens, which the file lacks")
    return Retrieval(
        sparse=heads.get("sparse_head"),
        vocabulary=vocabulary or ("relu" if "mlm.output.bias" in reader else None),
        multi=heads.get("multi_head"),
        rules=_rules_of(metadata, tokenizer) if metadata.flag("quire.multi", False) else None,
        pages=_pages_of(metadata, tokenizer)
        if _PREFIX + "image_prompt" in metadata and "multi_head" in heads
        else None,
        logits=_logits_of(metadata),
        unread=tuple(_texts(metadata, "quire.embedding.unread")),
        after_pooling=tuple(_layers_after_pooling(reader)),
    )


def _layers_after_pooling(reader: GGUFReader) -> Iterator[Hidden]:
    for i, activation in enumerate(_texts(reader.metadata, "quire.embedding.after_pooling")):
        name = f"pooled_{i}"
        n_in = reader.tensor_info(f"{name}.weight").shape[-1]
        yield hidden_of(reader, name, n_in, activation=activation)


def _texts(metadata: Metadata, key: str) -> list[str]:
    return [one.decode(errors="replace") for one in metadata.strings(key)] if key in metadata else []


def _rules_of(metadata: Metadata, tokenizer: Tokenizer | None) -> MultiRules:
    if tokenizer is None:
        raise LoadError("[loader] quire.multi needs a vocabulary, which the file lacks")
    kinds = ("query", "document")
    expansion = metadata.text(_PREFIX + "expansion", "")
    if expansion not in ("", "attended", "apart"):
        raise LoadError(f"[loader] unknown {_PREFIX}expansion '{expansion:.40}': expected attended or apart")
    skipped = [tokenizer.encode(word, add_special=False) for word in _texts(metadata, _PREFIX + "skipped")]
    mask = tokenizer.vocabulary.special_ids.get("mask")
    if expansion and mask is None:
        raise LoadError(f"[loader] {_PREFIX}expansion needs a mask token, which the vocabulary lacks")
    return MultiRules(
        marks={kind: _mark(metadata.text(f"{_PREFIX}{kind}_mark", ""), tokenizer) for kind in kinds},
        lengths={kind: metadata.integer(f"{_PREFIX}{kind}_tokens", 512, low=4) for kind in kinds},
        expansion=None if not expansion else "attended" if expansion == "attended" else "apart",
        mask=mask or 0,
        skipped=frozenset(ids[0] for ids in skipped if len(ids) == 1),
    )


def _logits_of(metadata: Metadata) -> tuple[float, float] | None:
    name = "quire.embedding.logit_"
    if name + "scale" not in metadata:
        return None
    return metadata.number(name + "scale", 1.0), metadata.number(name + "bias", 0.0)


def _pages_of(metadata: Metadata, tokenizer: Tokenizer | None) -> PageRules:
    pad = tokenizer.vocabulary.special_ids.get("pad") if tokenizer is not None else None
    n_pads = metadata.integer(_PREFIX + "query_padding", 0, low=0, high=1024)
    if n_pads and pad is None:
        raise LoadError(f"[loader] {_PREFIX}query_padding needs a padding token, which the vocabulary lacks")
    image, query = (metadata.text(f"{_PREFIX}{kind}_prompt", "") for kind in ("image", "query"))
    return PageRules(image, query, pad or 0, n_pads)


def _mark(text: str, tokenizer: Tokenizer) -> int:
    """Return the id of a mark such as ``[Q]``, which may end with a space."""
    for written in (text, text.strip(), SPACE + text.strip()):
        if (found := tokenizer.token_id(written)) is not None:
            return found
        ids = tokenizer.encode(written, add_special=False, parse_special=True)
        if len(ids) == 1:
            return ids[0]
    raise LoadError(f"[loader] the vocabulary has no single token for the mark '{text:.40}'")
