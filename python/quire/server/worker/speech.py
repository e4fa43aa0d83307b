"""Run the steps of a transcript in the worker, and send what comes of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import structs

from ...engine.engine import Failure
from ...engine.requests.results import collector_of
from ...engine.requests.transcripts import StepCollector
from . import protocol as wire

if TYPE_CHECKING:
    from ..._native.engine import Event
    from ...engine.engine import EngineRequest
    from ...engine.requests.transcripts import Segment, Transcription
    from .event_encoder import WorkerContext

__all__ = ["SpeechEncoder"]


class SpeechEncoder:
    """Turns the events of a transcript's requests into the messages of one request.

    ``submit``: gives a request to the decoder.  ``later``: calls a function on a thread that may wait for encoders.
    """

    def __init__(
        self,
        id_: int,
        steps: Transcription,
        context: WorkerContext,
        submit: Callable[[EngineRequest, Callable[[Sequence[Event | Failure]], None]], None],
        later: Callable[[Callable[[], None]], None],
    ) -> None:
        self._id, self._steps, self._context = id_, steps, context
        self._submit, self._later = submit, later
        # Events may arrive before the thread that submitted the request has announced it.
        self._lock = threading.Lock()
        self._collector: StepCollector | None = None
        self._is_admitted = False
        self._figures: wire.Finished | None = None

    def begin(self) -> None:
        """Submit the first request.  Blocks while sound is encoded."""
        request = self._steps.next_request()
        assert request is not None
        n_tokens, ignored = len(request.token_ids), list(self._steps.ignored)
        self._context.emit([wire.Started(self._id, n_tokens, None, ignored, self._steps.duration)])
        self._run(request)

    def _run(self, request: EngineRequest) -> None:
        self._collector = StepCollector(self._steps, collector_of(request))
        self._submit(replace(request, announced=True), self._deliver)

    def _go_on(self) -> None:
        """Submit the next request, or end with the transcript."""
        request = self._steps.next_request()
        if request is not None:
            self._run(request)
            return
        assert self._figures is not None
        language = self._steps.transcript().language
        self._context.end(self._id, [structs.replace(self._figures, language=language)])

    def _deliver(self, items: Sequence[Event | Failure]) -> None:
        messages: list[wire.FromEngine] = []
        with self._lock:
            for item in items:
                if isinstance(item, Failure):
                    failed = wire.Failed(self._id, type(item.error).__name__, str(item.error))
                    self._context.end(self._id, [*messages, failed])
                    return
                messages += self._messages(item)
        if messages and self._context.is_running(self._id):
            self._context.emit(messages)
        if self._collector is not None and self._collector.complete and self._context.is_running(self._id):
            self._later(self._go_on)

    def _messages(self, event: Event) -> list[wire.FromEngine]:
        if event.kind == "admitted":
            is_first, self._is_admitted = not self._is_admitted, True
            return [wire.Admitted(self._id, event.n_cached_tokens)] if is_first else []
        if event.kind == "progress":
            return []
        assert self._collector is not None
        text, delta = self._collector.add(event)
        segments = [_segment(each) for each in self._collector.segments]
        if event.kind == "finish":
            self._count(event)
        if not text and not delta.token_ids and not segments:
            return []
        return [wire.Delta(self._id, 0, text, list(delta.token_ids), segments=segments)]

    def _count(self, event: Event) -> None:
        """Add the figures of a request that has ended to those of the earlier ones."""
        times, before = event.timings, self._figures
        assert event.finish_reason is not None
        self._figures = wire.Finished(
            id=self._id,
            choice=0,
            reason=event.finish_reason,
            stop_reason=None,
            n_prompt_tokens=event.n_prompt_tokens + (before.n_prompt_tokens if before else 0),
            n_cached_tokens=event.n_cached_tokens + (before.n_cached_tokens if before else 0),
            n_generated_tokens=event.n_generated_tokens + (before.n_generated_tokens if before else 0),
            queue_s=before.queue_s if before else times.queue_s,
            prefill_s=before.prefill_s if before else times.prefill_s,
            decode_s=times.decode_s + (before.decode_s + times.queue_s + times.prefill_s if before else 0),
        )


def _segment(found: Segment) -> wire.Segment:
    return wire.Segment(
        found.start, found.end, found.text, list(found.tokens), found.temperature, found.avg_logprob,
        found.compression_ratio, found.no_speech_prob,
    )  # fmt: skip
