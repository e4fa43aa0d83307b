"""LlamaIndex: ``QuireLLM``, ``QuireEmbedding`` and ``QuireRerank``.  Needs ``llama-index-core``, 0.14.3 or later."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import aclosing, closing
from typing import Any

from ..engine import LLM, AsyncLLM, ChatDelta, ChatResult, TokenLogprob
from ..errors import RequestError, UnsupportedError
from .shared import Model, absent, awaited, check_options, engine_options, opened, single

try:
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.base.llms.types import (
        AudioBlock,
        ChatMessage,
        ChatResponse,
        CompletionResponse,
        ImageBlock,
        LLMMetadata,
        LogProb,
        TextBlock,
        ThinkingBlock,
        ToolCallBlock,
    )
    from llama_index.core.bridge.pydantic import ConfigDict, Field, PrivateAttr
    from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
    from llama_index.core.llms.function_calling import FunctionCallingLLM
    from llama_index.core.llms.llm import ToolSelection
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.schema import NodeWithScore, QueryBundle
except ImportError as error:
    raise absent("llama_index", "llama-index-core", error) from error

__all__ = ["QuireEmbedding", "QuireLLM", "QuireRerank"]

_PLACE = "llama_index"
_NUM_OUTPUT = 256


class QuireLLM(FunctionCallingLLM):
    """A model in this process that chats, calls functions and predicts instances of a class.

    ``model``: a ``quire.LLM``, or what it opens: a GGUF file, a checkpoint folder, None for the small one in the
    package.  ``options``: those of ``quire.LLM`` for one that is not open, those of LlamaIndex's class, and keywords of
    ``LLM.chat``, which calls take as well.  One that is none of these is a TypeError.

    ``complete`` asks through the chat template, and with ``formatted=True`` (or of a model without one) continues the
    text as it is.  ``structured_predict`` draws no token that would leave the class's schema.  Answers count their
    tokens in ``additional_kwargs``.
    """

    model_config = ConfigDict(extra="allow", arbitrary_types_allowed=True, protected_namespaces=())

    temperature: float | None = None
    max_tokens: int | None = None
    stop: str | list[str] | None = None

    _llm: LLM = PrivateAttr()
    _async: AsyncLLM = PrivateAttr()

    def __init__(self, model: Model = None, **options: Any) -> None:
        engine, rest = engine_options(options)
        super().__init__(**rest)
        check_options(self._options())
        self._llm = opened(model, engine)
        self._async = awaited(self._llm)

    @classmethod
    def class_name(cls) -> str:
        """The name of this class in LlamaIndex."""
        return "QuireLLM"

    @property
    def llm(self) -> LLM:
        """The model that answers."""
        return self._llm

    @property
    def metadata(self) -> LLMMetadata:
        """Sizes by which LlamaIndex truncates prompts."""
        chats = self._chats
        return LLMMetadata(
            context_window=self._llm.n_ctx,
            num_output=self.max_tokens or _NUM_OUTPUT,
            is_chat_model=chats,
            is_function_calling_model=chats,
            model_name=self._llm.model_name,
        )

    @property
    def _chats(self) -> bool:
        return self._llm.tokenizer.chat_template is not None

    def _options(self, given: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return keywords of ``LLM.chat``: those of a call over those of this object."""
        own = {name: getattr(self, name) for name in ("temperature", "max_tokens", "stop")}
        own = {name: value for name, value in own.items() if value is not None}
        return single(_PLACE, {**own, **(self.model_extra or {}), **(given or {})})

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Answer a conversation."""
        return self._response(self._llm.chat(_messages(messages), **self._options(kwargs)))

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Answer a conversation; see ``chat``."""
        return self._response(await self._async.chat(_messages(messages), **self._options(kwargs)))

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Generator[ChatResponse, None, None]:
        """Answer a conversation piece by piece."""
        options = self._options(kwargs)

        def answers() -> Generator[ChatResponse, None, None]:
            growing = _Growing(self._llm)
            with closing(self._llm.chat_stream(_messages(messages), **options)) as deltas:
                for delta in deltas:
                    yield growing.add(delta)

        return answers()

    @llm_chat_callback()
    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> AsyncGenerator[ChatResponse, None]:
        """Answer a conversation piece by piece; see ``stream_chat``."""
        options = self._options(kwargs)

        async def answers() -> AsyncGenerator[ChatResponse, None]:
            growing = _Growing(self._llm)
            async with aclosing(self._async.chat_stream(_messages(messages), **options)) as deltas:
                async for delta in deltas:
                    yield growing.add(delta)

        return answers()

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Complete a text."""
        if not formatted and self._chats:
            return _completion(self.chat([ChatMessage(prompt)], **kwargs))
        (result,) = self._llm.generate(prompt, **self._options(kwargs))
        usage = _usage(result.n_prompt_tokens, len(result.token_ids), result.n_cached_tokens)
        logprobs = _logprobs(self._llm, result.logprobs)
        return CompletionResponse(
            text=result.text, additional_kwargs=usage, raw=_raw(usage, result.finish_reason), logprobs=logprobs
        )

    @llm_completion_callback()
    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Complete a text; see ``complete``."""
        if not formatted and self._chats:
            return _completion(await self.achat([ChatMessage(prompt)], **kwargs))
        (result,) = await self._async.generate(prompt, **self._options(kwargs))
        usage = _usage(result.n_prompt_tokens, len(result.token_ids), result.n_cached_tokens)
        logprobs = _logprobs(self._llm, result.logprobs)
        return CompletionResponse(
            text=result.text, additional_kwargs=usage, raw=_raw(usage, result.finish_reason), logprobs=logprobs
        )

    @llm_completion_callback()
    def stream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> Generator[CompletionResponse, None, None]:
        """Complete a text piece by piece."""

        def answers() -> Generator[CompletionResponse, None, None]:
            if not formatted and self._chats:
                yield from map(_completion, self.stream_chat([ChatMessage(prompt)], **kwargs))
                return
            text = ""
            with closing(self._llm.stream(prompt, **self._options(kwargs))) as deltas:
                for delta in deltas:
                    text += delta.text
                    yield CompletionResponse(text=text, delta=delta.text)

        return answers()

    @llm_completion_callback()
    async def astream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> AsyncGenerator[CompletionResponse, None]:
        """Complete a text piece by piece; see ``stream_complete``."""

        async def answers() -> AsyncGenerator[CompletionResponse, None]:
            if not formatted and self._chats:
                async for response in await self.astream_chat([ChatMessage(prompt)], **kwargs):
                    yield _completion(response)
                return
            text = ""
            async with aclosing(self._async.stream(prompt, **self._options(kwargs))) as deltas:
                async for delta in deltas:
                    text += delta.text
                    yield CompletionResponse(text=text, delta=delta.text)

        return answers()

    def structured_predict(
        self, output_cls: Any, prompt: Any, llm_kwargs: dict[str, Any] | None = None, **prompt_args: Any
    ) -> Any:
        """Return an instance of a Pydantic class, whose schema is enforced."""
        messages = self._extend_messages(prompt.format_messages(llm=self, **prompt_args))
        answer = self.chat(messages, **{**(llm_kwargs or {}), "response_format": output_cls})
        return output_cls.model_validate_json(answer.message.content)

    async def astructured_predict(
        self, output_cls: Any, prompt: Any, llm_kwargs: dict[str, Any] | None = None, **prompt_args: Any
    ) -> Any:
        """Return an instance of a Pydantic class; see ``structured_predict``."""
        messages = self._extend_messages(prompt.format_messages(llm=self, **prompt_args))
        answer = await self.achat(messages, **{**(llm_kwargs or {}), "response_format": output_cls})
        return output_cls.model_validate_json(answer.message.content)

    def _prepare_chat_with_tools(  # noqa: PLR0917
        self,
        tools: Sequence[Any],
        user_msg: str | ChatMessage | None = None,
        chat_history: list[ChatMessage] | None = None,
        verbose: bool = False,
        allow_parallel_tool_calls: bool = False,
        tool_required: bool = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Return the arguments of ``chat`` for tools and a question."""
        messages = list(chat_history or [])
        if user_msg is not None:
            messages.append(ChatMessage(user_msg) if isinstance(user_msg, str) else user_msg)
        if not tools:
            return {"messages": messages, **kwargs}
        shown = [tool.metadata.to_openai_tool(skip_length_check=True) for tool in tools]
        choice = "required" if tool_required else "auto"
        asked = {"tools": shown, "tool_choice": choice, "parallel_tool_calls": allow_parallel_tool_calls}
        return {"messages": messages, **asked, **kwargs}

    def get_tool_calls_from_response(
        self, response: ChatResponse, error_on_no_tool_call: bool = True, **kwargs: Any
    ) -> list[ToolSelection]:
        """Return the tool calls of an answer.  RequestError without any, or for arguments that are not an object."""
        calls = [block for block in response.message.blocks if isinstance(block, ToolCallBlock)]
        if not calls and error_on_no_tool_call:
            raise RequestError(f"[{_PLACE}] the answer calls no tool: {response.message.content!r:.80}")
        return [
            ToolSelection(tool_id=call.tool_call_id or "", tool_name=call.tool_name, tool_kwargs=_arguments(call))
            for call in calls
        ]

    def _response(self, result: ChatResult) -> ChatResponse:
        answer = result.message
        usage = _usage(result.n_prompt_tokens, len(result.token_ids), result.n_cached_tokens)
        calls = [_call(call.id, call.function.name, call.function.arguments) for call in answer.tool_calls]
        return ChatResponse(
            message=_message(answer.reasoning_content or "", answer.content or "", calls),
            raw=_raw(usage, result.finish_reason),
            additional_kwargs=usage,
            logprobs=_logprobs(self._llm, result.logprobs),
        )


class QuireEmbedding(BaseEmbedding):
    """Vectors of texts.

    ``model`` and options of ``quire.LLM`` as in ``QuireLLM``; ``pooling`` and ``normalize`` as in ``LLM.embed``.
    ``query_prefix`` and ``text_prefix`` come before each text: some models were trained so ("query: ", "passage: ").
    """

    pooling: str | None = None
    normalize: bool = True
    query_prefix: str = ""
    text_prefix: str = ""

    _llm: LLM = PrivateAttr()
    _async: AsyncLLM = PrivateAttr()

    def __init__(self, model: Model = None, **options: Any) -> None:
        engine, rest = engine_options(options)
        _known(type(self), rest)
        llm = opened(model, engine)
        super().__init__(**{"model_name": llm.model_name, **rest})
        self._llm, self._async = llm, awaited(llm)

    @classmethod
    def class_name(cls) -> str:
        """The name of this class in LlamaIndex."""
        return "QuireEmbedding"

    @property
    def _how(self) -> dict[str, Any]:
        return {"pooling": self.pooling, "normalize": self.normalize}

    def _get_query_embedding(self, query: str) -> list[float]:
        vector: list[float] = self._llm.embed(self.query_prefix + query, **self._how)[0].tolist()
        return vector

    async def _aget_query_embedding(self, query: str) -> list[float]:
        vector: list[float] = (await self._async.embed(self.query_prefix + query, **self._how))[0].tolist()
        return vector

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return (await self._aget_text_embeddings([text]))[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        vectors: list[list[float]] = self._llm.embed([self.text_prefix + text for text in texts], **self._how).tolist()
        return vectors

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        prefixed = [self.text_prefix + text for text in texts]
        vectors: list[list[float]] = (await self._async.embed(prefixed, **self._how)).tolist()
        return vectors


class QuireRerank(BaseNodePostprocessor):
    """Puts the nodes that answer a question best first.

    ``model``: one with a classifier, as in ``LLM.rerank``, with options of ``quire.LLM``.  ``top_n``: as many are kept,
    None all.
    """

    top_n: int | None = Field(default=None, ge=1)

    _llm: LLM = PrivateAttr()
    _async: AsyncLLM = PrivateAttr()

    def __init__(self, model: Model = None, **options: Any) -> None:
        engine, rest = engine_options(options)
        _known(type(self), rest)
        super().__init__(**rest)
        self._llm = opened(model, engine)
        self._async = awaited(self._llm)

    @classmethod
    def class_name(cls) -> str:
        """The name of this class in LlamaIndex."""
        return "QuireRerank"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        query, texts = _to_rank(nodes, query_bundle)
        return self._ranked(nodes, self._llm.rerank(query, texts)) if texts else []

    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        query, texts = _to_rank(nodes, query_bundle)
        return self._ranked(nodes, await self._async.rerank(query, texts)) if texts else []

    def _ranked(self, nodes: list[NodeWithScore], scores: Any) -> list[NodeWithScore]:
        order = sorted(range(len(nodes)), key=lambda i: -float(scores[i]))[: self.top_n]
        return [NodeWithScore(node=nodes[i].node, score=float(scores[i])) for i in order]


class _Growing:
    """Joins the pieces of an answer, because LlamaIndex's streams carry the whole answer each time."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._content, self._thoughts, self._n_tokens = "", "", 0
        self._calls: list[ToolCallBlock] = []

    def add(self, delta: ChatDelta) -> ChatResponse:
        self._content += delta.content
        self._thoughts += delta.reasoning_content
        self._n_tokens += len(delta.token_ids)
        self._calls += [_call(call.id or "", call.name or "", call.arguments) for call in delta.tool_calls]
        ended = delta.finish_reason is not None
        usage = _usage(delta.n_prompt_tokens, self._n_tokens, delta.n_cached_tokens) if ended else {}
        return ChatResponse(
            message=_message(self._thoughts, self._content, self._calls),
            delta=delta.content,
            raw=_raw(usage, delta.finish_reason) if ended else None,
            additional_kwargs={**usage, **({"thinking_delta": delta.reasoning_content} if self._thoughts else {})},
            logprobs=_logprobs(self._llm, delta.logprobs or None),
        )


def _messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Convert LlamaIndex's messages to those of ``LLM.chat``.  UnsupportedError for blocks that it cannot read."""
    shown = []
    for message in messages:
        made: dict[str, Any] = {"role": message.role.value, "content": message.content or ""}
        parts: list[dict[str, Any]] = []
        for block in message.blocks:
            if isinstance(block, ThinkingBlock):
                made["reasoning_content"] = made.get("reasoning_content", "") + (block.content or "")
            elif isinstance(block, ToolCallBlock):
                function = {"name": block.tool_name, "arguments": json.dumps(_arguments(block))}
                call = {"id": block.tool_call_id, "type": "function", "function": function}
                made.setdefault("tool_calls", []).append(call)
            elif isinstance(block, TextBlock):
                parts.append({"type": "text", "text": block.text})
            elif isinstance(block, ImageBlock):
                parts.append({"type": "image", "image": block.resolve_image().read()})
            elif isinstance(block, AudioBlock):
                parts.append({"type": "audio", "audio": block.resolve_audio().read()})
            else:
                raise UnsupportedError(f"[{_PLACE}] unsupported block in a message: {block.block_type}")
        if any(part["type"] != "text" for part in parts):
            made["content"] = parts
        if "tool_call_id" in message.additional_kwargs:
            made["tool_call_id"] = message.additional_kwargs["tool_call_id"]
        shown.append(made)
    return shown


def _message(thoughts: str, content: str, calls: Sequence[ToolCallBlock]) -> ChatMessage:
    blocks = [ThinkingBlock(content=thoughts)] if thoughts else []
    return ChatMessage(role="assistant", blocks=[*blocks, TextBlock(text=content), *calls])


def _call(number: str, name: str, arguments: str) -> ToolCallBlock:
    try:
        parsed = json.loads(arguments)
    except ValueError:  # the answer was cut
        parsed = arguments
    return ToolCallBlock(tool_call_id=number, tool_name=name, tool_kwargs=parsed)


def _arguments(call: ToolCallBlock) -> dict[str, Any]:
    found = call.tool_kwargs
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except ValueError:
            found = None
    if not isinstance(found, dict):
        raise RequestError(f"[{_PLACE}] arguments of {call.tool_name} are not an object: {call.tool_kwargs!r:.80}")
    return found


def _completion(response: ChatResponse) -> CompletionResponse:
    return CompletionResponse(
        text=response.message.content or "",
        delta=response.delta,
        raw=response.raw,
        logprobs=response.logprobs,
        additional_kwargs=response.additional_kwargs,
    )


def _usage(n_prompt: int, n_tokens: int, n_cached: int) -> dict[str, int]:
    counted = {"prompt_tokens": n_prompt, "completion_tokens": n_tokens, "total_tokens": n_prompt + n_tokens}
    return {**counted, "cached_tokens": n_cached}


def _raw(usage: dict[str, int], finish_reason: str | None) -> dict[str, Any]:
    return {"finish_reason": finish_reason, "usage": usage}


def _logprobs(llm: LLM, entries: Sequence[TokenLogprob] | None) -> list[list[LogProb]] | None:
    """Return the log-probability of each token, followed by the most likely ones."""
    if entries is None:
        return None
    return [[_logprob(llm, *pair) for pair in ((entry.token_id, entry.logprob), *entry.top)] for entry in entries]


def _logprob(llm: LLM, token: int, logprob: float) -> LogProb:
    return LogProb(token=llm.tokenizer.token_text(token), logprob=logprob, bytes=list(llm.tokenizer.token_bytes(token)))


def _known(made: Callable[..., Any], options: dict[str, Any]) -> None:
    for name in options:
        if name not in made.model_fields:  # type: ignore[attr-defined]
            raise TypeError(f"{made.__name__}() got an unexpected keyword argument {name!r}")


def _to_rank(nodes: Sequence[NodeWithScore], query: QueryBundle | None) -> tuple[str, list[str]]:
    if query is None:
        raise RequestError(f"[{_PLACE}] no query to rank by: give query_bundle or query_str")
    return query.query_str, [node.node.get_content() for node in nodes]
