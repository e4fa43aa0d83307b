"""Transcripts of speech: what callers ask for and get, and how models that read sounds in chats are asked for one."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ...errors import RequestError, UnsupportedError
from ...params.chat_options import ChatOptions
from ...params.languages import LANGUAGES, language_code
from ...params.sampling import SamplingParams
from .media import data_of
from .prompts import RequestOptions

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..._native.engine import Event
    from ...media.audio import Samples
    from ...tokenizer import Tokenizer
    from ..engine import EngineRequest
    from .prompts import Prompts
    from .results import Collector, Delta, GenerationResult

__all__ = [
    "ChatTranscription",
    "Segment",
    "Sound",
    "SpeechTask",
    "StepCollector",
    "TranscribeOptions",
    "Transcript",
    "Transcription",
    "samples_of",
    "speech_sampling",
]

SpeechTask: TypeAlias = Literal["transcribe", "translate"]
Sound: TypeAlias = "str | os.PathLike[str] | bytes | tuple[npt.NDArray[Any], int]"
"""A file, the bytes of one, or samples and their rate."""
RATE = 16_000


@dataclass(frozen=True)
class Segment:
    """A part of a transcript.

    Attributes:
        start, end: Seconds.
        text: What is said, as the model writes it.
        tokens: Its tokens, timestamps included.
        temperature: That of the sampling.
        avg_logprob: Mean log-probability of the tokens.
        compression_ratio: Bytes of the text by those of its zlib form; texts that repeat themselves have a high one.
        no_speech_prob: Probability that nobody speaks.
    """

    start: float
    end: float
    text: str
    tokens: tuple[int, ...] = ()
    temperature: float = 0.0
    avg_logprob: float = 0.0
    compression_ratio: float = 1.0
    no_speech_prob: float = 0.0


@dataclass(frozen=True)
class Transcript:
    """The text of a recording.

    Attributes:
        text: All of it.
        language: Code of the language, such as "en"; None if the model does not tell.
        duration: Seconds of the recording.
        segments: Parts with their times, if the model tells times.
    """

    text: str
    language: str | None
    duration: float
    segments: tuple[Segment, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TranscribeOptions:
    """The options of a transcript; see ``LLM.transcribe``.  RequestError naming an invalid one."""

    language: str | None = None
    prompt: str | None = None
    task: SpeechTask = "transcribe"
    timestamps: bool = False
    sampling: SamplingParams = field(default_factory=lambda: SamplingParams(temperature=0.0))

    def __post_init__(self) -> None:
        if self.task not in ("transcribe", "translate"):
            raise RequestError(f"[transcribe] task {self.task!r:.40} is unknown: expected transcribe or translate")
        if self.language is not None:
            object.__setattr__(self, "language", language_code(self.language))

    @property
    def language_name(self) -> str | None:
        """The English name of the language."""
        return None if self.language is None else LANGUAGES[self.language].title()


class Transcription(ABC):
    """A transcript in the making: requests of the engine, one after another.

    Attributes:
        duration: Seconds of the recording.
        ignored: Options without effect.
    """

    duration: float
    ignored: tuple[str, ...] = ()

    @abstractmethod
    def next_request(self) -> EngineRequest | None:
        """Return the next request; None after the last one.  Blocks while sound is encoded."""

    @abstractmethod
    def feed(self, delta: Delta) -> str:
        """Take a piece of the answer to the current request; return text to show."""

    @abstractmethod
    def finish(self, result: GenerationResult) -> tuple[str, Sequence[Segment]]:
        """Take the whole answer to the current request; return more text to show, and the segments that it adds."""

    @abstractmethod
    def transcript(self) -> Transcript:
        """Return the transcript, once there are no more requests."""


class StepCollector:
    """Takes the events of one request of a transcription."""

    def __init__(self, steps: Transcription, collector: Collector) -> None:
        self._steps, self._collector = steps, collector
        self.segments: Sequence[Segment] = ()

    @property
    def complete(self) -> bool:
        """True once the request has ended."""
        return self._collector.complete

    def add(self, event: Event) -> tuple[str, Delta]:
        """Take an event; return text to show, and what else the event holds."""
        delta = self._collector.add(event)
        text = self._steps.feed(delta)
        if self.complete:
            more, self.segments = self._steps.finish(self._collector.result())
            text += more
        return text, delta


def samples_of(audio: Sound, place: str) -> Samples:
    """Return mono samples at ``RATE``.  RequestError or ShapeError for sound that cannot be read."""
    found: Samples = data_of("audio", {"audio": audio}, place)
    return found


def speech_sampling(temperature: float, max_tokens: int | None, seed: int | None) -> SamplingParams:
    """Return the parameters of a transcript; those that are left out do not restrict the choice of tokens."""
    return SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=seed)


class ChatTranscription(Transcription):
    """One turn of a chat.  Models that are trained to transcribe are asked in their own way."""

    def __init__(self, prompts: Prompts, samples: Samples, options: TranscribeOptions, request: RequestOptions) -> None:
        self.duration = len(samples) / RATE
        if options.timestamps:
            raise UnsupportedError("[transcribe] the model tells no times: ask for text or json without timestamps")
        asked = _asked(prompts.tokenizer, options)
        messages = [{"role": "system", "content": asked.system}] if asked.system else []
        parts: list[dict[str, object]] = [{"type": "audio", "audio": (samples, RATE)}]
        if asked.text:
            parts.append({"type": "text", "text": asked.text})
        messages.append({"role": "user", "content": parts})  # type: ignore[dict-item]
        chat = prompts.chat_draft(messages, options.sampling, request, ChatOptions(lenient=True), begun=asked.begun)
        # The whole answer is the transcript, even where it looks like a tool call or reasoning.
        visible = {} if asked.mark is None else _visible(prompts.tokenizer, asked.mark)
        self._request: EngineRequest | None = replace(chat.engine, visible_tokens=visible)
        self.ignored = asked.ignored
        self._mark = None if asked.begun else asked.mark
        self._held, self._shown = "", ""
        self._language = options.language if options.task == "transcribe" else "en"

    def next_request(self) -> EngineRequest | None:
        request, self._request = self._request, None
        return request

    def feed(self, delta: Delta) -> str:
        if self._mark is None:
            return self._show(delta.text)
        # The language comes before the mark.
        self._held += delta.text
        head, found, rest = self._held.partition(self._mark)
        if not found and delta.finish_reason is None:
            return ""
        self._mark = None
        if not found:
            return self._show(self._held)
        self._language = _spoken(head)
        return self._show(rest)

    def _show(self, text: str) -> str:
        text = text if self._shown else text.lstrip()
        self._shown += text
        return text

    def finish(self, result: GenerationResult) -> tuple[str, Sequence[Segment]]:
        return "", ()

    def transcript(self) -> Transcript:
        return Transcript(self._shown.strip(), self._language, self.duration)


@dataclass(frozen=True)
class _Asked:
    """How a model is asked.

    Attributes:
        text: The instruction after the recording.
        system: The system message.
        begun: How the prompt ends, after the chat template's own text.
        mark: What comes between the language and the transcript in an answer.
        ignored: Options that the model has no place for.
    """

    text: str = ""
    system: str = ""
    begun: str = ""
    mark: str | None = None
    ignored: tuple[str, ...] = ()


_ASR_TEXT, _TRANSCRIBE = "<asr_text>", "[TRANSCRIBE]"


def _asked(tokenizer: Tokenizer, options: TranscribeOptions) -> _Asked:
    """Return how a model is asked, which its vocabulary tells.  UnsupportedError for a task that it does not have."""
    translates, prompt = options.task == "translate", options.prompt or ""
    if _is_token(tokenizer, _ASR_TEXT):  # Qwen3-ASR
        if translates:
            raise UnsupportedError("[transcribe] the model transcribes only: it does not translate")
        name = options.language_name
        return _Asked(system=prompt, begun="" if name is None else f"language {name}{_ASR_TEXT}", mark=_ASR_TEXT)
    if not translates and _is_token(tokenizer, _TRANSCRIBE):  # Voxtral
        begun = _TRANSCRIBE if options.language is None else f"lang:{options.language}{_TRANSCRIBE}"
        return _Asked(begun=begun, ignored=("prompt",) if prompt else ())
    language = "" if options.language_name is None else f", which is in {options.language_name}"
    what = f"Translate this speech{language}, into English." if translates else f"Transcribe this speech{language}."
    text = f"{what} Write nothing else."
    return _Asked(text=f"{text}\nContext: {prompt}" if prompt else text)


def _is_token(tokenizer: Tokenizer, text: str) -> bool:
    return len(tokenizer.encode(text, add_special=False, parse_special=True)) == 1


def _visible(tokenizer: Tokenizer, text: str) -> dict[int, bytes]:
    control = tokenizer.control_tokens
    return {control[text]: text.encode()} if text in control else {}


def _spoken(head: str) -> str | None:
    """Return the language that a model names before a transcript: ``language English``."""
    name = head.strip().rpartition(" ")[2].lower()
    return next((code for code, known in LANGUAGES.items() if known == name), None)
