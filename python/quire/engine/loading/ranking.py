"""Classifiers outside the model: of decoders, with a template that asks for a judgement, and of means of encoders.

Sources: llama.cpp's converter for the names, ``cls.output`` and the template ``rerank``; the model card of
Qwen3-Reranker for its score, which is the odds of yes against no.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ..._native.core import Tensor
from ..._native.quant import dequantize
from ...checkpoints.reading.qwen3_reranker import TEMPLATE, YES_OR_NO, is_qwen3_reranker
from ...errors import LoadError, UnsupportedError
from .pooled_head import Hidden, hidden_of, matrix

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ...files.gguf import GGUFReader
    from ...tokenizer import Tokenizer

__all__ = ["RankHead", "RankTemplate", "is_judged", "mean_head", "rank_head", "relevance"]

HEAD, BIAS = "cls.output.weight", "cls.output.bias"
GELU_HEADS = ("modern-bert", "eurobert")  # the others have tanh
_PLACES = re.compile(r"(\{query\}|\{document\})")
_INSTRUCT = re.compile(r"(?<=<Instruct>: ).*(?=\n<Query>)")


Segment: TypeAlias = tuple[str, bool]


class RankTemplate:
    """A prompt with places for a query and a document."""

    def __init__(self, source: str) -> None:
        """LoadError if the template has no place for one of them."""
        self._source = source
        if _PLACES.findall(source) != ["{query}", "{document}"]:
            raise LoadError("[rerank] the template needs one {query}, followed by one {document}")

    def segments(self, query: str, document: str, instruction: str | None = None) -> list[Segment]:
        """Return texts, each with whether it is the template's.  UnsupportedError without a place for instructions."""
        source = self._source
        given: list[Segment] = []
        if instruction is not None:
            found = _INSTRUCT.search(source)
            if found is None:
                raise UnsupportedError("[rerank] the model's template has no place for an instruction: leave it out")
            given = [(source[: found.start()], True), (instruction, False)]
            source = source[found.end() :]
        values = {"{query}": query, "{document}": document}
        parts = _PLACES.split(source)
        return given + [(values[part], False) if part in values else (part, True) for part in parts]

    @staticmethod
    def around_document(segments: list[Segment]) -> tuple[list[Segment], Segment, list[Segment]]:
        """Split segments at the document: the last text that is not the template's."""
        at = max(i for i, (_, is_template) in enumerate(segments) if not is_template)
        return segments[:at], segments[at], segments[at + 1 :]


@dataclass(frozen=True)
class RankHead:
    """A classifier: ``weights [n_classes, n_hidden]``, ``bias [n_classes]`` and, for rerankers, a template.

    ``hidden``: a layer before the classifier, in reward models and in encoders that classify the mean of all tokens.
    """

    weights: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32] | None = None
    labels: tuple[str, ...] = ()
    template: RankTemplate | None = None
    hidden: Hidden | None = None

    def scores(self, hidden: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the class scores ``[n, n_classes]`` of hidden states ``[n, n_hidden]``."""
        rows = hidden if self.hidden is None else self.hidden(hidden)
        made: npt.NDArray[np.float32] = rows @ self.weights.T
        return made if self.bias is None else made + self.bias


def is_judged(labels: Sequence[str]) -> bool:
    """Return whether the classes are yes and no."""
    return tuple(labels) == YES_OR_NO


def relevance(scores: npt.NDArray[np.float32], labels: Sequence[str]) -> npt.NDArray[np.float32]:
    """Return ``[n]`` from class scores ``[n, n_classes]``: that of the first class, or yes minus no."""
    made: npt.NDArray[np.float32] = scores[:, 0] - scores[:, 1] if is_judged(labels) else scores[:, 0]
    return made


def mean_head(reader: GGUFReader, arch: str, dim: int, labels: tuple[str, ...]) -> RankHead:
    """Return the classifier of an encoder that classifies the mean of all tokens.  LoadError if its shape is wrong."""
    metadata = reader.metadata
    hidden = None
    if "cls.weight" in reader:
        kind = metadata.text(f"{arch}.classifier.activation", "gelu" if arch in GELU_HEADS else "tanh")
        eps = metadata.number(f"{arch}.attention.layer_norm_epsilon", 1e-5)
        hidden = hidden_of(reader, "cls", dim, activation=kind, eps=eps, n_out=dim)
    n_class = reader.tensor_info(HEAD).shape[0]
    weights = matrix(reader, HEAD, (n_class, dim))
    bias = matrix(reader, BIAS, (n_class,)) if BIAS in reader else None
    return RankHead(weights, bias, labels, hidden=hidden)


def rank_head(reader: GGUFReader, arch: str, tokenizer: Tokenizer | None, labels: tuple[str, ...]) -> RankHead | None:
    """Return the classifier of a decoder's file, or None.  LoadError if its shape is wrong.

    For a reranker published as a causal model, it is two rows of the output matrix.
    """
    template = tokenizer.vocabulary.chat_templates.get("rerank") if tokenizer is not None else None
    names = [reader.metadata.text(f"general.{key}", "") for key in ("name", "basename")]
    is_reranker = arch == "qwen3" and is_qwen3_reranker(*names)
    if HEAD in reader:
        dim = reader.tensor_info("token_embd.weight").shape[1]
        shape = reader.tensor_info(HEAD).shape
        n_class = 1 if len(shape) == 1 else shape[0]
        if shape not in ((n_class, dim), (dim,)) or (labels and len(labels) != n_class):
            raise LoadError(f"[{arch}] '{HEAD}' has shape {list(shape)}: expected [{len(labels) or 'classes'}, {dim}]")
        weights = dequantize(reader.tensor(HEAD)).reshape(n_class, dim)
        bias = dequantize(reader.tensor(BIAS)) if BIAS in reader else None
        if bias is not None and bias.shape != (n_class,):
            raise LoadError(f"[{arch}] '{BIAS}' has shape {list(bias.shape)}: expected [{n_class}]")
        if template is None and is_reranker:
            template = TEMPLATE
        hidden = None
        if "cls.weight" in reader:
            activation = reader.metadata.text(f"{arch}.classifier.activation", "relu")
            hidden = hidden_of(reader, "cls", dim, activation=activation, n_out=dim)
        return RankHead(weights, bias, labels, None if template is None else RankTemplate(template), hidden)
    if not is_reranker or tokenizer is None:
        return None
    rows = _rows(reader, [_word(tokenizer, word) for word in YES_OR_NO])
    return RankHead(rows, None, YES_OR_NO, RankTemplate(template or TEMPLATE))


def _word(tokenizer: Tokenizer, word: str) -> int:
    ids = tokenizer.encode(word, add_special=False)
    if len(ids) != 1:
        raise LoadError(f"[rerank] the vocabulary has no token for {word!r}")
    return ids[0]


def _rows(reader: GGUFReader, ids: Sequence[int]) -> npt.NDArray[np.float32]:
    """Return rows of the output matrix as float32."""
    import numpy as np

    name = "output.weight" if "output.weight" in reader else "token_embd.weight"
    tensor = reader.tensor(name)
    stored = np.ascontiguousarray(tensor.numpy()[list(ids)])
    return dequantize(Tensor.from_numpy(stored, tensor.dtype))
