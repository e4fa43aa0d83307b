"""Place the weights of a model on several devices, including the CPU."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

from ..._native.graph import CacheSpec
from ..._native.kv import CacheLayout
from ...errors import RequestError, UnsupportedError
from ...files.expressions import Expression
from .memory import memory_at_hand

if TYPE_CHECKING:
    from ..._native.core import Device
    from ...params.engine_options import CacheDType, EngineConfig
    from .sizes import ModelNeeds

__all__ = [
    "PlacedPart",
    "Placement",
    "asks_for_two_devices",
    "memory_of_all",
    "needs_of_parts",
    "place_of",
    "placement_of",
]

_LAYER = re.compile(r"(?:^|\.)blk\.(\d+)\.")
_OUTPUT = re.compile(r"^(?:\w+\.)?(?:output|cls)")
_EXPERTS = re.compile(r"\.ffn_(?:gate|up|down|gate_up)_(?:ch)?exps\b")
# From ``Trace.placed_parts``: bytes by weight, layers whose cache is there, bytes of a sequence's states.
PlacedPart: TypeAlias = tuple[dict[str, int], set[int], int]
_DENSE = re.compile(r"\.ffn_(?:gate|up|down)\.")
_PART = re.compile(r"\[\d+:\d+\]$")  # a matrix within a tensor of several


def place_of(number: int) -> str:
    """Return ``Executor``'s name for the model's device with this number."""
    return f"device{number or ''}"


@dataclass(frozen=True)
class Placement:
    """The place of each weight: ``"cpu"``, ``"device"``, ``"device1"`` and so on.

    As in llama.cpp, ``n_gpu_layers`` counts from the end, with the output as the last of ``n_layer + 1``.  The experts
    of the first ``n_cpu_moe`` layers and the dense feed-forward weights of the first ``n_cpu_ffn`` are on the CPU, and
    so are the weights used before the first layer.  ``overrides`` take precedence: the first pattern found in a name
    decides.  ``split``: the proportions of the layers on devices.
    """

    n_layer: int
    n_gpu_layers: int
    n_cpu_moe: int = 0
    overrides: tuple[tuple[Expression, str], ...] = ()
    n_cpu_ffn: int = 0
    split: tuple[float, ...] = (1.0,)

    def _place_of_layer(self, number: int) -> str:
        """Return the place of a layer, or of the output, which comes after the last."""
        n = min(self.n_gpu_layers, self.n_layer + 1)
        first = self.n_layer + 1 - n
        if number < first:
            return "cpu"
        ends = [end / sum(self.split) for end in accumulate(self.split)]
        return place_of(min(bisect_right(ends, (number - first) / n), len(ends) - 1))

    def place(self, name: str) -> str | None:
        """Return the place of a weight; None: with the operations around it."""
        whole = _PART.sub("", name)
        for pattern, place in self.overrides:
            if pattern.search(whole):
                return place
        layer = _LAYER.search(whole)
        if layer is None:
            is_output = self.n_gpu_layers > 0 and _OUTPUT.search(whole)
            return self._place_of_layer(self.n_layer) if is_output else None
        number = int(layer[1])
        if number < self.n_cpu_moe and _EXPERTS.search(whole):
            return "cpu"
        if number < self.n_cpu_ffn and _DENSE.search(whole):
            return "cpu"
        return self._place_of_layer(number)

    def places(self, names: Iterable[str]) -> dict[str, str]:
        """Return the places of weights that operations are placed by.  RequestError for a pattern without a match."""
        names = sorted(names)
        for pattern, _ in self.overrides:
            if not any(pattern.search(_PART.sub("", name)) for name in names):
                raise RequestError(
                    f"[override-tensor] the pattern '{pattern.text:.80}' matches no weight that is multiplied"
                )
        return {name: place for name in names if (place := self.place(name)) is not None}


def has_experts(names: Iterable[str]) -> bool:
    return any(_EXPERTS.search(name) for name in names)


def asks_for_two_devices(config: EngineConfig) -> bool:
    """Return whether the options themselves put a part of the model on the CPU or on another device."""
    return bool(
        config.n_gpu_layers is not None
        or config.n_cpu_moe
        or config.n_cpu_ffn
        or config.override_tensor
        or config.tensor_split
    )


def memory_of_all(config: EngineConfig, devices: Sequence[Device]) -> int:
    """Return the memory of the devices, and of the CPU if it may have a part of the model."""
    from ...hardware import find_device

    found = sum(memory_at_hand(config, device) for device in devices)
    if devices[0].kind == "cpu" or not (asks_for_two_devices(config) or config.fit == "on"):
        return found
    return found + memory_at_hand(config, find_device("cpu"))


def needs_of_parts(
    needs: ModelNeeds,
    parts: Sequence[PlacedPart],
    cache: Sequence[CacheSpec],
    kv_dtype: CacheDType,
) -> list[ModelNeeds]:
    """Return the needs of the parts on the CPU and on each device."""

    def block_bytes(is_there: Callable[[int], bool]) -> int:
        layers = [spec if is_there(i) else CacheSpec() for i, spec in enumerate(cache)]
        return max(1, CacheLayout(layers, kv_dtype).block_bytes)

    both = replace(needs, paged=False, on_device=True, limited=())  # every group has as many blocks as the device
    return [
        replace(
            both,
            weights_bytes=sum(weights.values()),
            block_bytes=block_bytes(layers.__contains__),
            state_bytes=state_bytes,
        )
        for weights, layers, state_bytes in parts
    ]


def placement_of(
    config: EngineConfig, devices: Sequence[Device], n_layer: int, split: Sequence[float] = ()
) -> Placement | None:
    """Return the placement that the options ask for; None if the whole model is on one device.

    ``split``: proportions of several devices, if the options have none.
    """
    if devices[0].kind == "cpu":
        return None
    n_gpu_layers = n_layer + 1 if config.n_gpu_layers is None else min(config.n_gpu_layers, n_layer + 1)
    is_whole = n_gpu_layers > n_layer and len(devices) == 1
    if is_whole and not (config.n_cpu_moe or config.n_cpu_ffn or config.override_tensor):
        return None
    return Placement(
        n_layer, n_gpu_layers, config.n_cpu_moe, _overrides(config.override_tensor, devices), config.n_cpu_ffn,
        config.tensor_split or tuple(split) or (1.0,) * len(devices),
    )  # fmt: skip


def _overrides(given: Sequence[tuple[str, str]], devices: Sequence[Device]) -> tuple[tuple[Expression, str], ...]:
    from ...hardware import find_device

    places = {device.name: place_of(i) for i, device in enumerate(devices)}
    found: list[tuple[Expression, str]] = []
    for text, name in given:
        named = find_device(name)
        if named.kind != "cpu" and named.name not in places:
            raise UnsupportedError(
                f"[override-tensor] the model is not on {named.name}: choose CPU or {', '.join(places)}"
            )
        pattern = Expression(text, "[override-tensor] a pattern", RequestError)
        found.append((pattern, "cpu" if named.kind == "cpu" else places[named.name]))
    return tuple(found)
