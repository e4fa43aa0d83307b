"""Sparse vectors, and vectors of each token, made of a model's hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, get_args

from ...errors import RequestError
from ..loading.text_advice import QUERIES
from .media_prompts import around_image, is_media_prompt, text_alone
from .texts import TextKind, TextOptions
from .vectors import normalized

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ...tokenizer import Tokenizer
    from ..engine import EngineRequest, Pooling
    from ..loading.retrieval import MultiRules, Output, PageRules, Retrieval
    from .prompts import Prompt, Prompts, RequestOptions
    from .texts import Texts

    Array: TypeAlias = npt.NDArray[np.float32]

__all__ = ["SparseVector", "VectorMaker", "max_sim"]


class SparseVector(NamedTuple):
    """Weights of some tokens of the vocabulary: ``indices [n]`` in ascending order, and their ``values [n]``."""

    indices: npt.NDArray[np.int32]
    values: Array

    def dot(self, other: SparseVector) -> float:
        """Return the product with another vector, their similarity."""
        import numpy as np

        _, mine, theirs = np.intersect1d(self.indices, other.indices, assume_unique=True, return_indices=True)
        return float(self.values[mine].astype(np.float64) @ other.values[theirs].astype(np.float64))

    def as_dict(self) -> dict[int, float]:
        """Return the weight of each token."""
        return dict(zip(self.indices.tolist(), self.values.tolist(), strict=True))


def max_sim(query: Array, document: Array) -> float:
    """Return the sum of each query vector's largest product (Khattab and Zaharia 2020)."""
    return float((query @ document.T).max(axis=1).sum()) if len(query) and len(document) else 0.0


@dataclass(frozen=True)
class VectorMaker:
    """Makes the requests for one model's vectors, and the vectors from its hidden states."""

    retrieval: Retrieval
    prompts: Prompts
    texts: Texts

    @property
    def _tokenizer(self) -> Tokenizer:
        return self.prompts.tokenizer

    def request(self, prompt: Prompt, output: Output, options: RequestOptions, text: TextOptions) -> EngineRequest:
        """Return the request for sparse vectors or those of tokens.  UnsupportedError if the model makes none."""
        self.retrieval.check(output)
        if text.kind not in (None, *get_args(TextKind)):
            raise RequestError(f"[encode] kind {text.kind!r:.40} is unknown: expected query or document")
        if self.retrieval.pages is not None:
            return self.prompts.embedding_request(self._page(self.retrieval.pages, prompt, text), "none", options)
        pooling: Pooling = "max" if output == "sparse" and self.retrieval.vocabulary is not None else "none"
        rules = self.retrieval.rules
        if output == "sparse" or rules is None:
            return self.prompts.embedding_request(self.texts.embedded(prompt, text), pooling, options)
        ids, n_own = self._marked(rules, prompt, text)
        second = n_own if n_own < len(ids) and rules.expansion == "apart" else None
        return self.prompts.embedding_request(ids, pooling, options, second)

    @staticmethod
    def kind_of(text: TextOptions) -> TextKind:
        """Return how ColBERT reads a text, which requests of other formats tell by its prompt or its input type."""
        if text.kind is not None:
            return text.kind
        return "query" if text.prompt_name in QUERIES or text.input_type in QUERIES else "document"

    def _page(self, rules: PageRules, prompt: Prompt, text: TextOptions) -> Prompt:
        """Return an image in the model's prompt, or a text's ids.  RequestError for an image with a text."""
        if is_media_prompt(prompt):
            alone = text_alone(prompt)
            if alone is None:
                return around_image(prompt, rules.image_prompt)
            prompt = alone
        if self.kind_of(text) == "document" or not isinstance(prompt, str):
            return self.texts.single(prompt, text)
        after = [rules.pad] * rules.n_pads + self._tokenizer.encode("\n", add_special=False)
        limit = self.texts.limit(text.truncate)
        cut = text if limit is None else replace(text, truncate=max(1, limit - len(after)))
        return self.texts.single(rules.query_prompt + prompt, cut) + after

    def _marked(self, rules: MultiRules, prompt: Prompt, text: TextOptions) -> tuple[list[int], int]:
        """Return a text's ids with the mark of its kind, and how many are its own; a query may be filled up."""
        kind = self.kind_of(text)
        longest = min(rules.lengths[kind], self.texts.limit(True) or 0)
        ids = self.texts.single(prompt, TextOptions(truncate=longest - 1, side=text.side))
        ids = [*ids[:1], rules.marks[kind], *ids[1:]]
        n_own = len(ids)
        if kind == "query" and rules.expansion is not None:
            ids += [rules.mask] * (longest - n_own)
        return ids, n_own

    def sparse(self, ids: Sequence[int], hidden: Array) -> SparseVector:
        """Return a sparse vector from hidden states, or from the largest logit of each token of the vocabulary."""
        import numpy as np

        if self.retrieval.vocabulary is not None:
            weights = np.log1p(np.maximum(hidden, 0))
            weights = np.log1p(weights) if self.retrieval.vocabulary == "log1p_relu" else weights
            places = np.flatnonzero(weights > 0)
            return SparseVector(places.astype(np.int32), weights[places].astype(np.float32))
        assert self.retrieval.sparse is not None
        found = self.retrieval.sparse(hidden)[:, 0]
        special = self._tokenizer.vocabulary.special_ids
        skipped = {special[name] for name in ("bos", "eos", "cls", "sep", "pad", "unk") if name in special}
        best: dict[int, float] = {}
        for id, weight in zip(ids, found.tolist(), strict=True):
            if weight > max(0.0, best.get(id, 0.0)) and id not in skipped:
                best[id] = weight
        indices = np.array(sorted(best), np.int32)
        return SparseVector(indices, np.array([best[id] for id in indices.tolist()], np.float32))

    def multi(self, ids: Sequence[int], hidden: Array, kind: TextKind | None, normalize: bool = True) -> Array:
        """Return the vector of each token that counts, ``[n, n_dimensions]``."""
        import numpy as np

        rules = self.retrieval.rules
        if rules is None:
            assert self.retrieval.multi is not None
            # BGE-M3's first token is not counted: its state is the dense vector.
            found = self.retrieval.multi(hidden if self.retrieval.pages is not None else hidden[1:])
        elif kind != "query" and rules.skipped:
            found = hidden[np.array([id not in rules.skipped for id in ids])]
        else:
            found = hidden
        return normalized(found) if normalize else found
