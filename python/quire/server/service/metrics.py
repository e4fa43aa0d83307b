"""Metrics for Prometheus."""

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
    "steps": ("n_steps", "Model steps."),
    "computed_tokens": ("n_computed_tokens", "Tokens processed by the model."),
    "decoded_tokens": ("n_generated_tokens", "Tokens generated."),
    "cached_tokens": ("n_prefix_hit_tokens", "Prompt tokens found in the cache."),
    "preemptions": ("n_preemptions", "Sequences that were preempted."),
    "cache_evictions": ("n_evictions", "Cached blocks evicted."),
    "pins_given_way": ("n_pins_given_way", "Pins that were dropped so that a request could run."),
    "peer_tokens": ("n_peer_tokens", "Prompt tokens whose blocks were read from peers."),
    "peer_failures": ("n_peer_failures", "Times that a peer failed to send blocks."),
    "failed_checks": ("n_failed_checks", "Failed checks of the cache's invariants."),
}
_GAUGES = {
    "waiting": ("n_waiting", "Requests waiting for a place in the batch."),
    "waiting_tokens": ("n_waiting_tokens", "Tokens of their prompts."),
    "paused": ("n_paused", "Waiting requests whose clients do not read."),
    "running": ("n_running", "Sequences in the batch."),
    "cache_blocks": ("n_usable_blocks", "Blocks in the cache."),
    "cache_blocks_free": ("n_free_blocks", "Blocks not held by a sequence."),
    "cache_blocks_published": ("n_published_blocks", "Blocks available to the prefix cache."),
    "pins": ("n_pins", "Pinned prefixes."),
    "pinned_bytes": ("n_pinned_bytes", "Bytes of the cache held by pins."),
    "pinned_most_bytes": ("n_most_pinned_bytes", "The most bytes that pins may hold."),
    "worker_resident_bytes": ("rss_bytes", "Resident memory of the worker process."),
    "worker_anonymous_bytes": ("anonymous_bytes", "Anonymous memory of the worker process."),
}


class Metrics:
    """Counters and histograms of requests.  The engines' own figures are read at each scrape."""

    def __init__(self, engines: Engines) -> None:
        """Create the metrics; ``engines`` returns the loaded models by name."""
        registry = self._registry = CollectorRegistry()
        self._requests = Counter("quire_http_requests", "HTTP requests, by status.", ["status"], registry=registry)
        self._errors = Counter("quire_errors", "Errors, by code.", ["code"], registry=registry)
        self.cancelled = Counter("quire_cancellations", "Requests cancelled by their clients.", registry=registry)
        self._finished = Counter("quire_finished", "Answers, by finish reason.", ["reason"], registry=registry)
        self._prompt = Counter("quire_prompt_tokens", "Prompt tokens.", registry=registry)
        self._generated = Counter("quire_generated_tokens", "Generated tokens.", registry=registry)
        self._reused = Counter("quire_prompt_tokens_cached", "Prompt tokens found in the cache.", registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"quire_{name}", text, registry=registry, buckets=buckets)

        self.first_token_s = histogram("time_to_first_token_seconds", "Time from arrival to the first token.", _SECONDS)
        self.between_tokens_s = histogram("inter_token_seconds", "Mean time between the tokens of an answer.", _SECONDS)
        self.queue_s = histogram("queue_seconds", "Time in the queue.", _SECONDS)
        self.total_s = histogram("request_seconds", "Time from arrival to the last token.", _SECONDS)
        self._prompt_size = histogram("request_prompt_tokens", "Tokens per prompt.", _TOKENS)
        self._answer_size = histogram("request_generated_tokens", "Tokens per answer.", _TOKENS)
        self._read = _Spent()
        self._written = _Spent()
        self._timed = _Spent()  # answers with more than one token
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
        """Count an answered request."""
        self._requests.labels(str(status)).inc()

    def error(self, code: str) -> None:
        """Count an error."""
        self._errors.labels(code).inc()

    def finished(self, end: Finished, first_token_s: float | None, total_s: float) -> None:
        """Count a completed choice."""
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
        if end.n_generated_tokens > 1:  # a single token takes no time beyond its prompt
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
        """Count an embedded prompt."""
        self._prompt_read(n_tokens, n_cached, seconds)
        self._most_tokens = max(self._most_tokens, n_tokens)

    def _prompt_read(self, n_tokens: int, n_cached: int, seconds: float) -> None:
        self._prompt.inc(n_tokens)
        self._reused.inc(n_cached)
        self.n_reused += n_cached
        self._prompt_size.observe(n_tokens)
        self._read.add(n_tokens - n_cached, seconds)

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self._registry)


@dataclass
class _Spent:
    """Tokens and the seconds they took."""

    n_tokens: int = 0
    seconds: float = 0.0

    def add(self, n_tokens: int, seconds: float) -> None:
        """Add tokens and seconds."""
        self.n_tokens += n_tokens
        self.seconds += seconds

    def per_second_since(self, before: _Spent) -> float:
        """Tokens per second since ``before``; 0 if there were none."""
        seconds = self.seconds - before.seconds
        return (self.n_tokens - before.n_tokens) / seconds if seconds > 0 else 0.0


