"""Figures for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from .vllm_metrics import Requests, VllmFigures

if TYPE_CHECKING:
    from ..worker.engine_client import EngineClient
    from ..worker.protocol import Beat, Finished

__all__ = ["Engines", "Metrics"]

Engines: TypeAlias = "Callable[[], Mapping[str, EngineClient]]"

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_TOKENS = tuple(float(2**i) for i in range(0, 18))
_TOTALS = {
    "steps": ("n_steps", "Steps of the model."),
    "computed_tokens": ("n_computed_tokens", "Tokens that ran through the model."),
    "decoded_tokens": ("n_generated_tokens", "Tokens that were drawn."),
    "cached_tokens": ("n_prefix_hit_tokens", "Prompt tokens that were found in the cache."),
    "preemptions": ("n_preemptions", "Times that a sequence gave its place or its blocks to others and ran again."),
    "cache_evictions": ("n_evictions", "Cached blocks that were overwritten."),
    "failed_checks": ("n_failed_checks", "Times that the invariants of the cache did not hold."),
}
_GAUGES = {
    "waiting": ("n_waiting", "Requests that wait for a place in the batch."),
    "paused": ("n_paused", "Of those, requests whose clients do not read."),
    "running": ("n_running", "Sequences in the batch."),
    "cache_blocks": ("n_usable_blocks", "Blocks of the cache."),
    "cache_blocks_free": ("n_free_blocks", "Blocks that no sequence holds."),
    "cache_blocks_published": ("n_published_blocks", "Blocks that can be found by their contents."),
    "worker_resident_bytes": ("rss_bytes", "Resident memory of the process that holds the model."),
    "worker_anonymous_bytes": ("anonymous_bytes", "Its memory that no file backs."),
}


class Metrics:
    """Counters and histograms of requests; the engines' figures are read when asked for."""

    def __init__(self, engines: Engines) -> None:
        """``engines``: gives the open models by name."""
        registry = self._registry = CollectorRegistry()
        self._requests = Counter("quire_http_requests", "Requests, by status.", ["status"], registry=registry)
        self._errors = Counter("quire_errors", "Refusals and failures, by code.", ["code"], registry=registry)
        self.cancelled = Counter("quire_cancellations", "Requests that their clients left.", registry=registry)
        self._finished = Counter("quire_finished", "Answers, by their end.", ["reason"], registry=registry)
        self._prompt = Counter("quire_prompt_tokens", "Tokens of prompts.", registry=registry)
        self._generated = Counter("quire_generated_tokens", "Tokens of answers.", registry=registry)
        self._reused = Counter("quire_prompt_tokens_cached", "Tokens of prompts found in the cache.", registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"quire_{name}", text, registry=registry, buckets=buckets)

        self.first_token_s = histogram("time_to_first_token_seconds", "From arrival to the first token.", _SECONDS)
        self.between_tokens_s = histogram("inter_token_seconds", "Between tokens, the mean of an answer.", _SECONDS)
        self.queue_s = histogram("queue_seconds", "In the queue.", _SECONDS)
        self.total_s = histogram("request_seconds", "From arrival to the last token.", _SECONDS)
        self._prompt_size = histogram("request_prompt_tokens", "Tokens of a prompt.", _TOKENS)
        self._answer_size = histogram("request_generated_tokens", "Tokens of an answer.", _TOKENS)
        self._read = _Spent()
        self._written = _Spent()
        self._timed = _Spent()  # of answers that have a speed
        self._most_tokens = 0
        self.n_reused = 0
        registry.register(_EngineFigures(engines))
        registry.register(_LlamaCpp(self, engines))
        registry.register(VllmFigures(self._by_vllms_names(), engines))

    def _by_vllms_names(self) -> Requests:
        return Requests(
            finished=self._finished,
            totals={"prompt_tokens": self._prompt, "generation_tokens": self._generated},
            histograms={
                "time_to_first_token_seconds": self.first_token_s,
                "inter_token_latency_seconds": self.between_tokens_s,
                "e2e_request_latency_seconds": self.total_s,
                "request_queue_time_seconds": self.queue_s,
                "request_prompt_tokens": self._prompt_size,
                "request_generation_tokens": self._answer_size,
            },
        )

    def request(self, status: int) -> None:
        """A request was answered."""
        self._requests.labels(str(status)).inc()

    def error(self, code: str) -> None:
        """Something was refused or failed."""
        self._errors.labels(code).inc()

    def finished(self, end: Finished, first_token_s: float | None, total_s: float) -> None:
        """A choice is complete."""
        self._finished.labels(end.reason).inc()
        self._generated.inc(end.n_generated_tokens)
        self._answer_size.observe(end.n_generated_tokens)
        self.queue_s.observe(end.queue_s)
        self.total_s.observe(total_s)
        if end.choice == 0:
            self._prompt_read(end.n_prompt_tokens, end.n_cached_tokens, end.prefill_s)
            if first_token_s is not None:
                self.first_token_s.observe(first_token_s)
        self._written.add(end.n_generated_tokens, end.decode_s)
        self._most_tokens = max(self._most_tokens, end.n_prompt_tokens + end.n_generated_tokens)
        if end.n_generated_tokens > 1:  # one token takes no time but that of its prompt
            self._timed.add(end.n_generated_tokens - 1, end.decode_s)
            self.between_tokens_s.observe(end.decode_s / (end.n_generated_tokens - 1))

    def left(self, n_prompt: int | None, n_cached: int, n_generated: list[int]) -> None:
        """Count cancelled choices, with their tokens.  ``n_prompt``: None if the prompt was already counted."""
        for n in n_generated:
            self._finished.labels("cancelled").inc()
            self._generated.inc(n)
            self._answer_size.observe(n)
        if n_prompt is not None:
            self._prompt.inc(n_prompt)
            self._reused.inc(n_cached)
            self.n_reused += n_cached
            self._prompt_size.observe(n_prompt)

    def embedded(self, n_tokens: int, n_cached: int, seconds: float) -> None:
        """A prompt was embedded."""
        self._prompt_read(n_tokens, n_cached, seconds)
        self._most_tokens = max(self._most_tokens, n_tokens)

    def _prompt_read(self, n_tokens: int, n_cached: int, seconds: float) -> None:
        self._prompt.inc(n_tokens)
        self._reused.inc(n_cached)
        self.n_reused += n_cached
        self._prompt_size.observe(n_tokens)
        self._read.add(n_tokens - n_cached, seconds)

    def text(self) -> bytes:
        """All figures, in Prometheus' text format."""
        return generate_latest(self._registry)


