"""``quire info MODEL --fit``: report how much of a model fits on each device, and what uses the memory."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from .tables import print_table
from .text import size_text

if TYPE_CHECKING:
    from ..engine.loading.fit import Fit
    from ..files.gguf import GGUFReader
    from ..params.engine_options import EngineConfig

__all__ = ["fit_object", "fit_of_file", "places_of_tensors", "print_fit"]

_PART = re.compile(r"\[\d+:\d+\]$")  # suffix for one of several matrices in a tensor


def fit_of_file(reader: GGUFReader, path: Path, config: EngineConfig) -> Fit:
    """Compute the fit of a model file.  Raises the same errors as opening the model."""
    from ..engine.loading.loader import fit_of

    return fit_of(reader, path, config)


def _name_of(fit: Fit, place: str) -> str:
    """Return the name that users know a place by."""
    return "CPU" if place == "cpu" else fit.devices[int(place.removeprefix("device") or 0)].name


def places_of_tensors(fit: Fit) -> dict[str, str]:
    """Map each tensor's name to the place that holds it, or to a list of places that hold its parts."""
    found: dict[str, list[str]] = {}
    for place, weights in fit.weights.items():
        for name in weights:
            names = found.setdefault(_PART.sub("", name), [])
            if (shown := _name_of(fit, place)) not in names:
                names.append(shown)
    return {name: ", ".join(names) for name, names in found.items()}


def options_of(fit: Fit) -> dict[str, object]:
    """Return the options that would reproduce this placement."""
    given: dict[str, object] = {"device": ",".join(device.name for device in fit.devices) or "CPU"}
    if fit.devices:
        given["gpu-layers"] = "all" if fit.n_gpu_layers is None else fit.n_gpu_layers
    if fit.placement is not None and fit.placement.n_cpu_moe:
        given["n-cpu-moe"] = fit.placement.n_cpu_moe
    sizes = fit.sizes
    return given | {
        "ctx-size": sizes.n_ctx, "cache-blocks": sizes.n_blocks, "batch-size": sizes.max_step_tokens,
        "max-sequences": sizes.max_sequences,
    }  # fmt: skip


def fit_object(fit: Fit) -> dict[str, object]:
    """Return the report for ``--json``."""
    return {
        "devices": [asdict(use) | {"model_bytes": use.model_bytes} for use in fit.uses],
        "cpu": {
            "weights_bytes": sum(fit.weights.get("cpu", {}).values()),
            "cache_bytes": fit.cpu_cache_bytes,
            "compute_bytes": fit.cpu_compute_bytes,
        },
        "layers_cached": {_name_of(fit, place): n for place, n in fit.layers.items()},
        "cache_bytes_per_token": {use.name: _bytes_per_token(fit, use.cache_bytes) for use in fit.uses},
        "options": options_of(fit),
        "tensors": places_of_tensors(fit),
        "note": fit.note or None,
    }


def _bytes_per_token(fit: Fit, cache_bytes: int) -> int:
    return round(cache_bytes / (32 * fit.sizes.n_blocks))


def print_fit(fit: Fit) -> None:
    rows = [
        (
            use.name, size_text(use.weights_bytes), size_text(use.cache_bytes), size_text(use.compute_bytes),
            size_text(use.model_bytes), size_text(use.free_bytes), size_text(use.total_bytes - use.free_bytes),
        )
        for use in fit.uses
    ]  # fmt: skip
    on_cpu = fit.weights.get("cpu", {})
    if on_cpu:
        parts = (sum(on_cpu.values()), fit.cpu_cache_bytes, fit.cpu_compute_bytes)
        weights, cache, compute = map(size_text, parts)
        rows.append(("CPU", weights, cache, compute, size_text(sum(parts)), "", ""))
    print_table(("fit", "weights>", "cache>", "compute>", "total>", "free>", "used by others>"), rows)
    for use in fit.uses:
        print(f"cache of a token on {use.name}: {size_text(_bytes_per_token(fit, use.cache_bytes))}")
    print("equivalent options: " + " ".join(f"--{name} {value}" for name, value in options_of(fit).items()))
    if fit.note:
        print(f"note: {fit.note}")
