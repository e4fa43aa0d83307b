"""The worker's side of requests for vectors of other kinds, classes of tokens, and late interaction."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np

from ...engine.engine import Failure
from ...engine.requests.encoded import VectorMaker, max_sim
from ...engine.requests.media_prompts import prompt_of_parts
from ...engine.requests.vectors import Vectors, quantize_embeddings
from ...errors import RequestError
from . import protocol as wire
from .embedding import Array, End, Scoring, shaped

if TYPE_CHECKING:
    from ..._native.engine import Event
    from ...engine.engine import Deliver, EngineRequest
    from ...engine.llm_base import LLMBase
    from ...engine.requests.prompts import Prompt, RequestOptions
    from ...engine.requests.texts import TextKind, TextOptions

__all__ = ["LateScores", "encoded_values", "multi_values", "sparse_values", "state_values", "token_values"]

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


def state_values(model: LLMBase, layers: Sequence[int], states: Array) -> Values:
    """Return the answer's values for hidden states after layers."""
    (found,) = model._tapped([Vectors(states)], layers)
    return {"vector": found.astype("<f4").tobytes(), "shape": list(found.shape)}


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


def _shown(messages: Sequence[Mapping[str, Any]], side: str) -> dict[str, Any]:
    """Return one side of a pair as a prompt.  RequestError that names the side if it cannot be decoded."""
    try:
        return prompt_of_parts(messages)
    except RequestError as error:
        raise RequestError(f"[rerank] {side}: {str(error).removeprefix('[chat] messages: ')}") from None


@dataclass
class _Query:
    """A query's vectors, or those who wait for them."""

    vectors: Array | None = None
    waiting: list[Found] = field(default_factory=list)


class LateScores:
    """Scores documents by vectors; the queries' vectors are computed once and kept for a while."""

    def __init__(
        self,
        request: Callable[[Prompt, TextKind, RequestOptions, TextOptions], EngineRequest | Vectors],
        comparable: Callable[[Sequence[int], Array, TextKind], Array],
        submit: Callable[[EngineRequest, Deliver], int],
        logits_of: Callable[[float], float] | None,
    ) -> None:
        """``request`` and ``comparable``: see ``LLMBase``.  ``logits_of``: makes a logit of a cosine."""
        self._request, self._comparable, self._submit, self._logits_of = request, comparable, submit, logits_of
        self._lock = threading.Lock()
        self._queries: OrderedDict[tuple[object, ...], _Query] = OrderedDict()

    def score(
        self,
        message: wire.Score,
        options: RequestOptions,
        text: TextOptions,
        *,
        submit: Callable[[EngineRequest, Deliver], None],
        end: End,
        failing: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """Score a document with the query's vectors, which may have to be computed first.

        Args:
            message: The request.
            options, text: Its options.
            submit: Submits the document's request.
            end: Sends the answer.
            failing: Ends the request if anything inside fails.
        """
        if message.instruction is not None or isinstance(message.text, list):
            raise RequestError("[rerank] vectors are made of texts and images, without an instruction: leave it out")
        query = _shown(message.messages, "query") if message.messages else message.text
        document = _shown(message.second_messages, "document") if message.second_messages else message.second or ""
        request = self._request(document, "document", options, text)

        def go_on(found: Array | Exception) -> None:
            with failing():
                if isinstance(found, Exception):
                    raise found
                if isinstance(request, Vectors):
                    assert request.vector is not None
                    known = {"n_tokens": 0, "n_cached_tokens": 0, "seconds": 0.0}
                    end(message.id, [wire.Answer(message.id, {**self._values(found, [], request.vector), **known})])
                    return
                answer = Scoring(
                    message.id, len(request.token_ids), end, partial(self._values, found, request.token_ids)
                )
                submit(request, answer.deliver)

        key = (
            msgspec.json.encode(message.messages) if message.messages else message.text,
            options.salt,
            options.adapter,
            text,
        )
        self._with_query(key, query, options, text, go_on)

    def _with_query(
        self, key: tuple[object, ...], query: Prompt, options: RequestOptions, text: TextOptions, found: Found
    ) -> None:
        """Call ``found`` with the query's vectors, or with the error of their request."""
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
                request = self._request(query, "query", options, text)
                if isinstance(request, Vectors):
                    assert request.vector is not None
                    self._settle(key, self._comparable([], request.vector, "query"))
                    return
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
            self._settle(key, self._comparable(ids, vectors.vector, "query"))

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

    def _values(self, query: Array, ids: Sequence[int], hidden: Array) -> Values:
        """Return the answer's values for a document, given the query's vectors."""
        score = max_sim(query, self._comparable(ids, hidden, "document"))
        return {
            "scores": [score],
            "shown": [score],
            "labels": [],
            "relevance": score,
            "is_judged": False,
            "is_raw": True,
            "is_product": True,
            "logit": None if self._logits_of is None else self._logits_of(score),
        }
