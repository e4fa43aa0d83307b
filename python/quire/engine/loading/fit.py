"""Fit a model on its devices: how many layers, which experts, how much cache.

Candidates are measured (``Executor.measure``), which allocates nothing, and compared with the free memory of the
devices.  First the cache shrinks, down to a context of ``fit_ctx`` tokens; then experts move to the CPU, then layers.
Memory that is left over goes back to the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..._native.graph import Executor
from ...errors import CapacityError, UnsupportedError
from .memory import memory_at_hand
from .placement import has_experts, needs_of_parts, place_of, placement_of
from .sizes import BLOCK_TOKENS, Sizes, choose_sizes, limited_states

if TYPE_CHECKING:
    from ..._native.core import Device
    from ...models import LoadedModel
    from ...params.engine_options import CacheDType, EngineConfig
    from .placement import PlacedPart, Placement
    from .sizes import ModelNeeds

__all__ = ["DeviceUse", "Fit", "fitted"]

_MIB = 1 << 20
_NO_LIMIT = 1 << 60
_LEAST_STEP_TOKENS, _LONG_STEP_TOKENS = 32, 128
_MUCH_MORE = 1.1  # times the layers and experts on devices that are worth shorter steps
_FINER = 5  # bisection steps between a cache that fits and one that does not


@dataclass(frozen=True)
class DeviceUse:
    """Memory that a model takes on a device, and the memory that was free before."""

    name: str
    weights_bytes: int
    cache_bytes: int
    compute_bytes: int
    free_bytes: int
    total_bytes: int

    @property
    def model_bytes(self) -> int:
        return self.weights_bytes + self.cache_bytes + self.compute_bytes


@dataclass(frozen=True)
class Fit:
    """A placement with its sizes, and the memory that these take.

    ``devices``: empty if the whole model is on the CPU.  ``places``: of its weights, as ``Executor`` takes them; empty
    if all are on one device.  ``weights``: names and bytes by place, including ``"cpu"``.
    """

    devices: tuple[Device, ...]
    placement: Placement | None
    places: dict[str, str]
    sizes: Sizes
    uses: tuple[DeviceUse, ...]
    cpu_compute_bytes: int
    cpu_cache_bytes: int
    weights: dict[str, dict[str, int]]
    layers: dict[str, int]  # number of layers whose cache is there, by place
    note: str = ""  # the parts that are not on a requested device

    @property
    def n_gpu_layers(self) -> int | None:
        """Layers on devices; None: all."""
        return 0 if not self.devices else None if self.placement is None else self.placement.n_gpu_layers


def fitted(
    needs: ModelNeeds, model: LoadedModel, config: EngineConfig, devices: Sequence[Device], kv_dtype: CacheDType
) -> Fit:
    """Choose the placement and sizes that ``config`` leaves open, so that the model fits.

    With ``fit="off"``: as requested, with estimated sizes.  Raises UnsupportedError for an operation that a device
    lacks and the CPU cannot take over, and CapacityError if the CPU lacks memory too.
    """
    found = _Fitter(needs, model, config, devices, kv_dtype)
    if config.fit == "off":
        return found.asked_for()
    fit = found.best()
    return replace(fit, note=found.note(fit))


class _Fitter:
    def __init__(
        self,
        needs: ModelNeeds,
        model: LoadedModel,
        config: EngineConfig,
        devices: Sequence[Device],
        kv_dtype: CacheDType,
    ) -> None:
        from ...hardware import find_device

        self.needs = replace(needs, paged=False, on_device=True, limited=())
        self.model, self.config, self.devices, self.kv_dtype = model, config, tuple(devices), kv_dtype
        self.trace = model.trace(config.n_ctx, config.taps)
        self.names = self.trace.placed_names
        self.n_layer = model.config.n_layer
        self.host_bytes = memory_at_hand(config, find_device("cpu"))
        self._sizes: list[Sizes] = []
        self._n_full = 0  # how many of them have steps of full length
        # Proportions of several devices, if none were given.
        self.split = tuple(float(self._room(device)) for device in devices)
        if not any(self.split):
            self.split = (1.0,) * len(devices)
        self.whole = self._placement(config.n_gpu_layers, config.n_cpu_moe)
        if self.whole is not None and config.kernels != "auto":
            raise UnsupportedError(f"[engine] kernels '{config.kernels}' are not supported on two devices: use 'auto'")
        # Parts on the CPU run on Quire's own kernels, which the options may rule out.
        self.may_mix = config.kernels == "auto"

    def _room(self, device: Device, free: int | None = None) -> int:
        """Return the bytes that the model may take on a device."""
        free = device.memory_free_bytes if free is None else free
        # Adapters are spread like the layers, but their matrices may be on any of the devices.
        beside = self.needs.adapter_bytes + (self.needs.media_bytes if device is self.devices[0] else 0)
        return max(0, min(free - self.config.fit_target * _MIB, self.config.memory_bytes or free) - beside)

    def _placement(self, n_gpu_layers: int | None, n_cpu_moe: int) -> Placement | None:
        config = replace(self.config, device="auto", n_gpu_layers=n_gpu_layers, n_cpu_moe=n_cpu_moe)
        return placement_of(config, self.devices, self.n_layer, self.split)

    def asked_for(self) -> Fit:
        """Return the placement that the options ask for, with estimated sizes."""
        if self.whole is None:
            sizes = choose_sizes(self.needs, self.config, memory_at_hand(self.config, self.devices[0]))
        else:
            parts = self._needs_of(self._parts(self.whole))
            rooms = [self.host_bytes, *(memory_at_hand(self.config, device) for device in self.devices)]
            found = [choose_sizes(part, self.config, room) for part, room in zip(parts, rooms, strict=False)]
            sizes = Sizes(
                n_ctx=min(each.n_ctx for each in found),
                n_blocks=max(min(each.n_blocks for each in found), 2),
                max_sequences=min(each.max_sequences for each in found),
                max_step_tokens=min(each.max_step_tokens for each in found),
                n_states=min((each.n_states for each in found if each.n_states), default=0),
            )
        return self._measured(self.whole, sizes)

    def best(self) -> Fit:
        """Return the largest fit."""
        try:
            if (fit := self._largest(self.whole)) is not None:
                return fit
        except UnsupportedError:  # recurrent states, which can be on the CPU
            if self.whole is not None or not self.may_mix:
                raise
            self.whole = replace(self._mixed(self.n_layer + 1, 0), n_gpu_layers=self.n_layer + 1)
            if (fit := self._largest(self.whole)) is not None:
                return fit
        if not self.may_mix:  # the executor then reports the missing bytes
            return self._measured(self.whole, self._candidates()[-1])
        placement: Placement | None = None
        for sizes in self._candidates()[self._n_full - 1 :]:
            found = self._fewer(sizes)
            # Prompts in short steps cost more than a few layers on the CPU.
            if found is not None and (placement is None or _weight(found) > _MUCH_MORE * _weight(placement)):
                placement = found
        fit = None if placement is None else self._largest(placement)
        return self._on_cpu() if fit is None else fit

    def note(self, fit: Fit) -> str:
        """Return a message about the parts that are not on a requested device, or an empty string."""
        names, placement = ", ".join(device.name for device in self.devices), fit.placement
        if not fit.devices:
            return f"no layer of {self.needs.name} fits on {names}: running on the CPU"
        if placement is None or placement == self.whole:
            return ""
        experts = placement.n_cpu_moe > self.config.n_cpu_moe
        return (
            f"{placement.n_gpu_layers} of {self.n_layer + 1} layers of {self.needs.name} (counting its output) are on "
            + names
            + (f", except the experts of {placement.n_cpu_moe}" if experts else "")
            + ", the rest is on the CPU: 'quire info --fit' shows the memory of each part"
        )

    # Sizes

    def _left(self) -> int:
        """Return the device bytes that weights leave; at least a quarter, for models that do not fit whole."""
        room = sum(self._room(device) for device in self.devices)
        return max(room - self.needs.weights_bytes, room // 4)

    def _candidates(self) -> list[Sizes]:
        """Return sizes from the requested ones down to the smallest useful ones, each about half of the one before."""
        config, found = self.config, self._sizes
        if found:
            return found
        state_bytes = sum(part[2] for part in self._parts(self.whole)[1:])  # without the CPU's

        def add(**given: int) -> None:
            try:
                sizes = choose_sizes(self.needs, replace(config, **given), _NO_LIMIT)  # type: ignore[arg-type]
            except CapacityError:  # these sizes contradict each other
                return
            sizes = limited_states(sizes, state_bytes, config, self._left())
            if sizes not in found:
                found.append(sizes)

        add()
        if not found:
            choose_sizes(self.needs, config, _NO_LIMIT)  # raises with the reason
        n_ctx = found[0].n_ctx
        least = n_ctx if config.n_ctx is not None else min(n_ctx, config.fit_ctx)
        while True:
            if config.n_blocks is None and not self.needs.undivided:
                for n_contexts in (2, 1):
                    blocks = n_contexts * -(-n_ctx // BLOCK_TOKENS) + 1
                    if blocks <= found[0].n_blocks:
                        add(n_ctx=n_ctx, n_blocks=blocks)
            else:
                add(n_ctx=n_ctx)
            if n_ctx <= least:
                break
            n_ctx = max(least, n_ctx // 2)
        self._n_full, step_tokens = len(found), found[-1].max_step_tokens
        while config.max_step_tokens is None and step_tokens > _LEAST_STEP_TOKENS and not self.needs.undivided:
            step_tokens //= 2
            add(n_ctx=n_ctx, max_step_tokens=step_tokens, n_blocks=config.n_blocks or found[-1].n_blocks)
        return found

    def _largest(self, placement: Placement | None) -> Fit | None:
        """Return the fit with the largest sizes, or None."""
        larger: Sizes | None = None
        for sizes in self._candidates():
            if placement == self.whole and sizes.max_step_tokens < min(
                _LONG_STEP_TOKENS, self._sizes[0].max_step_tokens
            ):
                break
            if (fit := self._fit(placement, sizes)) is not None:
                return fit if larger is None else self._grown(fit, larger)
            larger = sizes
        return None

    def _grown(self, fit: Fit, larger: Sizes) -> Fit:
        """Return a fit with a larger cache, found by bisection between ``fit`` and sizes that are too large."""
        low, high = fit.sizes.n_blocks, larger.n_blocks
        if self.config.n_blocks is not None or larger.max_step_tokens != fit.sizes.max_step_tokens:
            return fit
        for _ in range(_FINER):
            middle = (low + high) // 2
            if middle <= low:
                break
            n_ctx = min(larger.n_ctx, (middle - 1) * BLOCK_TOKENS) if self.config.n_ctx is None else fit.sizes.n_ctx
            found = self._fit(fit.placement, replace(fit.sizes, n_blocks=middle, n_ctx=n_ctx))
            if found is None:
                high = middle
            else:
                low, fit = middle, found
        return fit

    # Layers

    def _mixed(self, n_gpu_layers: int, n_cpu_moe: int) -> Placement:
        """Return a placement with this many layers on devices, possibly all of them."""
        found = self._placement(min(n_gpu_layers, self.n_layer), n_cpu_moe)
        assert found is not None
        return found

    def _fewer(self, sizes: Sizes) -> Placement | None:
        """Move as few experts as possible to the CPU, then layers.  None if no layer fits."""
        most = self.n_layer + 1 if self.whole is None else self.whole.n_gpu_layers
        moe = self.config.n_cpu_moe

        def mixed(n: int, n_moe: int) -> Placement:
            return replace(self._mixed(n, n_moe), n_gpu_layers=n)

        if has_experts(self.names) and moe == 0:
            moe = _first(1, self.n_layer, lambda n: self._fit(mixed(most, n), sizes) is not None)
            if moe <= self.n_layer:
                return mixed(most, moe)
            moe = self.n_layer
        fewer = _first(1, most - 1, lambda less: self._fit(mixed(most - less, moe), sizes) is not None)
        return mixed(most - fewer, moe) if fewer < most else None

    # Measuring

    def _places(self, placement: Placement | None) -> dict[str, str]:
        return {} if placement is None else placement.places(self.names)

    def _fit(self, placement: Placement | None, sizes: Sizes) -> Fit | None:
        """Return the measured fit, or None if it does not fit on a device or on the CPU."""
        try:
            fit = self._measured(placement, sizes)
        except CapacityError:
            return None
        is_there = all(
            use.model_bytes <= self._room(device, use.free_bytes)
            for use, device in zip(fit.uses, self.devices, strict=True)
        )
        return fit if is_there else None

    def _measured(self, placement: Placement | None, sizes: Sizes) -> Fit:
        places = self._places(placement)
        found, cpu_compute = Executor.measure(
            self.trace,
            self.devices[0],
            n_blocks=sizes.n_blocks,
            n_states=sizes.n_states,
            cache_bytes=sizes.cache_bytes,
            kv_dtype=self.kv_dtype,
            kernels=self.config.kernels,
            max_rows=sizes.max_step_tokens,
            max_sequences=sizes.max_sequences,
            places=places,
            more_devices=self.devices[1:],
        )
        uses = tuple(
            DeviceUse(device.name, use["weights"], use["cache"], use["compute"], use["free"], use["total"])
            for device, use in zip(self.devices, found, strict=False)
        )
        parts, cache_bytes = self._parts(placement), 0
        if placement is not None:
            on_cpu = self._needs_of(parts)[0]
            sizes = replace(sizes, n_states=self._states_beside_cpu(on_cpu, sizes, uses))
            has_rows = on_cpu.block_bytes > 1
            cache_bytes = (sizes.n_blocks * on_cpu.block_bytes if has_rows else 0) + sizes.n_states * on_cpu.state_bytes
        weights, layers = self._named(parts)
        return Fit(self.devices, placement, places, sizes, uses, cpu_compute, cache_bytes, weights, layers)

    def _parts(self, placement: Placement | None) -> list[PlacedPart]:
        """Return the parts on the CPU and on each device, after asking the devices which operations they support."""
        return self.trace.placed_parts(self._places(placement) or dict.fromkeys(self.names, place_of(0)), self.devices)

    def _named(self, parts: Sequence[PlacedPart]) -> tuple[dict[str, dict[str, int]], dict[str, int]]:
        """Return ``weights`` and ``layers`` of a ``Fit``."""
        named = list(zip(["cpu", *(place_of(i) for i in range(len(self.devices)))], parts, strict=False))
        return {name: part[0] for name, part in named}, {name: len(part[1]) for name, part in named}

    def _needs_of(self, parts: Sequence[PlacedPart]) -> list[ModelNeeds]:
        return needs_of_parts(self.needs, parts, self.model.cache, self.kv_dtype)

    def _states_beside_cpu(self, part: ModelNeeds, sizes: Sizes, uses: Sequence[DeviceUse]) -> int:
        """Return the slots of states that the CPU has room for.  CapacityError if its part does not fit."""
        given = replace(self.config, n_ctx=sizes.n_ctx, n_blocks=sizes.n_blocks, max_step_tokens=sizes.max_step_tokens)
        # An integrated GPU uses the host's memory.
        shared = sum(
            use.model_bytes for use, device in zip(uses, self.devices, strict=True) if device.kind == "integrated_gpu"
        )
        n_states = choose_sizes(part, given, self.host_bytes - shared).n_states
        if part.state_bytes == self.needs.state_bytes:  # all states are on the CPU
            return n_states
        return min(sizes.n_states, n_states) if n_states else sizes.n_states

    def _on_cpu(self) -> Fit:
        """Return a fit without devices; its sizes are then chosen as for the CPU alone."""
        weights, layers = self._named(self.trace.placed_parts(dict.fromkeys(self.names, "cpu"), self.devices))
        return Fit((), None, {}, self._candidates()[-1], (), 0, 0, weights, layers)


def _weight(placement: Placement) -> int:
    """Return how much is on devices, as layers plus layers' experts."""
    return placement.n_gpu_layers + placement.n_layer - placement.n_cpu_moe


def _first(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Return the first number of ``low``..``high`` for which a monotonic condition holds; ``high + 1`` if for none."""
    end = high + 1
    while low < end:
        middle = (low + end) // 2
        if holds(middle):
            end = middle
        else:
            low = middle + 1
    return low
