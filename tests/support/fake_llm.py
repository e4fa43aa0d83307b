"""A model for tests of the command line that answers from a script and records its requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from quire.chat import ToolCallDelta
from quire.params.sampling import SamplingParams


@dataclass(frozen=True)
class FakeDelta:
    text: str
    finish_reason: str | None = None
    tool_calls: tuple[ToolCallDelta, ...] = ()
    reasoning_content: str = ""
    token_ids: tuple[int, ...] = (0,)

    @property
    def content(self) -> str:
        return self.text


class FakeTokenizer:
    def __init__(self, chat_template: str | None) -> None:
        self.chat_template = chat_template


@dataclass
class FakeLLM:
    """``answers`` are used one by one, each as a list of streamed parts, which are texts or calls.

    An exception among the parts is raised at its place.
    """

    answers: list[Sequence[str | ToolCallDelta | BaseException]]
    chat_template: str | None = "a template"
    asked: list[tuple[str, Any, SamplingParams]] = field(default_factory=list)
    tools: Any = None
    choices: list[str] = field(default_factory=list)
    closed: bool = False
    finish_reason: str = "stop"
    n_closed_streams: int = 0
    model_name: str = "fake"
    architecture: str = "none"
    n_vocab: int = 100
    n_ctx: int = 1024
    limits: list[int | None] = field(default_factory=list)
    advised_sampling: dict[str, Any] = field(default_factory=dict)
    kv_dtype: str = "f16"
    isa: str | None = "portable"
    config: Any = field(default_factory=lambda: SimpleNamespace(device="cpu", threads=2, kernels="auto"))

    @property
    def tokenizer(self) -> FakeTokenizer:
        return FakeTokenizer(self.chat_template)

    def __enter__(self) -> FakeLLM:
        return self

    def close(self) -> None:
        self.closed = True

    def __exit__(self, *_: object) -> None:
        self.closed = True

    def chat_stream(
        self,
        messages: list[Any],
        params: SamplingParams,
        *,
        tools: Any = None,
        tool_choice: str = "auto",
        max_prompt_tokens: int | None = None,
    ) -> Iterator[FakeDelta]:
        self.limits.append(max_prompt_tokens)
        self.asked.append(("chat", list(messages), params))
        self.tools = tools
        self.choices.append(tool_choice)
        return self._stream()

    def stream(self, prompt: object, params: SamplingParams) -> Iterator[FakeDelta]:
        self.asked.append(("raw", prompt, params))
        return self._stream()

    def chat(self, messages: object, params: SamplingParams) -> Any:
        self.asked.append(("chat", messages, params))
        return self._result(params)

    def generate(self, prompts: Any, params: SamplingParams) -> list[Any]:
        self.asked.append(("raw", prompts, params))
        n = 1 if isinstance(prompts, str) else len(prompts)
        return [self._result(params) for _ in range(n)]

    def _stream(self) -> Iterator[FakeDelta]:
        parts = self.answers.pop(0)
        try:
            for part in parts:
                if isinstance(part, BaseException):
                    raise part
                yield FakeDelta("", None, (part,)) if isinstance(part, ToolCallDelta) else FakeDelta(part)
            yield FakeDelta("", self.finish_reason)
        finally:
            self.n_closed_streams += 1

    def _result(self, params: SamplingParams) -> Any:
        text = "".join(str(part) for part in self.answers.pop(0)) if self.answers else ""
        return SimpleNamespace(
            text=text,
            token_ids=[5] * (params.max_tokens or 2),
            finish_reason="stop",
            stop_reason=None,
            n_prompt_tokens=3,
            n_cached_tokens=1,
            timings=SimpleNamespace(queue_s=0.125, prefill_s=0.25, decode_s=0.5),
        )
