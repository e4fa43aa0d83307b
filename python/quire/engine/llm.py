"""The blocking front end."""

from __future__ import annotations

import queue
from collections.abc import Generator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, overload

from ..errors import RequestError
from ..params.request_fields import asked
from .engine import EngineRequest, Failure, Pooling
from .llm_base import UNPOOLED, LLMBase, Vectors, collector_of, normalized, stacked
from .requests.prompts import Prompt, RequestOptions
from .requests.results import Collector, Delta, GenerationResult
from .requests.texts import Pair, TextOptions, Truncate

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from typing_extensions import Unpack

    from .._native.engine import Event
    from ..chat import Messages
    from ..params.request_fields import RequestFields
    from ..params.sampling import SamplingParams
    from .requests.chat import ChatCollector, ChatDelta, ChatFields, ChatRequest, ChatResult, ToolChoice

__all__ = ["LLM"]


class LLM(LLMBase):
    """A model, ready to answer.  Thread-safe: calls from several threads share one batch.

    ``model``: a name (``"qwen3:0.6b"``, ``"org/name"``, ``"org/name:Q4_K_M"``, one of ``quire list``), a GGUF file, a
    checkpoint folder, or None for the small model in the package.  What a name stands for is downloaded where this
    machine does not have it.  The other options are those of ``EngineConfig``.  Raises LoadError, UnsupportedError or
    CapacityError.  ``close()`` (or leaving a ``with`` block) gives all memory back.

    Every verb takes ``salt`` (only requests of one salt share cached prefixes), ``priority`` (higher first, under the
    policies that look at it) and ``key`` (requests of one key share their part of the machine under the dynamic
    policy).  All that generate take the fields of ``SamplingParams`` as keywords, in place of ``params`` or over them,
    and ``response_format`` (OpenAI's, a JSON Schema, or a class of Pydantic), ``regex``, ``choice`` or ``grammar``: the
    form that the answer must have, as in ``StructuredOutputsParams``; in a chat it begins when reasoning has ended.  A
    failing request raises its QuireError and leaves others alone.
    """

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
        **fields: Unpack[RequestFields],
    ) -> list[GenerationResult]:
        """Complete one prompt or several, in one batch; the results are in the prompts' order.

        A string is raw text, in which special tokens are added and parsed; a list or an array of ints is token ids as
        they are.
        ``params``: for all, or one each.  When a request fails, or on KeyboardInterrupt, the others are cancelled.
        """
        options = RequestOptions(salt=salt, priority=priority, key=key, asked=asked(LLM.generate, fields))
        return self._results(self._prompts.requests(prompts, params, options))

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
        **fields: Unpack[RequestFields],
    ) -> Generator[Delta, None, None]:
        """Complete one prompt piece by piece.  Closing the iterator early cancels the request."""
        options = RequestOptions(salt=salt, priority=priority, key=key, asked=asked(LLM.stream, fields))
        return self._deltas(self._prompts.request(prompt, params, options))

    @overload
    def chat(
        self, messages: Messages, params: SamplingParams | None = None, **options: Unpack[ChatFields]
    ) -> ChatResult: ...
    @overload
    def chat(
        self,
        messages: Sequence[Messages],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        **options: Unpack[ChatFields],
    ) -> list[ChatResult]: ...
    def chat(
        self,
        messages: Messages | Sequence[Messages],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        tool_choice: ToolChoice = "auto",
        parallel_tool_calls: bool = True,
        tool_format: str = "auto",
        reasoning_format: str = "auto",
        reasoning_budget: int | None = None,
        template_values: Mapping[str, object] | None = None,
        continue_final_message: bool = False,
        max_prompt_tokens: int | None = None,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
        **fields: Unpack[RequestFields],
    ) -> ChatResult | list[ChatResult]:
        """Answer a conversation, rendered by the model's chat template; or several in one batch, in a list.

        What neither ``params`` nor a keyword says is what the model's file advises, else temperature 0.8, ``top_k`` 40,
        ``top_p`` 0.95, ``min_p`` 0.05; ``params`` are taken as they are, with what keywords say.
        ``messages`` are ``{"role": ..., "content": ...}``; their text never becomes control tokens.  The result's
        ``message`` has ``content``, ``reasoning_content`` and ``tool_calls``; its ``as_dict()`` is the next turn's
        message.  ``tools``: function definitions as in OpenAI's interface.  ``tool_choice``: ``"auto"``, where calls of
        tools with ``strict`` follow their schemas; ``"none"``; ``"required"``, or one tool as in OpenAI's interface:
        the answer is calls, or calls of that tool.  ``parallel_tool_calls`` false: one call at most.
        ``tool_format``, ``reasoning_format``: names of formats (docs/tool_calls.md), ``"auto"`` for what the template
        shows, ``"none"`` to leave the text as it is.  ``reasoning_budget``: tokens after which reasoning is ended; each
        token then waits for Python.  ``template_values``: further variables of the template.
        ``continue_final_message``: the answer goes on with the last message, which is the assistant's.
        ``max_prompt_tokens``: where the prompt has more, the oldest turns are dropped; messages of the system and the
        last turn stay.  Raises UnsupportedError for a model without a template.
        """
        from .requests.chat import ChatCollector, ChatOptions, conversations

        options = RequestOptions(salt=salt, priority=priority, key=key, asked=asked(LLM.chat, fields))
        chat = ChatOptions(
            tools=tools,
            tool_choice=tool_choice,
            parallel_tool_calls=parallel_tool_calls,
            tool_format=tool_format,
            reasoning_format=reasoning_format,
            reasoning_budget=reasoning_budget,
            template_values=template_values,
            continue_final_message=continue_final_message,
            max_prompt_tokens=max_prompt_tokens,
        )
        all_messages, several = conversations(messages)
        requests = self._prompts.chat_requests(all_messages, params, options, chat)
        collectors = [ChatCollector(request, collector_of(request.engine)) for request in requests]
        self._collect([(r.engine, c) for r, c in zip(requests, collectors, strict=True)])
        results = [collector.result() for collector in collectors]
        return results if several else results[0]

    def chat_stream(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        tool_choice: ToolChoice = "auto",
        parallel_tool_calls: bool = True,
        tool_format: str = "auto",
        reasoning_format: str = "auto",
        reasoning_budget: int | None = None,
        template_values: Mapping[str, object] | None = None,
        continue_final_message: bool = False,
        max_prompt_tokens: int | None = None,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
        **fields: Unpack[RequestFields],
    ) -> Generator[ChatDelta, None, None]:
        """``chat`` piece by piece.  Closing the iterator early cancels the request."""
        from .requests.chat import ChatOptions

        options = RequestOptions(salt=salt, priority=priority, key=key, asked=asked(LLM.chat_stream, fields))
        chat = ChatOptions(
            tools=tools,
            tool_choice=tool_choice,
            parallel_tool_calls=parallel_tool_calls,
            tool_format=tool_format,
            reasoning_format=reasoning_format,
            reasoning_budget=reasoning_budget,
            template_values=template_values,
            continue_final_message=continue_final_message,
            max_prompt_tokens=max_prompt_tokens,
        )
        return self._chat_deltas(self._prompts.chat_request(messages, params, options, chat))

    def _chat_deltas(self, request: ChatRequest) -> Generator[ChatDelta, None, None]:
        from .requests.chat import ChatCollector

        collector = ChatCollector(request, collector_of(request.engine))
        for event in self._events(request.engine):
            yield collector.add(event)

    def logits(self, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Logits of every position, float32 ``[n_tokens, n_vocab]``: row i scores what follows token i."""
        return self._joined_logits(list(self._events(self._prompts.logits_request(token_ids))))

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling: Pooling | None = None,
        normalize: bool = True,
        prompt_name: str | None = None,
        truncate: Truncate = False,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
    ) -> npt.NDArray[np.float32]:
        """Embed one prompt or several: float32 ``[n_prompts, n_hidden]``, the hidden states that logits are made of.

        ``pooling``: ``"last"``, the last token's; ``"cls"``, the first's; ``"mean"`` of all tokens, for which a decoder
        computes logits of all of them; None what the model's file says, or else an encoder's mean, a decoder's last.
        ``normalize``: to length 1.  ``prompt_name``: which of the model's ``prompts`` goes before each text, such as
        ``"query"``; None its default, which few have.  ``truncate``: True leaves out what is more than the context, a
        number what is more than so many tokens; otherwise a prompt that does not fit is an error.  Raises
        UnsupportedError for a model that does not show its hidden states.
        """
        options = RequestOptions(salt=salt, priority=priority, key=key)
        text = TextOptions(truncate=truncate, prompt_name=prompt_name)
        if pooling == "none":
            raise RequestError(UNPOOLED)
        requests = self._embedding_requests(prompts, pooling, options, text)
        result = stacked(self._vectors(requests), "embed")
        return normalized(result) if normalize else result

    def embed_tokens(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        prompt_name: str | None = None,
        truncate: Truncate = False,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
    ) -> list[npt.NDArray[np.float32]]:
        """The vectors of every token, one float32 ``[n_tokens, n_hidden]`` for each prompt; see ``embed``."""
        options = RequestOptions(salt=salt, priority=priority, key=key)
        text = TextOptions(truncate=truncate, prompt_name=prompt_name)
        requests = self._embedding_requests(prompts, "none", options, text)
        return [item.vector for item in self._vectors(requests) if item.vector is not None]

    def hidden_states(
        self, prompts: Prompt | Sequence[Prompt], *, layers: Sequence[int]
    ) -> list[npt.NDArray[np.float32]]:
        """What layers leave of every token, one float32 ``[n_layers, n_tokens, n]`` for each prompt.

        ``layers``: numbers from 0, of ``taps``, which the model was opened with.  As in transformers'
        ``hidden_states[layer + 1]``, the state is that before the last norm.  Nothing is taken from the cache.  Raises
        RequestError for layers that are not tapped.
        """
        requests = self._taps_requests(prompts, layers)
        return self._tapped(self._vectors(requests), layers)

    def classify(
        self,
        prompts: Prompt | Sequence[Prompt | Pair],
        *,
        raw_scores: bool = False,
        truncate: Truncate = False,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
    ) -> npt.NDArray[np.float32]:
        """Probabilities of the classes in ``labels``: float32 ``[n_prompts, n_classes]``.

        A tuple of two texts in the list is a pair, such as premise and hypothesis.  The scores' softmax; their sigmoid
        where there is a single class or the model's ``problem_type`` says that classes do not exclude each other; of a
        regression, or with ``raw_scores``, the scores as they are.  ``truncate``: as for ``embed``; the longer text of
        a pair loses tokens first.  UnsupportedError for a model without a classifier.
        """
        options, text = RequestOptions(salt=salt, priority=priority, key=key), TextOptions(truncate=truncate)
        requests = self._class_requests(prompts, options, text)
        return self._classes(stacked(self._vectors(requests), "classify"), raw_scores=raw_scores)

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        instruction: str | None = None,
        truncate: Truncate = False,
        salt: bytes = b"",
        priority: int = 0,
        key: str = "",
    ) -> npt.NDArray[np.float32]:
        """How well each document answers the query: float32 ``[n_documents]``, in the documents' order.

        The score of the first class; of a reranker that answers yes or no, how far yes is above no.  Larger is better,
        and ``1 / (1 + exp(-score))`` a probability.  ``instruction``: what makes a document relevant, for rerankers
        whose template has one.  ``truncate``: as for ``classify``.  UnsupportedError for a model without a classifier.
        """
        options, text = RequestOptions(salt=salt, priority=priority, key=key), TextOptions(truncate=truncate)
        requests = self._pair_requests(query, documents, instruction, options, text)
        return self._relevance(stacked(self._vectors(requests), "rerank"))

    def close(self) -> None:
        """Stop and give all memory back; answers that are under way end as cancelled.  May be called again."""
        self._close_engine()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _results(self, requests: Sequence[EngineRequest]) -> list[GenerationResult]:
        collectors = [collector_of(request) for request in requests]
        self._collect(list(zip(requests, collectors, strict=True)))
        return [collector.result() for collector in collectors]

    def _vectors(self, requests: Sequence[EngineRequest]) -> list[Vectors]:
        """What requests to embed give."""
        vectors = [Vectors() for _ in requests]
        self._collect(list(zip(requests, vectors, strict=True)))
        return vectors

    def _collect(self, requests: Sequence[tuple[EngineRequest, Collector | ChatCollector | Vectors]]) -> None:
        """Run requests until all are complete."""
        inbox: queue.SimpleQueue[Sequence[Event | Failure]] = queue.SimpleQueue()
        running: dict[int, Collector | ChatCollector | Vectors] = {}
        try:
            for request, collector in requests:
                running[self._engine.submit(request, inbox.put)] = collector
            while running:
                for item in inbox.get():
                    if isinstance(item, Failure):
                        del running[item.request_id]
                        raise item.error
                    collector = running[item.request_id]
                    collector.add(item)
                    if collector.complete:
                        del running[item.request_id]
        finally:
            for request_id in running:
                self._engine.cancel(request_id)

    def _deltas(self, request: EngineRequest) -> Generator[Delta, None, None]:
        collector = collector_of(request)
        for event in self._events(request):
            yield collector.add(event)

    def _events(self, request: EngineRequest) -> Generator[Event, None, None]:
        """The events of one request; leaving early cancels it."""
        inbox: queue.SimpleQueue[Sequence[Event | Failure]] = queue.SimpleQueue()
        request_id = self._engine.submit(request, inbox.put)
        n_unfinished = request.n
        try:
            while n_unfinished:
                for item in inbox.get():
                    if isinstance(item, Failure):
                        n_unfinished = 0
                        raise item.error
                    n_unfinished -= item.kind == "finish"
                    yield item
        finally:
            if n_unfinished:
                self._engine.cancel(request_id)