class _LlamaCpp:
    """The figures of all models under the names of llama.cpp's server, for dashboards made for it."""

    def __init__(self, metrics: Metrics, engines: Engines) -> None:
        self._metrics = metrics
        self._engines = engines
        # The totals at the last scrape: rates cover the time since then.
        self._read_then, self._timed_then = _Spent(), _Spent()

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the metrics are created at each scrape."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Return the current figures."""
        beats = [beat for engine in self._engines().values() if (beat := engine.beat) is not None]
        read, written, timed = self._metrics._read, self._metrics._written, self._metrics._timed
        read_s, timed_s = read.per_second_since(self._read_then), timed.per_second_since(self._timed_then)
        self._read_then, self._timed_then = replace(read), replace(timed)
        drafters = [figures for beat in beats for figures in beat.drafters.values()]
        totals = {
            "prompt_tokens_cached": (self._metrics.n_reused, "Prompt tokens found in the cache."),
            "prompt_tokens": (read.n_tokens, "Prompt tokens processed."),
            "prompt_seconds": (read.seconds, "Time spent processing prompts."),
            "tokens_predicted": (written.n_tokens, "Generated tokens."),
            "tokens_predicted_seconds": (written.seconds, "Time spent generating."),
            "n_decode": (sum(beat.n_steps for beat in beats), "Model steps."),
            "spec_decode_num_drafts": (sum(each.n_drafts for each in drafters), "Drafts verified."),
            "spec_decode_num_draft_tokens": (sum(each.n_drafted for each in drafters), "Tokens in drafts."),
            "spec_decode_num_accepted_tokens": (sum(each.n_accepted for each in drafters), "Accepted draft tokens."),
        }
        gauges = {
            "prompt_tokens_seconds": (read_s, "Prompt tokens per second since the last scrape."),
            "predicted_tokens_seconds": (timed_s, "Generated tokens per second and answer since the last scrape."),
            "requests_processing": (sum(beat.n_running for beat in beats), "Sequences in the batch."),
            "requests_deferred": (sum(beat.n_waiting for beat in beats), "Requests waiting for a place in the batch."),
            "n_busy_slots_per_decode": (
                sum(beat.n_step_sequences for beat in beats) / max(sum(beat.n_steps for beat in beats), 1),
                "Mean number of sequences per model step.",
            ),
            "n_tokens_max": (self._metrics._most_tokens, "Largest number of tokens of a prompt and its answer so far."),
        }
        for name, (value, text) in totals.items():
            yield CounterMetricFamily(f"llamacpp:{name}", text, value=float(value))
        for name, (value, text) in gauges.items():
            yield GaugeMetricFamily(f"llamacpp:{name}", text, value=float(value))


class _EngineFigures:
    """Collects the engines' own metrics."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the names of models are known only at a scrape."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Return the current figures."""
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
        text = "Bytes of the cache by kind of layer: held by sequences, or kept for the prefix cache."
        gauge = GaugeMetricFamily("quire_cache_bytes", text, labels=["model", "kind", "use"])
        for model, beat in beats.items():
            for use in beat.cache:
                gauge.add_metric([model, use.kind, "held"], float(use.held_bytes))
                gauge.add_metric([model, use.kind, "cached"], float(use.cached_bytes))
        yield gauge
        yield from _of_tiers(beats)
        yield from _of_drafters(beats)


_TIER_TOTALS = {
    "hit_tokens": "Prompt tokens found in a tier of the cache below the pool of blocks.",
    "read_bytes": "Bytes read from a tier of the cache.",
    "written_bytes": "Bytes written to a tier of the cache.",
    "dropped": "Blocks that found no room in a tier of the cache.",
    "damaged": "Files of a tier of the cache that were not what their names said.",
    "evicted": "Blocks that a tier of the cache evicted.",
}


def _of_tiers(beats: Mapping[str, Beat]) -> Iterable[Metric]:
    labels = ["model", "tier"]
    used = GaugeMetricFamily("quire_cache_tier_bytes", "Bytes in a tier of the cache.", labels=labels)
    most = GaugeMetricFamily("quire_cache_tier_most_bytes", "Budget of a tier of the cache.", labels=labels)
    totals = {name: CounterMetricFamily(f"quire_cache_tier_{name}", text, labels=labels)
              for name, text in _TIER_TOTALS.items()}  # fmt: skip
    for model, beat in beats.items():
        for tier in beat.tiers:
            used.add_metric([model, tier.name], float(tier.used_bytes))
            most.add_metric([model, tier.name], float(tier.budget_bytes))
            for name, total in totals.items():
                field = name if name in tier.__struct_fields__ else f"n_{name}"
                total.add_metric([model, tier.name], float(getattr(tier, field)))
    return used, most, *totals.values()


def _of_drafters(beats: Mapping[str, Beat]) -> Iterable[Metric]:
    """Return the metrics of drafters; tokens are counted by their position in the draft, from 0."""
    drafts = CounterMetricFamily("quire_drafts", "Drafts verified.", labels=["model", "drafter"])
    seconds = CounterMetricFamily("quire_draft_seconds", "Time spent drafting.", labels=["model", "drafter"])
    labels = ["model", "drafter", "position"]
    drafted = CounterMetricFamily("quire_drafted_tokens", "Draft tokens verified.", labels=labels)
    accepted = CounterMetricFamily("quire_accepted_tokens", "Draft tokens accepted.", labels=labels)
    for model, beat in beats.items():
        for name, figures in beat.drafters.items():
            drafts.add_metric([model, name], float(figures.n_drafts))
            seconds.add_metric([model, name], figures.seconds)
            for position, (n, n_right) in enumerate(zip(figures.drafted_at, figures.accepted_at, strict=True)):
                drafted.add_metric([model, name, str(position)], float(n))
                accepted.add_metric([model, name, str(position)], float(n_right))
    return drafts, seconds, drafted, accepted
