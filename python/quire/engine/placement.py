"""Where the weights of a model lie that is too large for its device: which of them the CPU keeps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from .._native.graph import CacheSpec
from .._native.kv import CacheLayout
from ..errors import RequestError, UnsupportedError
from ..expressions import Expression
from .memory import memory_at_hand

if TYPE_CHECKING:
    from .._native.core import Device
    from ..models import LoadedModel
    from .config import CacheDType, EngineConfig
    from .sizes import ModelNeeds

__all__ = ["Placement", "asks_for_two_devices", "memory_of_all", "needs_of_parts", "placement_of"]

Place = Literal["cpu", "device"]

_LAYER = re.compile(r"(?:^|\.)blk\.(\d+)\.")
_OUTPUT = re.compile(r"^(?:\w+\.)?(?:output|cls)")
_EXPERTS = re.compile(r"\.ffn_(?:gate|up|down|gate_up)_(?:ch)?exps\b")
_PART = re.compile(r"\[\d+:\d+\]$")  # of a tensor that holds several matrices


@dataclass(frozen=True)
class Placement:
    """What lies on the CPU, of a model of ``n_layer`` layers that is otherwise on a device.

    As in llama.cpp, ``n_gpu_layers`` counts from the end, the output as the last one of ``n_layer + 1``; weights of the
    experts of the first ``n_cpu_moe`` layers are the CPU's, and ``overrides`` go first: the first pattern that is found
    in a name decides.  What is used before the layers is the CPU's.
    """

    n_layer: int
    n_gpu_layers: int
    n_cpu_moe: int = 0
    overrides: tuple[tuple[Expression, Place], ...] = ()

    def place(self, name: str) -> Place | None:
        """Where a weight is; None: with the operations around it."""
        whole = _PART.sub("", name)
        for pattern, place in self.overrides:
            if pattern.search(whole):
                return place
        layer = _LAYER.search(whole)
        if layer is None:
            return "device" if self.n_gpu_layers > 0 and _OUTPUT.search(whole) else None
        number = int(layer[1])
        if number < self.n_cpu_moe and _EXPERTS.search(whole):
            return "cpu"
        return "device" if number > self.n_layer - self.n_gpu_layers else "cpu"

    def places(self, names: Iterable[str]) -> dict[str, Place]:
        """Of those weights by which operations can be placed.  RequestError for a pattern that is found in none."""
        names = sorted(names)
        for pattern, _ in self.overrides:
            if not any(pattern.search(_PART.sub("", name)) for name in names):
                raise RequestError(
                    f"[override-tensor] every pattern must be found in the name of a weight that is multiplied but "
                    f"'{pattern.text:.80}' is in none"
                )
        return {name: place for name in names if (place := self.place(name)) is not None}


def asks_for_two_devices(config: EngineConfig) -> bool:
    """Whether a part of the model may be on the CPU that is otherwise on a device."""
    return bool(config.n_gpu_layers is not None or config.n_cpu_moe or config.override_tensor)


def memory_of_all(config: EngineConfig, device: Device) -> int:
    """The CPU's as well, where it may have a part of the model."""
    from ..hardware import find_device

    found = memory_at_hand(config, device)
    if device.kind == "cpu" or not asks_for_two_devices(config):
        return found
    return found + memory_at_hand(config, find_device("cpu"))


def needs_of_parts(
    needs: ModelNeeds, model: LoadedModel, placement: Placement, kv_dtype: CacheDType
) -> tuple[ModelNeeds, ModelNeeds]:
    """What the parts on the CPU and on the device need."""
    trace = model.trace()
    cpu_bytes, device_bytes, on_device = trace.placed_parts(placement.places(trace.placed_names))

    def block_bytes(is_there: Callable[[int], bool]) -> int:
        layers = [spec if is_there(i) else CacheSpec() for i, spec in enumerate(model.cache)]
        return max(1, CacheLayout(layers, kv_dtype).block_bytes)

    both = replace(needs, paged=False, limited=())  # blocks of all groups are as many as the device has
    return (
        replace(both, weights_bytes=cpu_bytes, block_bytes=block_bytes(lambda i: i not in on_device)),
        replace(both, weights_bytes=device_bytes, block_bytes=block_bytes(on_device.__contains__), state_bytes=0),
    )


def placement_of(config: EngineConfig, device: Device, n_layer: int) -> Placement | None:
    """What the options ask for; None: all of the model is on ``device``."""
    if device.kind == "cpu":
        return None
    n_gpu_layers = n_layer + 1 if config.n_gpu_layers is None else min(config.n_gpu_layers, n_layer + 1)
    if n_gpu_layers > n_layer and not config.n_cpu_moe and not config.override_tensor:
        return None
    return Placement(n_layer, n_gpu_layers, config.n_cpu_moe, _overrides(config.override_tensor, device))


def _overrides(given: Sequence[tuple[str, str]], device: Device) -> tuple[tuple[Expression, Place], ...]:
    from ..hardware import find_device

    found: list[tuple[Expression, Place]] = []
    for text, name in given:
        named = find_device(name)
        if named.kind != "cpu" and named.name != device.name:
            raise UnsupportedError(
                f"[override-tensor] the device must be CPU or {device.name}, on which the model is, but is {named.name}"
            )
        pattern = Expression(text, "[override-tensor] a pattern", RequestError)
        found.append((pattern, "cpu" if named.kind == "cpu" else "device"))
    return tuple(found)