@dataclass
class _Spent:
    """Tokens, and the seconds that they took."""

    n_tokens: int = 0
    seconds: float = 0.0

    def add(self, n_tokens: int, seconds: float) -> None:
        """So many more."""
        self.n_tokens += n_tokens
        self.seconds += seconds

    def per_second_since(self, before: _Spent) -> float:
        """Tokens per second since ``before``; 0 if there were none."""
        seconds = self.seconds - before.seconds
        return (self.n_tokens - before.n_tokens) / seconds if seconds > 0 else 0.0


class _LlamaCpp:
    """The same figures by the names of llama.cpp's server, for dashboards that were made for it; of all models."""

    def __init__(self, metrics: Metrics, engines: Engines) -> None:
        self._metrics = metrics
        self._engines = engines
        # The totals at the last scrape: rates cover the time since then.
        self._read_then, self._timed_then = _Spent(), _Spent()

    def describe(self) -> Iterable[Metric]:
        """Nothing: the figures are made when they are asked for."""
        return []

    def collect(self) -> Iterable[Metric]:
        """The figures as of now."""
        beats = [beat for engine in self._engines().values() if (beat := engine.beat) is not None]
        read, written, timed = self._metrics._read, self._metrics._written, self._metrics._timed
        read_s, timed_s = read.per_second_since(self._read_then), timed.per_second_since(self._timed_then)
        self._read_then, self._timed_then = replace(read), replace(timed)
        drafters = [figures for beat in beats for figures in beat.drafters.values()]
        totals = {
            "prompt_tokens_cached": (self._metrics.n_reused, "Tokens of prompts that were found in the cache."),
            "prompt_tokens": (read.n_tokens, "Tokens of prompts that were computed."),
            "prompt_seconds": (read.seconds, "Time that they took."),
            "tokens_predicted": (written.n_tokens, "Tokens of answers."),
            "tokens_predicted_seconds": (written.seconds, "Time that they took."),
            "n_decode": (sum(beat.n_steps for beat in beats), "Steps of the model."),
            "spec_decode_num_drafts": (sum(each.n_drafts for each in drafters), "Drafts that were computed."),
            "spec_decode_num_draft_tokens": (sum(each.n_drafted for each in drafters), "Tokens of drafts."),
            "spec_decode_num_accepted_tokens": (sum(each.n_accepted for each in drafters), "Of these, the right ones."),
        }
        gauges = {
            "prompt_tokens_seconds": (read_s, "Tokens of prompts a second, since the figures were asked for last."),
            "predicted_tokens_seconds": (timed_s, "Tokens of an answer a second after its first, since then."),
            "requests_processing": (sum(beat.n_running for beat in beats), "Sequences in the batch."),
            "requests_deferred": (sum(beat.n_waiting for beat in beats), "Requests that wait for a place in it."),
            "n_busy_slots_per_decode": (
                sum(beat.n_step_sequences for beat in beats) / max(sum(beat.n_steps for beat in beats), 1),
                "Sequences in a step of the model, the mean.",
            ),
            "n_tokens_max": (self._metrics._most_tokens, "The most tokens of a prompt with its answer so far."),
        }
        for name, (value, text) in totals.items():
            yield CounterMetricFamily(f"llamacpp:{name}", text, value=float(value))
        for name, (value, text) in gauges.items():
            yield GaugeMetricFamily(f"llamacpp:{name}", text, value=float(value))


