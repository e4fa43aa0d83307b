"""Tiny models of some architectures, with keys from ``models.json`` and random weights."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import numpy.typing as npt

from .._native.core import Tensor
from .._native.graph import Executor, Weight
from ..files.gguf import Metadata
from ..models.registry import LoadedModel, model_of
from ..nn import Weights

if TYPE_CHECKING:
    from .._native.core import Device
    from .._native.gguf import Reader

__all__ = ["model_names", "run_model", "tiny_model"]

Array = npt.NDArray[np.float32]
TOLERANCE = 2e-2
N_VOCAB = 272
# (sequence, first token, end): steps of 44 rows, 1, 8, 23, 1 and 3: a prompt, a single token, several sequences beside
# the rest of a prompt, a sequence that grows into its second block, and one more token of it.
STEPS = (
    ((0, 0, 23), (1, 0, 12), (2, 0, 9)), ((0, 23, 24),), ((0, 24, 25), (1, 12, 16), (2, 9, 12)), ((0, 25, 48),),
    ((0, 48, 49),), ((0, 49, 50), (1, 16, 17), (2, 12, 13)),
)  # fmt: skip
# Encoders get whole texts.
TEXTS = (((0, 0, 23), (1, 0, 12), (2, 0, 9)), ((0, 0, 1),), ((0, 0, 5), (1, 0, 3)))
BLOCK, N_TOKENS = 32, 64  # tokens of a block, and of a sequence with two


@cache
def _described() -> Mapping[str, Mapping[str, Any]]:
    """Return for each model its ``keys`` with types, its optional tensors (``there``) and ``rows``."""
    found: Mapping[str, Mapping[str, Any]] = json.loads(Path(__file__).with_name("models.json").read_text("utf-8"))
    return found


def model_names() -> list[str]:
    return list(_described())


class _Keys:
    """The keys of a file that does not exist."""

    def __init__(self, keys: Mapping[str, tuple[str, object]]) -> None:
        self._keys = keys

    def keys(self) -> list[str]:
        return list(self._keys)

    def has(self, key: str) -> bool:
        return key in self._keys

    def value_type(self, key: str) -> str:
        return self._keys[key][0]

    def value(self, key: str) -> object:
        kind, value = self._keys[key]
        if not kind.endswith("[]"):
            return value
        dtype = {"f32[]": np.float32, "bool[]": np.bool_}.get(kind, np.int32)
        return np.asarray(value, dtype)


class _RandomWeights(Weights):
    """The weights that a model declares, made from their names."""

    def __init__(self, described: Mapping[str, Any], place: Callable[[Tensor], Tensor], prefix: str = "") -> None:
        self._described, self._place, self._prefix = described, place, prefix
        self._products = {}

    def scope(self, name: str) -> Weights:
        return _RandomWeights(self._described, self._place, f"{self._prefix}{name}.")

    def blocks(self, n: int) -> Iterator[Weights]:
        return (self.scope(f"blk.{i}") for i in range(n))

    def has(self, name: str) -> bool:
        return self._prefix + name in self._described["there"]

    def n_rows(self, name: str) -> int:
        return int(self._described["rows"][self._prefix + name])

    def tensor(
        self, name: str, shape: Sequence[int], *, vector: bool = False, stored: Sequence[int] | None = None
    ) -> Weight:
        return self.computed(name, self.numbers(name, shape))

    def row(self, name: str, n_in: int) -> Weight:
        return self.tensor(name, (1, n_in))

    def numbers(self, name: str, shape: Sequence[int]) -> Array:
        full = self._prefix + name
        values = np.random.default_rng(zlib.crc32(full.encode())).standard_normal(tuple(shape))
        if "norm" in name and name.endswith("weight"):
            values = 1 + 0.1 * values
        elif name.endswith("bias"):
            values *= 0.2
        elif "freqs" in name:
            values = 1 + np.abs(values)  # they divide frequencies
        elif name == "ssm_a":
            values = -np.abs(values)  # a positive value makes states grow without bound
        else:
            values *= 0.3 if "embd" in name else 1.5 * shape[-1] ** -0.5
        return np.asarray(values, np.float32)

    def dequantized(self, name: str, shape: Sequence[int]) -> Array:
        return self.numbers(name, shape)

    def _scale(self, name: str) -> float:
        return 1.0

    def ignore(self, pattern: str, reason: str) -> None: ...

    def finish(self) -> None: ...


def tiny_model(name: str, place: Callable[[Tensor], Tensor] = lambda tensor: tensor) -> LoadedModel:
    """Make a model.  ``place``: maps each tensor, which is in host memory, to a device."""
    described = _described()[name]
    metadata = Metadata(cast("Reader", _Keys({key: tuple(value) for key, value in described["keys"].items()})))
    return model_of(metadata, _RandomWeights(described, place), N_VOCAB)


def run_model(
    name: str,
    device: Device,
    kernels: Literal["auto", "stock", "cpu"] = "stock",
    places: Callable[[str], str | None] | None = None,
    more_devices: Sequence[Device] = (),
    *,
    ended: Callable[[], None] = lambda: None,
) -> list[Array]:
    """Return logits of each of ``STEPS``, or an encoder's vectors of ``TEXTS``; ``ended`` is called after each.

    ``places``: where a weight is, by its name, of a model on that device, ``more_devices`` and the CPU; None: it says
    nothing.
    """
    model = tiny_model(name, lambda tensor: tensor.to(device) if places is None else tensor)
    trace = model.trace()
    named = {} if places is None else {each: place for each in trace.placed_names if (place := places(each))}
    has_rows, has_state = any(spec.n_kv_head for spec in model.cache), any(spec.states for spec in model.cache)
    executor = Executor(
        trace, device, n_blocks=7, n_states=4 if has_state else 0, threads=1, kernels=kernels, max_rows=44,
        max_sequences=3, places=named, more_devices=more_devices,
    )  # fmt: skip
    ids = np.random.default_rng(len(name)).integers(0, N_VOCAB, (3, N_TOKENS)).tolist()

    def step(parts: Sequence[tuple[int, int, int]]) -> Array:
        rows = [(s, p) for s, begin, end in parts for p in range(begin, end)]
        found = executor.run(
            [ids[s][p] for s, p in rows],
            positions=[p for _, p in rows],
            slots=[BLOCK + N_TOKENS * s + p for s, p in rows] if has_rows else [],
            logit_rows=list(range(len(rows))),
            row_begin=np.cumsum([0, *(end - begin for _, begin, end in parts)]).tolist(),
            n_kv=[end for _, _, end in parts],
            tables=[[2 * s + 1, 2 * s + 2][: -(-end // BLOCK)] for s, _, end in parts] if has_rows else [],
            states=[s + 1 for s, _, _ in parts] if has_state else [],
        )
        ended()
        return found

    return [step(parts) for parts in (TEXTS if model.config.is_encoder else STEPS)]
