"""The worker's side of requests for vectors of other kinds, classes of tokens, and late interaction."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ...engine.engine import Failure
from ...engine.requests.encoded import VectorMaker, max_sim
from ...engine.requests.vectors import Vectors, quantize_embeddings
from .embedding import Array, shaped

if TYPE_CHECKING:
    from ..._native.engine import Event
    from ...engine.engine import Deliver, EngineRequest
    from ...engine.requests.prompts import RequestOptions
    from ...engine.requests.texts import TextOptions
    from . import protocol as wire

__all__ = ["LateScores", "encoded_values", "multi_values", "sparse_values", "token_values"]

Values: TypeAlias = dict[str, object]
Found: TypeAlias = Callable[["Array | Exception"], None]
_KEPT_QUERIES = 64


def encoded_values(vector: Array, asked: wire.Embed) -> Values:
    """Return the answer's values for a vector, or one of each token."""
    made = shaped(vector, asked.n_dimensions, asked.norm)
    more: Values = {name: quantize_embeddings(made, name).tobytes() for name in asked.precisions}
    if made.ndim == 2:
        more["n_rows"] = len(made)
    return {"vector": made.astype("<f4").tobytes(), **more}


def sparse_values(maker: VectorMaker, ids: Sequence[int], hidden: Array) -> Values:
    """Return the answer's values for a sparse vector."""
    made = maker.sparse(ids, hidden)
    return {"indices": made.indices.astype("<i4").tobytes(), "values": made.values.astype("<f4").tobytes()}


def multi_values(
    maker: VectorMaker, ids: Sequence[int], hidden: Array, *, kind: str | None, asked: wire.Embed
) -> Values:
    """Return the answer's values for the vectors of a text's tokens."""
    made = maker.multi(ids, hidden, "query" if kind == "query" else "document", normalize=False)
    return encoded_values(made, asked)


def token_values(scores: Array) -> Values:
    """Return the answer's values for the probabilities of one text or of its tokens."""
    found = np.atleast_2d(scores).astype("<f4")
    return {"vector": found.tobytes(), "n_rows": len(found)}


@dataclass
class _Query:
    """A query's vectors, or those who wait for them."""

    vectors: Array | None = None
    waiting: list[Found] = field(default_factory=list)


class LateScores:
    """Scores documents by the vectors of tokens; the queries' vectors are computed once and kept for a while."""

    def __init__(self, maker: VectorMaker, submit: Callable[[EngineRequest, Deliver], int]) -> None:
        self._maker, self._submit = maker, submit
        self._lock = threading.Lock()
        self._queries: OrderedDict[tuple[object, ...], _Query] = OrderedDict()

    def request(self, document: str, options: RequestOptions, text: TextOptions) -> EngineRequest:
        """Return the request for a document's vectors."""
        return self._maker.request(document, "multi", options, replace(text, kind="document"))

    def with_query(self, query: str, options: RequestOptions, text: TextOptions, found: Found) -> None:
        """Call ``found`` with the query's vectors, or with the error of their request."""
        key = (query, options.salt, text)
        with self._lock:
            entry = self._queries.get(key)
            if entry is None:
                entry = self._queries[key] = _Query()
                is_new = True
            else:
                is_new = False
            self._queries.move_to_end(key)
            known = entry.vectors
            if known is None:
                entry.waiting.append(found)
        if known is not None:
            found(known)
        elif is_new:
            try:
                request = self._maker.request(query, "multi", options, replace(text, kind="query"))
                self._submit(request, partial(self._deliver, key, request.token_ids, Vectors()))
            except Exception as error:
                self._settle(key, error)

    def _deliver(
        self, key: tuple[object, ...], ids: Sequence[int], vectors: Vectors, items: Sequence[Event | Failure]
    ) -> None:
        for item in items:
            if isinstance(item, Failure):
                self._settle(key, item.error)
                return
            vectors.add(item)
        if vectors.complete and vectors.vector is not None:
            self._settle(key, self._maker.multi(ids, vectors.vector, "query"))

    def _settle(self, key: tuple[object, ...], result: Array | Exception) -> None:
        with self._lock:
            entry = self._queries[key]
            waiting, entry.waiting = entry.waiting, []
            if isinstance(result, Exception):
                del self._queries[key]
            else:
                entry.vectors = result
                while len(self._queries) > _KEPT_QUERIES and next(iter(self._queries.values())).vectors is not None:
                    self._queries.popitem(last=False)
        for found in waiting:
            found(result)

    def values(self, query: Array, ids: Sequence[int], hidden: Array) -> Values:
        """Return the answer's values for a document, given the query's vectors."""
        score = max_sim(query, self._maker.multi(ids, hidden, "document"))
        return {
            "scores": [score],
            "shown": [score],
            "labels": [],
            "relevance": score,
            "is_judged": False,
            "is_raw": True,
            "is_product": True,
        }