class _EngineFigures:
    """Collects the engines' own figures."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are known only once there are engines."""
        return []

    def collect(self) -> Iterable[Metric]:
        """The figures as of now."""
        beats = {name: beat for name, engine in self._engines().items() if (beat := engine.beat) is not None}
        for name, (field, text) in _TOTALS.items():
            total = CounterMetricFamily(f"quire_{name}", text, labels=["model"])
            for model, beat in beats.items():
                total.add_metric([model], float(getattr(beat, field)))
            yield total
        for name, (field, text) in _GAUGES.items():
            gauge = GaugeMetricFamily(f"quire_{name}", text, labels=["model"])
            for model, beat in beats.items():
                gauge.add_metric([model], float(getattr(beat, field)))
            yield gauge
        text = "Bytes of the cache by kind of layers: held by sequences, or kept to be found again."
        gauge = GaugeMetricFamily("quire_cache_bytes", text, labels=["model", "kind", "use"])
        for model, beat in beats.items():
            for use in beat.cache:
                gauge.add_metric([model, use.kind, "held"], float(use.held_bytes))
                gauge.add_metric([model, use.kind, "cached"], float(use.cached_bytes))
        yield gauge
        yield from _of_drafters(beats)


def _of_drafters(beats: Mapping[str, Beat]) -> Iterable[Metric]:
    """What drafters proposed and what of it was right; tokens by their position in the draft, from 0."""
    drafts = CounterMetricFamily("quire_drafts", "Drafts that were computed.", labels=["model", "drafter"])
    seconds = CounterMetricFamily("quire_draft_seconds", "Time that proposing took.", labels=["model", "drafter"])
    labels = ["model", "drafter", "position"]
    drafted = CounterMetricFamily("quire_drafted_tokens", "Tokens that were proposed and computed.", labels=labels)
    accepted = CounterMetricFamily("quire_accepted_tokens", "Of these, tokens that were right.", labels=labels)
    for model, beat in beats.items():
        for name, figures in beat.drafters.items():
            drafts.add_metric([model, name], float(figures.n_drafts))
            seconds.add_metric([model, name], figures.seconds)
            for position, (n, n_right) in enumerate(zip(figures.drafted_at, figures.accepted_at, strict=True)):
                drafted.add_metric([model, name, str(position)], float(n))
                accepted.add_metric([model, name, str(position)], float(n_right))
    return drafts, seconds, drafted, accepted
