"""``POST /v1/audio/transcriptions`` and ``POST /v1/audio/translations``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from ....errors import RequestError
from ....files.subtitles import srt, vtt
from ....params.languages import LANGUAGES, language_code
from ....params.sampling import SamplingParams
from ...body_types import TimedBody
from ...failures import ApiError, Dialect
from ...listener import sse
from ...listener.replies import Events, Reply, event_stream
from ...listener.request_context import RequestContext
from ...worker.params import set_fields
from ...worker.protocol import Delta, Segment, Transcribe
from ..answers import ResponseStream
from ..fields import Name, Text, hints_of
from ..sampling_fields import sampling_fields, sampling_of

__all__ = ["TranscriptionBody", "TranslationBody", "transcribe", "translate"]

_PLAIN = b"text/plain; charset=utf-8"


@sampling_fields("openai")
class SpeechBody(TimedBody, kw_only=True, forbid_unknown_fields=True):
    """A form with a recording."""

    file: bytes
    model: Name | None = None
    language: Annotated[str, Meta(max_length=64)] | None = None
    prompt: Text | None = None
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] = "json"
    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    stream: bool = False
    hints: ClassVar[dict[str, tuple[object, ...]]] = {"chunking_strategy": ("auto",), "user": ()}
    refused: ClassVar[dict[str, tuple[object, ...]]] = {
        "include": ([],),
        "known_speaker_names": ([],),
        "known_speaker_references": ([],),
        "to_language": ("en", ""),
    }

    @property
    def wants_times(self) -> bool:
        """Return whether the reply shows when something is said."""
        return self.response_format in ("srt", "verbose_json", "vtt")

    def work(self, context: RequestContext[Any], task: str) -> Transcribe:
        """Return the engine's work.  ApiError naming an invalid field."""
        if self.stream and self.response_format not in ("json", "text"):
            text = f"stream cannot be combined with response_format {self.response_format}"
            raise ApiError(400, "invalid_value", text, "stream")
        speech: dict[str, Any] = {"task": task, "timestamps": self.wants_times, "prompt": self.prompt or None}
        if self.language:
            try:
                speech["language"] = language_code(self.language)
            except RequestError as error:
                raise ApiError(400, "invalid_value", str(error).partition("] ")[2], "language") from None
        params = SamplingParams(**{"temperature": 0.0, **sampling_of(self), "max_tokens": self.max_tokens})
        return Transcribe(0, self.file, speech, set_fields(params), hints_of(context.caller))


class TranscriptionBody(SpeechBody, kw_only=True, forbid_unknown_fields=True):
    """A form with a recording to transcribe."""

    timestamp_granularities: Annotated[list[Literal["segment", "word"]], Meta(max_length=8)] = []

    def work(self, context: RequestContext[Any], task: str) -> Transcribe:
        if "word" in self.timestamp_granularities:
            text = "timestamp_granularities has word, which is unsupported: only segment is"
            raise ApiError(400, "unsupported_parameter", text, "timestamp_granularities")
        if self.timestamp_granularities and self.response_format != "verbose_json":
            text = "timestamp_granularities needs response_format verbose_json"
            raise ApiError(400, "invalid_value", text, "timestamp_granularities")
        return super().work(context, task)


class TranslationBody(SpeechBody, kw_only=True, forbid_unknown_fields=True):
    """A form with a recording to translate into English."""


async def transcribe(context: RequestContext[TranscriptionBody]) -> Reply | Events:
    """Write down what is said in a recording."""
    return await _answer(context, "transcribe")


async def translate(context: RequestContext[TranslationBody]) -> Reply | Events:
    """Write down in English what is said in a recording."""
    return await _answer(context, "translate")


async def _answer(context: RequestContext[Any], task: str) -> Reply | Events:
    body: SpeechBody = context.body
    engine = context.engine(body.model)
    work = body.work(context, task)
    body.file = b""  # the work has it
    answer = ResponseStream(context, context.submit(engine, work), advice="cut the recording into parts")
    await answer.start()
    if body.stream:
        return event_stream(_pieces(answer), Dialect.OPENAI)
    parts: list[str] = []
    segments: list[Segment] = []
    async for delta in answer.deltas():
        parts.append(delta.content)
        segments += delta.segments
    text = "".join(parts).strip()
    if body.response_format == "json":
        return Reply.json({"text": text, "usage": _usage(answer)})
    if body.response_format == "verbose_json":
        return Reply.json(_verbose(answer, task, text, segments))
    shown = {"srt": srt, "vtt": vtt}.get(body.response_format)
    return Reply((f"{text}\n" if shown is None else shown(segments)).encode(), media_type=_PLAIN)


async def _pieces(answer: ResponseStream) -> AsyncIterator[bytes]:
    parts: list[str] = []
    async for batch in answer.batches():
        new = "".join(event.content for event in batch if isinstance(event, Delta))
        if new:
            parts.append(new)
            yield sse.event({"type": "transcript.text.delta", "delta": new})
    yield sse.event({"type": "transcript.text.done", "text": "".join(parts).strip(), "usage": _usage(answer)})


def _usage(answer: ResponseStream) -> dict[str, Any]:
    usage = answer.usage
    return {
        "type": "tokens",
        "input_tokens": usage.n_prompt,
        "output_tokens": usage.n_generated,
        "total_tokens": usage.n_prompt + usage.n_generated,
    }


def _verbose(answer: ResponseStream, task: str, text: str, segments: list[Segment]) -> dict[str, Any]:
    started, language = answer.stream.started, answer.ends[0].language
    duration = 0.0 if started is None else started.duration
    return {
        "task": task,
        "language": LANGUAGES.get(language or "", language),
        "duration": round(duration, 3),
        "text": text,
        "segments": [
            {
                "id": i,
                "seek": 0,
                "start": round(segment.start, 3),
                "end": round(segment.end, 3),
                "text": segment.text,
                "tokens": segment.tokens,
                "temperature": segment.temperature,
                "avg_logprob": segment.avg_logprob,
                "compression_ratio": segment.compression_ratio,
                "no_speech_prob": segment.no_speech_prob,
            }
            for i, segment in enumerate(segments)
        ],
        "usage": {"type": "duration", "seconds": -(-duration // 1)},
    }
