"""Where the weights of a model lie that is on several devices, the CPU among them."""

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
# Of ``Trace.placed_parts``: bytes by weight, layers whose rows are there, bytes of a sequence's states.
PlacedPart: TypeAlias = tuple[dict[str, int], set[int], int]
_DENSE = re.compile(r"\.ffn_(?:gate|up|down)\.")
_PART = re.compile(r"\[\d+:\d+\]$")  # of a tensor that holds several matrices


def place_of(number: int) -> str:
    """A device of the model by its number, as ``Executor`` calls it."""
    return f"device{number or ''}"


@dataclass(frozen=True)
class Placement:
    """What lies where, of a model of ``n_layer`` layers: a place is ``"cpu"``, ``"device"``, ``"device1"`` and so on.

    As in llama.cpp, ``n_gpu_layers`` counts from the end, the output as the last one of ``n_layer + 1``; weights of the
    experts of the first ``n_cpu_moe`` layers are the CPU's, those of dense feed-forward parts of the first
    ``n_cpu_ffn``, and ``overrides`` go first: the first pattern that is found in a name decides.  What is used before
    the layers is the CPU's.  ``split``: what the devices have of the layers that are on devices, in proportion.
    """

    n_layer: int
    n_gpu_layers: int
    n_cpu_moe: int = 0
    overrides: tuple[tuple[Expression, str], ...] = ()
    n_cpu_ffn: int = 0
    split: tuple[float, ...] = (1.0,)

    def _place_of_layer(self, number: int) -> str:
        """Of a layer, or of the output, which comes after the last."""
        n = min(self.n_gpu_layers, self.n_layer + 1)
        first = self.n_layer + 1 - n
        if number < first:
            return "cpu"
        ends = [end / sum(self.split) for end in accumulate(self.split)]
        return place_of(min(bisect_right(ends, (number - first) / n), len(ends) - 1))

    def place(self, name: str) -> str | None:
        """Where a weight is; None: with the operations around it."""
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
        """Of those weights by which operations can be placed.  RequestError for a pattern that is found in none."""
        names = sorted(names)
        for pattern, _ in self.overrides:
            if not any(pattern.search(_PART.sub("", name)) for name in names):
                raise RequestError(
                    f"[override-tensor] every pattern must be found in the name of a weight that is multiplied but "
                    f"'{pattern.text:.80}' is in none"
                )
        return {name: place for name in names if (place := self.place(name)) is not None}


def has_experts(names: Iterable[str]) -> bool:
    return any(_EXPERTS.search(name) for name in names)


def asks_for_two_devices(config: EngineConfig) -> bool:
    """Whether the options say themselves that a part of the model is on the CPU, or on another device."""
    return bool(
        config.n_gpu_layers is not None
        or config.n_cpu_moe
        or config.n_cpu_ffn
        or config.override_tensor
        or config.tensor_split
    )


def memory_of_all(config: EngineConfig, devices: Sequence[Device]) -> int:
    """The CPU's as well, where it may have a part of the model."""
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
    """What the parts on the CPU and on the devices need, of ``Trace.placed_parts``."""

    def block_bytes(is_there: Callable[[int], bool]) -> int:
        layers = [spec if is_there(i) else CacheSpec() for i, spec in enumerate(cache)]
        return max(1, CacheLayout(layers, kv_dtype).block_bytes)

    both = replace(needs, paged=False, on_device=True, limited=())  # blocks of all groups are as many as the device has
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
    """What the options ask for; None: all of the model is on the one device.

    ``split``: of several devices, where the options say none.
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
                f"[override-tensor] the device must be CPU or {', '.join(places)}, on which the model is, "
                f"but is {named.name}"
            )
        pattern = Expression(text, "[override-tensor] a pattern", RequestError)
        found.append((pattern, "cpu" if named.kind == "cpu" else places[named.name]))
    return tuple(found)
