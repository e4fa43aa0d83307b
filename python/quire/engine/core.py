"""The core of ``LLM`` and ``AsyncLLM``: every verb up to the requests that it runs, and its result after that.

The two differ only in how they wait, so each verb is implemented once, here, as a ``Call`` or a ``Stream``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..errors import RequestError, UnsupportedError
from ..params.chat_options import CHAT_OPTIONS, ChatOptions
from ..params.request_fields import read_keywords
from .llm_base import LLMBase
from .requests.encoded import SparseVector, max_sim
from .requests.hidden_states import check_readable, tap_request
from .requests.prompts import RequestOptions, prompt_list
from .requests.results import Delta, GenerationResult, collector_of
from .requests.texts import text_list
from .requests.transcripts import StepCollector, samples_of
from .requests.vectors import LogitRows, Vectors, cut, normalized, stacked
from .running import Call, Stream

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ..chat import Messages
    from ..params.chat_options import ChatFields, RunFields
    from ..params.sampling import SamplingParams
    from ..tools.tool_use import ToolUse
    from .engine import EngineRequest, Pooling
    from .loading.retrieval import Output
    from .requests.chat import ChatDelta, ChatResult
    from .requests.entities import Aggregation, Entity
    from .requests.prompts import Prompt
    from .requests.texts import Pair, Ranked, TextKind, TextOptions
    from .requests.tool_turn import ToolTurn
    from .requests.transcripts import Sound, TranscribeOptions, Transcript

__all__ = ["LLMCore", "chat_call", "tool_turn"]

T = TypeVar("T")


def chat_call(method: Callable[..., object], given: ChatFields) -> tuple[RequestOptions, ChatOptions]:
    """Split the keywords of a chat.  TypeError naming the method for one that it does not have."""
    values: dict[str, Any] = {**given}
    chat = {name: values.pop(name) for name, option in CHAT_OPTIONS.items() if option.keyword and name in values}
    rest = {name: values.pop(name) for name in ("salt", "priority", "key") if name in values}
    return RequestOptions(**rest, keywords=read_keywords(method, values)), ChatOptions(**chat)  # type: ignore[arg-type]


def tool_turn(
    method: Callable[..., object],
    messages: Messages,
    params: SamplingParams | None,
    use: ToolUse,
    given: RunFields,
) -> ToolTurn:
    """Return a turn with tools.  TypeError for a keyword that the method does not have, RequestError for ``n``."""
    from .requests.tool_turn import ToolTurn

    chat_call(method, cast("ChatFields", given))
    if given.get("n", 1) != 1 or (params is not None and params.n != 1):
        raise RequestError("[tools] n is not supported: a turn with tools has one answer")
    return ToolTurn.of(messages, params, use, dict(given))


class LLMCore(LLMBase):
    """An open model that prepares the requests of each verb."""

    def _generation(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        options: RequestOptions,
        layers: Sequence[int] | None = None,
    ) -> Call[list[GenerationResult]]:
        requests = self._prompts.requests(prompts, params, options)
        collectors = [collector_of(request) for request in requests]
        asked = list(zip(requests, collectors, strict=True))
        if layers is None:
            return Call(asked, lambda: [collector.result() for collector in collectors])
        layers = self._checked_layers(layers)
        for request in requests:
            check_readable(request)
        found: list[Vectors] = []

        def more() -> list[tuple[EngineRequest, Vectors]]:
            if found:
                return []
            answers = [(one, choice.token_ids) for one, made in asked for choice in made.result().choices]
            found.extend(Vectors() for _ in answers)
            return [(tap_request(*answer), vectors) for answer, vectors in zip(answers, found, strict=True)]

        def result() -> list[GenerationResult]:
            states = iter(self._tapped(found, layers))
            return [collector.result().with_hidden_states(states) for collector in collectors]

        return Call(asked, result, more)

    def _completion(self, prompt: Prompt, params: SamplingParams | None, options: RequestOptions) -> Stream[Delta]:
        request = self._prompts.request(prompt, params, options)
        return Stream(request, collector_of(request))

    def _chat(
        self,
        messages: Messages | Sequence[Messages],
        params: SamplingParams | Sequence[SamplingParams] | None,
        options: RequestOptions,
        chat: ChatOptions,
    ) -> Call[ChatResult | list[ChatResult]]:
        from .requests.chat import ChatCollector, conversations

        conversation_list, several = conversations(messages)
        requests = self._prompts.chat_requests(conversation_list, params, options, chat)
        collectors = [ChatCollector(request, collector_of(request.engine)) for request in requests]

        def result() -> ChatResult | list[ChatResult]:
            results = [collector.result() for collector in collectors]
            return results if several else results[0]

        return Call([(r.engine, collector) for r, collector in zip(requests, collectors, strict=True)], result)

    def _chat_reply(
        self, messages: Messages, params: SamplingParams | None, options: RequestOptions, chat: ChatOptions
    ) -> Stream[ChatDelta]:
        from .requests.chat import ChatCollector

        request = self._prompts.chat_request(messages, params, options, chat)
        return Stream(request.engine, ChatCollector(request, collector_of(request.engine)))

    def _transcript(self, audio: Sound, speech: TranscribeOptions, options: RequestOptions) -> Call[Transcript]:
        sound = Path(audio) if isinstance(audio, str) else audio
        steps = self._transcription(samples_of(sound, "transcribe"), speech, options)

        def more() -> list[tuple[EngineRequest, StepCollector]]:
            request = steps.next_request()
            return [] if request is None else [(request, StepCollector(steps, collector_of(request)))]

        return Call(more(), steps.transcript, more)

    def _logits(self, token_ids: Sequence[int]) -> Call[npt.NDArray[np.float32]]:
        rows = LogitRows()
        return Call([(self._prompts.logits_request(token_ids), rows)], lambda: rows.joined(self.n_vocab))

    def _embeddings(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling: Pooling | None,
        normalize: bool,
        options: RequestOptions,
        text: TextOptions,
        *,
        dimensions: int | None = None,
    ) -> Call[npt.NDArray[np.float32]]:
        if pooling == "none":
            raise RequestError("[embed] pooling 'none' gives no single vector: use embed_tokens, or mean, cls or last")
        requests = [
            self._image_vector(prompt) or self._embedding_request(prompt, pooling, options, text)
            for prompt in prompt_list(prompts)
        ]

        def result(vectors: Sequence[Vectors]) -> npt.NDArray[np.float32]:
            found = cut(self._vectors.retrieval.finished(stacked(vectors, "embed")), dimensions)
            return normalized(found) if normalize else found

        return _vector_call(requests, result)

    def _encoded(
        self,
        prompts: Prompt | Sequence[Prompt],
        output: Output,
        normalize: bool,
        options: RequestOptions,
        text: TextOptions,
    ) -> Call[npt.NDArray[np.float32] | list[SparseVector] | list[npt.NDArray[np.float32]]]:
        if output == "dense":
            name = text.kind if text.kind in self.prompts and text.prompt_name is None else text.prompt_name
            return self._embeddings(prompts, None, normalize, options, replace(text, prompt_name=name))  # type: ignore[return-value]
        maker = self._vectors
        requests = [maker.request(prompt, output, options, text) for prompt in prompt_list(prompts)]

        def result(vectors: Sequence[Vectors]) -> list[SparseVector] | list[npt.NDArray[np.float32]]:
            found = [
                (request.token_ids, item.vector)
                for request, item in zip(requests, vectors, strict=True)
                if item.vector is not None
            ]
            if output == "sparse":
                return [maker.sparse(ids, hidden) for ids, hidden in found]
            return [maker.multi(ids, hidden, maker.kind_of(text), normalize) for ids, hidden in found]

        return _vector_call(requests, result)

    def _token_vectors(
        self, prompts: Prompt | Sequence[Prompt], options: RequestOptions, text: TextOptions
    ) -> Call[list[npt.NDArray[np.float32]]]:
        requests = [self._embedding_request(prompt, "none", options, text) for prompt in prompt_list(prompts)]
        return _vector_call(requests, lambda vectors: [v.vector for v in vectors if v.vector is not None])

    def _hidden_states(
        self, prompts: Prompt | Sequence[Prompt], layers: Sequence[int]
    ) -> Call[list[npt.NDArray[np.float32]]]:
        requests = self._tap_requests(prompt_list(prompts), layers)
        return _vector_call(requests, lambda vectors: self._tapped(vectors, layers))

    def _classification(
        self, prompts: Prompt | Sequence[Prompt | Pair], raw_scores: bool, options: RequestOptions, text: TextOptions
    ) -> Call[npt.NDArray[np.float32]]:
        requests = [self._score_request(prompt, options, text) for prompt in text_list(prompts)]
        return _vector_call(requests, lambda vectors: self._classes(stacked(vectors, "classify"), raw_scores))

    def _token_classes(
        self, prompts: Prompt | Sequence[Prompt], raw_scores: bool, options: RequestOptions, text: TextOptions
    ) -> Call[list[npt.NDArray[np.float32]]]:
        requests = [self._tag_request(prompt, options, text) for prompt in prompt_list(prompts)]

        def result(vectors: Sequence[Vectors]) -> list[npt.NDArray[np.float32]]:
            found = [self._scores(item.vector) for item in vectors if item.vector is not None]
            return found if raw_scores else [self._output.shown(scores) for scores in found]

        return _vector_call(requests, result)

    def _tags(
        self,
        prompts: str | Sequence[str],
        aggregation: Aggregation,
        ignored: Sequence[str],
        options: RequestOptions,
        text: TextOptions,
    ) -> Call[list[list[Entity]]]:
        tagger, texts = self._tagger(aggregation), [prompts] if isinstance(prompts, str) else list(prompts)
        if wrong := [prompt for prompt in texts if not isinstance(prompt, str)]:
            raise RequestError(f"[tag] a prompt is {wrong[0]!r:.40}: give a text")
        requests = [self._tag_request(prompt, options, text) for prompt in texts]

        def result(vectors: Sequence[Vectors]) -> list[list[Entity]]:
            asked = zip(texts, requests, vectors, strict=True)
            return [
                tagger.entities(prompt, request.token_ids, self._scores(found.vector), ignored)
                for prompt, request, found in asked
                if found.vector is not None
            ]

        return _vector_call(requests, result)

    def _ranking(
        self,
        query: Ranked,
        documents: Sequence[Ranked],
        instruction: str | None,
        options: RequestOptions,
        text: TextOptions,
        *,
        logits: bool,
    ) -> Call[npt.NDArray[np.float32]]:
        scale = self._vectors.retrieval.logits_of if logits else None
        if self._compares and instruction is None:
            return self._comparison(query, documents, scale, options, text)
        if scale is not None or not isinstance(query, str) or not all(isinstance(one, str) for one in documents):
            raise UnsupportedError("[rerank] the model ranks texts by a classifier: leave out images and logits")
        pairs = [(query, str(document)) for document in documents]
        requests = [self._score_request(pair, options, text, instruction) for pair in pairs]
        return _vector_call(requests, lambda vectors: self._relevance(stacked(vectors, "rerank")))

    def _comparison(
        self,
        query: Ranked,
        documents: Sequence[Ranked],
        scale: Callable[[float], float] | None,
        options: RequestOptions,
        text: TextOptions,
    ) -> Call[npt.NDArray[np.float32]]:
        """Score documents by vectors: those of tokens, or one of each text or image."""
        import numpy as np

        if not documents:
            raise RequestError("[rerank] no prompts: give one or more")
        kinds: list[TextKind] = ["query"]
        kinds += ["document"] * len(documents)
        given: list[Prompt] = [query, *documents]
        requests = [self._compared(one, kind, options, text) for one, kind in zip(given, kinds, strict=True)]

        def result(vectors: Sequence[Vectors]) -> npt.NDArray[np.float32]:
            asked = zip(requests, vectors, kinds, strict=True)
            first, *others = [
                self._comparable([] if isinstance(request, Vectors) else request.token_ids, found.vector, kind)
                for request, found, kind in asked
                if found.vector is not None
            ]
            scores = [max_sim(first, other) for other in others]
            return np.array(scores if scale is None else [scale(score) for score in scores], np.float32)

        return _vector_call(requests, result)


def _vector_call(requests: Sequence[EngineRequest | Vectors], result: Callable[[Sequence[Vectors]], T]) -> Call[T]:
    """Return a call that computes vectors, some of which may be known."""
    vectors = [request if isinstance(request, Vectors) else Vectors() for request in requests]
    asked = [(one, found) for one, found in zip(requests, vectors, strict=True) if not isinstance(one, Vectors)]
    return Call(asked, lambda: result(vectors))
