"""LangChain: ``ChatQuire``, ``QuireEmbeddings`` and ``QuireReranker``.  Needs ``langchain-core``."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, closing
from typing import Any

from ..engine import LLM, AsyncLLM, ChatDelta, ChatResult
from ..engine.engine import Pooling
from ..engine.requests.chat import ChatChoice
from ..errors import RequestError, UnsupportedError
from .shared import Model, absent, awaited, check_options, engine_options, opened, single

try:
    from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun, Callbacks
    from langchain_core.documents import BaseDocumentCompressor, Document
    from langchain_core.embeddings import Embeddings
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, convert_to_openai_messages
    from langchain_core.outputs import ChatGeneration, ChatGenerationChunk
    from langchain_core.outputs import ChatResult as LangChainResult
    from langchain_core.runnables import Runnable, RunnableLambda
    from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
    from pydantic import BaseModel, ConfigDict, Field, PrivateAttr
except ImportError as error:
    raise absent("langchain", "langchain-core", error) from error

__all__ = ["ChatQuire", "QuireEmbeddings", "QuireReranker"]

_PLACE = "langchain"
# Keywords that LangChain adds to a call.
_OF_LANGCHAIN = ("ls_structured_output_format", "structured_output_format", "ls_provider")


class ChatQuire(BaseChatModel):
    """A chat model in this process.

    Args:
        model: A ``quire.LLM``, or a GGUF file or checkpoint folder to open; None for the small model in the package.
        options: Options of ``quire.LLM`` (unless it is open), of LangChain's class, and keywords of ``LLM.chat``.
            Calls take these too: ``ChatQuire("model.gguf", n_ctx=4096, temperature=0).invoke("Hi", seed=1)``.  An
            unknown one is a TypeError.

    Answers have ``usage_metadata`` (including cached tokens), ``finish_reason`` in ``response_metadata`` (and
    ``logprobs`` on request), and reasoning in ``additional_kwargs["reasoning_content"]``, which the next turn reads.
    Batches and concurrent calls run as one batch of the engine.
    """

    model_config = ConfigDict(extra="allow", arbitrary_types_allowed=True)

    model: Any = Field(default=None, exclude=True)
    temperature: float | None = None
    max_tokens: int | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None

    _engine: dict[str, Any] = PrivateAttr(default_factory=dict)
    _llm: LLM = PrivateAttr()
    _async: AsyncLLM = PrivateAttr()

    def __init__(self, model: Model = None, **options: Any) -> None:
        engine, rest = engine_options(options)
        super().__init__(model=model, **rest)
        check_options(self._options)
        self._engine = engine
        self._llm = opened(model, engine)
        self._async = awaited(self._llm)

    @property
    def llm(self) -> LLM:
        """The model that answers."""
        return self._llm

    @property
    def _options(self) -> dict[str, Any]:
        """Keywords of ``LLM.chat`` given to the constructor."""
        named = ("temperature", "max_tokens", "top_p", "top_k", "seed", "stop")
        given = {name: getattr(self, name) for name in named if getattr(self, name) is not None}
        return {**given, **(self.model_extra or {})}

    @property
    def _llm_type(self) -> str:
        return "quire"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        """Everything that an answer depends on: the key of LangChain's cache."""
        where = str(self.model) if isinstance(self.model, str | os.PathLike) else None
        return {"model_name": self._llm.model_name, "model": where, **self._engine, **self._options}

    def _asked(self, stop: list[str] | None, given: dict[str, Any]) -> dict[str, Any]:
        called = {name: value for name, value in given.items() if name not in _OF_LANGCHAIN}
        return {**self._options, **called, **({} if stop is None else {"stop": stop})}

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> LangChainResult:
        return self._answer(self._llm.chat(_messages(messages), **self._asked(stop, kwargs)))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> LangChainResult:
        return self._answer(await self._async.chat(_messages(messages), **self._asked(stop, kwargs)))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        asked = single(_PLACE, self._asked(stop, kwargs))
        n_tokens = 0
        with closing(self._llm.chat_stream(_messages(messages), **asked)) as deltas:
            for delta in deltas:
                n_tokens += len(delta.token_ids)
                chunk = self._chunk(delta, n_tokens)
                if chunk is None:
                    continue
                if run_manager:
                    run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                yield chunk

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        asked = single(_PLACE, self._asked(stop, kwargs))
        n_tokens = 0
        async with aclosing(self._async.chat_stream(_messages(messages), **asked)) as deltas:
            async for delta in deltas:
                n_tokens += len(delta.token_ids)
                chunk = self._chunk(delta, n_tokens)
                if chunk is None:
                    continue
                if run_manager:
                    await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                yield chunk

    def _answer(self, result: ChatResult) -> LangChainResult:
        """Return all choices; the first has the token counts of all of them."""
        n_tokens = sum(len(choice.token_ids) for choice in result.choices)
        usage = _usage(result.n_prompt_tokens, n_tokens, result.n_cached_tokens)
        made = []
        for choice in result.choices:
            about = self._about(choice)
            message = _message(choice, about, usage if choice.index == 0 else None)
            made.append(ChatGeneration(message=message, generation_info=about))
        return LangChainResult(generations=made, llm_output={"token_usage": usage, "model_name": self._llm.model_name})

    def _about(self, choice: ChatChoice | ChatDelta) -> dict[str, Any]:
        """Return the ``response_metadata`` of a choice."""
        about: dict[str, Any] = {"model_provider": "quire", "model_name": self._llm.model_name}
        about["finish_reason"] = choice.finish_reason
        if choice.stop_reason is not None:
            about["stop_reason"] = choice.stop_reason
        if isinstance(choice, ChatChoice) and choice.logprobs is not None:
            about["logprobs"] = {"content": self._logprobs(choice)}
        return about

    def _logprobs(self, choice: ChatChoice | ChatDelta) -> list[dict[str, Any]]:
        text = self._llm.tokenizer.token_text
        return [
            {
                "token": text(entry.token_id),
                "logprob": entry.logprob,
                "top_logprobs": [{"token": text(token), "logprob": logprob} for token, logprob in entry.top],
            }
            for entry in choice.logprobs or ()
        ]

    def _chunk(self, delta: ChatDelta, n_tokens: int) -> ChatGenerationChunk | None:
        """Return a chunk, or None if there is nothing to show yet."""
        calls = [
            {"index": call.index, "id": call.id, "name": call.name, "args": call.arguments, "type": "tool_call_chunk"}
            for call in delta.tool_calls
        ]
        thoughts = {"reasoning_content": delta.reasoning_content} if delta.reasoning_content else {}
        about = self._about(delta) if delta.finish_reason is not None else {}
        if delta.logprobs:
            about["logprobs"] = {"content": self._logprobs(delta)}
        if not (delta.content or calls or thoughts or about):
            return None
        message = AIMessageChunk(
            content=delta.content,
            additional_kwargs=thoughts,
            tool_call_chunks=calls,
            response_metadata=about,
            usage_metadata=None
            if delta.finish_reason is None
            else _usage(delta.n_prompt_tokens, n_tokens, delta.n_cached_tokens),
            chunk_position="last" if delta.finish_reason is not None else None,
        )
        return ChatGenerationChunk(message=message, generation_info=about or None)

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | Any],
        *,
        tool_choice: dict[str, Any] | str | bool | None = None,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[Any, AIMessage]:
        """A model that knows these tools.  ``tool_choice``: as in ``LLM.chat``, or a tool's name, or ``"any"`` (also
        True) for "required".  ``strict``: calls must follow the tools' schemas."""
        shown = [convert_to_openai_tool(tool, strict=strict) for tool in tools]
        if tool_choice is not None:
            kwargs["tool_choice"] = _tool_choice(tool_choice, [tool["function"]["name"] for tool in shown])
        return self.bind(tools=shown, **kwargs)

    def with_structured_output(
        self,
        schema: dict[str, Any] | type,
        *,
        method: str = "json_schema",
        include_raw: bool = False,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[Any, Any]:
        """Return a model whose answers follow a schema and are parsed: to a Pydantic instance, or else a dict.

        Args:
            method: "json_schema" (the schema is enforced), "function_calling" (a call of one tool) or "json_mode" (any
                JSON object).
            include_raw: Return ``{"raw", "parsed", "parsing_error"}`` instead.
        """
        if method == "function_calling":
            tool = convert_to_openai_tool(schema, strict=True if strict is None else strict)
            bound = self.bind_tools([tool], tool_choice=tool["function"]["name"], parallel_tool_calls=False, **kwargs)
        elif method == "json_schema":
            if strict is False:
                raise UnsupportedError(f"[{_PLACE}] strict=False is not supported with json_schema")
            bound = self.bind(response_format=convert_to_json_schema(schema), **kwargs)
        elif method == "json_mode":
            bound = self.bind(response_format={"type": "json_object"}, **kwargs)
        else:
            known = "json_schema, function_calling or json_mode"
            raise UnsupportedError(f"[{_PLACE}] method {method!r:.80} is unknown: expected {known}")

        def parse(message: AIMessage) -> Any:
            calls = message.tool_calls
            value = calls[0]["args"] if calls and method == "function_calling" else json.loads(str(message.content))
            if isinstance(schema, type) and issubclass(schema, BaseModel):
                return schema.model_validate(value)  # type: ignore[attr-defined]
            return value

        def parse_beside(message: AIMessage) -> dict[str, Any]:
            try:
                return {"raw": message, "parsed": parse(message), "parsing_error": None}
            except ValueError as failed:
                return {"raw": message, "parsed": None, "parsing_error": failed}

        return bound | RunnableLambda(parse_beside if include_raw else parse)

    def get_token_ids(self, text: str) -> list[int]:
        """Token ids of a text."""
        return self._llm.tokenizer.encode(text, add_special=False)

    def get_num_tokens_from_messages(self, messages: list[BaseMessage], tools: Sequence[Any] | None = None) -> int:
        """Tokens of a conversation, with all that the chat template writes around it."""
        shown = [convert_to_openai_tool(tool) for tool in tools] if tools else None
        ids = self._llm.tokenizer.apply_chat_template(_messages(messages), tools=shown, add_generation_prompt=True)
        return len(ids)


class QuireEmbeddings(Embeddings):
    """Vectors of texts.

    ``model`` and options of ``quire.LLM`` as in ``ChatQuire``; ``pooling`` and ``normalize`` as in ``LLM.embed``.
    ``query_prefix`` and ``document_prefix`` come before each text: some models learned so ("query: ", "passage: ").
    """

    def __init__(
        self,
        model: Model = None,
        *,
        pooling: Pooling | None = None,
        normalize: bool = True,
        query_prefix: str = "",
        document_prefix: str = "",
        **engine: Any,
    ) -> None:
        self.llm = opened(model, engine)
        self._async = awaited(self.llm)
        self._prefixes = (query_prefix, document_prefix)
        self._options: dict[str, Any] = {"pooling": pooling, "normalize": normalize}

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """A vector for each text."""
        prefixed = [self._prefixes[1] + text for text in texts]
        return self.llm.embed(prefixed, **self._options).tolist() if texts else []

    def embed_query(self, text: str) -> list[float]:
        """The vector of a question."""
        vector: list[float] = self.llm.embed(self._prefixes[0] + text, **self._options)[0].tolist()
        return vector

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """``embed_documents`` awaited."""
        prefixed = [self._prefixes[1] + text for text in texts]
        return (await self._async.embed(prefixed, **self._options)).tolist() if texts else []

    async def aembed_query(self, text: str) -> list[float]:
        """``embed_query`` awaited."""
        vector: list[float] = (await self._async.embed(self._prefixes[0] + text, **self._options))[0].tolist()
        return vector


class QuireReranker(BaseDocumentCompressor):
    """Puts the documents that answer a question best first, for a ``ContextualCompressionRetriever``.

    ``model``: one with a classifier, as in ``LLM.rerank``, with options of ``quire.LLM``.  ``top_n``: as many are kept,
    None all.  Scores stand in ``metadata["relevance_score"]``.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    model: Any = Field(default=None, exclude=True)
    top_n: int | None = Field(default=None, ge=1)

    _llm: LLM = PrivateAttr()
    _async: AsyncLLM = PrivateAttr()

    def __init__(self, model: Model = None, **options: Any) -> None:
        engine, rest = engine_options(options)
        super().__init__(model=model, **rest)
        self._llm = opened(model, engine)
        self._async = awaited(self._llm)

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """The documents, the best first, each with its score."""
        texts = [document.page_content for document in documents]
        return self._ranked(documents, self._llm.rerank(query, texts)) if texts else []

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """``compress_documents`` awaited."""
        texts = [document.page_content for document in documents]
        return self._ranked(documents, await self._async.rerank(query, texts)) if texts else []

    def _ranked(self, documents: Sequence[Document], scores: Any) -> list[Document]:
        order = sorted(range(len(documents)), key=lambda i: -float(scores[i]))[: self.top_n]
        scored = [(documents[i], {"relevance_score": float(scores[i])}) for i in order]
        return [item.model_copy(update={"metadata": {**item.metadata, **score}}) for item, score in scored]


def _messages(messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
    """Convert LangChain's messages to those of ``LLM.chat``."""
    shown: list[dict[str, Any]] = []
    for message in messages:
        made = convert_to_openai_messages(message)
        made = made[0] if isinstance(made, list) else made
        if isinstance(message, AIMessage):
            if message.invalid_tool_calls:
                raise RequestError(f"[{_PLACE}] a message has a tool call whose arguments are not JSON")
            if "reasoning_content" in message.additional_kwargs:
                made = {**made, "reasoning_content": message.additional_kwargs["reasoning_content"]}
        shown.append(made)
    return shown


def _message(choice: ChatChoice, about: dict[str, Any], usage: Any) -> AIMessage:
    answer = choice.message
    calls, broken = [], []
    for call in answer.tool_calls:
        name, text = call.function.name, call.function.arguments
        try:
            args = json.loads(text)
            if not isinstance(args, dict):
                raise ValueError("the arguments are not an object")
        except ValueError as failed:
            broken.append(
                {"type": "invalid_tool_call", "id": call.id, "name": name, "args": text, "error": str(failed)}
            )
        else:
            calls.append({"type": "tool_call", "id": call.id, "name": name, "args": args})
    thoughts = {} if answer.reasoning_content is None else {"reasoning_content": answer.reasoning_content}
    return AIMessage(
        content=answer.content or "",
        additional_kwargs=thoughts,
        tool_calls=calls,
        invalid_tool_calls=broken,
        response_metadata=about,
        usage_metadata=usage,
    )


def _usage(n_prompt: int, n_tokens: int, n_cached: int) -> Any:
    return {
        "input_tokens": n_prompt,
        "output_tokens": n_tokens,
        "total_tokens": n_prompt + n_tokens,
        "input_token_details": {"cache_read": n_cached},
    }


def _tool_choice(choice: dict[str, Any] | str | bool, names: Sequence[str]) -> dict[str, Any] | str:
    if isinstance(choice, dict) or choice in ("auto", "none", "required"):
        return choice
    if choice in ("any", True):
        return "required"
    if choice is False:
        return "none"
    if choice not in names:
        raise RequestError(f"[{_PLACE}] tool_choice {choice!r:.80} is none of the tools: {', '.join(names)}")
    return {"type": "function", "function": {"name": choice}}
