"""The metrics under the names of vLLM's server, for dashboards made for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from ..worker.engine_client import EngineClient
    from ..worker.protocol import Beat

__all__ = ["Requests", "VllmFigures"]

_GAUGES: dict[str, tuple[Callable[[Beat], float], str]] = {
    "num_requests_running": (lambda beat: beat.n_running, "Sequences in the batch."),
    "num_requests_waiting": (lambda beat: beat.n_waiting, "Requests waiting for a place in the batch."),
    "kv_cache_usage_perc": (
        lambda beat: 1 - beat.n_free_blocks / max(beat.n_usable_blocks, 1),
        "Fraction of the cache's blocks held by sequences, 0 to 1.",
    ),
}
_TOTALS: dict[str, tuple[Callable[[Beat], float], str]] = {
    "num_preemptions": (lambda beat: beat.n_preemptions, "Sequences that were preempted."),
    "prefix_cache_queries": (
        lambda beat: beat.n_prefix_hit_tokens + beat.n_computed_tokens - beat.n_generated_tokens,
        "Prompt tokens looked up in the cache.",
    ),
    "prefix_cache_hits": (lambda beat: beat.n_prefix_hit_tokens, "Prompt tokens found in the cache."),
}


@dataclass(frozen=True)
class Requests:
    """Request metrics of all models, by vLLM's names."""

    finished: Counter
    totals: Mapping[str, Counter]
    histograms: Mapping[str, Histogram]


class VllmFigures:
    """Collects the metrics.  ``model_name`` is the model, or all loaded models for a figure over all of them."""

    def __init__(self, requests: Requests, engines: Callable[[], Mapping[str, EngineClient]]) -> None:
        self._requests = requests
        self._engines = engines

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the metrics are created at each scrape."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Return the current figures."""
        beats = {name: beat for name, engine in self._engines().items() if (beat := engine.beat) is not None}
        for name, (read, text) in _GAUGES.items():
            gauge = GaugeMetricFamily(f"vllm:{name}", text, labels=["model_name"])
            for model, beat in beats.items():
                gauge.add_metric([model], float(read(beat)))
            yield gauge
        for name, (read, text) in _TOTALS.items():
            total = CounterMetricFamily(f"vllm:{name}", text, labels=["model_name"])
            for model, beat in beats.items():
                total.add_metric([model], float(max(read(beat), 0)))
            yield total
        models = {"model_name": ",".join(self._engines())}
        for name, counter in self._requests.totals.items():
            yield _renamed(counter, name, models)
        yield _renamed(self._requests.finished, "request_success", models, {"reason": "finished_reason"})
        for name, histogram in self._requests.histograms.items():
            yield _renamed(histogram, name, models)


def _renamed(
    source: Counter | Histogram, name: str, labels: Mapping[str, str], renamed: Mapping[str, str] | None = None
) -> Metric:
    """Return a metric's samples under another name, with more labels."""
    (found,) = source.collect()
    made = Metric(f"vllm:{name}", found.documentation, found.type)
    for sample in found.samples:
        own = {(renamed or {}).get(key, key): value for key, value in sample.labels.items()}
        made.add_sample(f"vllm:{name}{sample.name.removeprefix(found.name)}", {**labels, **own}, sample.value)
    return made
