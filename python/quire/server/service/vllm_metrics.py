"""The figures by the names of vLLM's server, for dashboards that were made for it."""

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
    "num_requests_waiting": (lambda beat: beat.n_waiting, "Requests that wait for a place in it."),
    "kv_cache_usage_perc": (
        lambda beat: 1 - beat.n_free_blocks / max(beat.n_usable_blocks, 1),
        "Part of the cache's blocks that sequences hold; 1 is all.",
    ),
}
_TOTALS: dict[str, tuple[Callable[[Beat], float], str]] = {
    "num_preemptions": (lambda beat: beat.n_preemptions, "Sequences that gave their blocks to others."),
    "prefix_cache_queries": (
        lambda beat: beat.n_prefix_hit_tokens + beat.n_computed_tokens - beat.n_generated_tokens,
        "Tokens of prompts that were looked for in the cache.",
    ),
    "prefix_cache_hits": (lambda beat: beat.n_prefix_hit_tokens, "Those of them that were found."),
}


@dataclass(frozen=True)
class Requests:
    """Figures of requests, of all models, by vLLM's names."""

    finished: Counter
    totals: Mapping[str, Counter]
    histograms: Mapping[str, Histogram]


class VllmFigures:
    """Collects them; ``model_name`` is the model, or all that are open where a figure is of them together."""

    def __init__(self, requests: Requests, engines: Callable[[], Mapping[str, EngineClient]]) -> None:
        self._requests = requests
        self._engines = engines

    def describe(self) -> Iterable[Metric]:
        """Nothing: the figures are made when they are asked for."""
        return []

    def collect(self) -> Iterable[Metric]:
        """The figures as of now."""
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
    """A metric's samples under another name, with further labels."""
    (found,) = source.collect()
    made = Metric(f"vllm:{name}", found.documentation, found.type)
    for sample in found.samples:
        own = {(renamed or {}).get(key, key): value for key, value in sample.labels.items()}
        made.add_sample(f"vllm:{name}{sample.name.removeprefix(found.name)}", {**labels, **own}, sample.value)
    return made
