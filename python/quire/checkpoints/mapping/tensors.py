"""Plan which tensors of a checkpoint become which tensors of the file."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from .changes import Array, Change
from .packed import MXFP4

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

SUFFIXES = ("", ".weight", ".bias")
# Tensors with two dimensions that GGUF files store as f32; experts' biases are a matrix.
KEPT_F32 = ("ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "ssm_conv1d.weight", "ssm_conv1d_q.weight",
            "ssm_conv1d_k.weight", "ssm_conv1d_v.weight", "shortconv.conv.weight", "position_embd.weight",
            "token_types.weight", "attn_rel_b.weight", "time_mix_lerp_fused.weight", "time_mix_first.weight",
            "ssm_a", "ssm_d", ".bias", "a.conv1d.0.weight", "a.conv1d.1.weight", "conv_dw.weight",
            "hc_attn_fn.weight", "hc_ffn_fn.weight", "output_hc_fn.weight", "compressor_ape.weight")  # fmt: skip


@dataclass(frozen=True)
class Source:
    """Tensors of the checkpoint and a change of each; several are concatenated, or multiplied elementwise.

    In a table a plain string stands for a source without change.
    """

    names: tuple[str, ...]
    change: Change | None = None
    packing: MXFP4 | None = None
    multiplied: bool = False

    @classmethod
    def of(cls, entry: str | Source) -> Source:
        return entry if isinstance(entry, Source) else cls((entry,))

    def without(self, prefix: str) -> Source:
        return replace(self, names=tuple(name.removeprefix(prefix) for name in self.names))

    def moved(self, prefix: str, to: str) -> Source:
        """Return the source with another prefix."""
        names = tuple(to + name[len(prefix) :] if name.startswith(prefix) else name for name in self.names)
        return replace(self, names=names)


def tensor(*names: str, change: Change | None = None) -> Source:
    """Return a source: tensors of the checkpoint, with a change."""
    return Source(names, change)


def product(*names: str, change: Change | None = None) -> Source:
    """Return a source: the product of tensors of the checkpoint, each with a change."""
    return Source(names, change, multiplied=True)


@dataclass(frozen=True)
class Target:
    """A tensor to write: its name, the checkpoint's tensors that it is made from, and a change of each."""

    name: str
    sources: tuple[str, ...]
    change: Change | None = None
    stacked: bool = False  # along a new first dimension
    made: Array | npt.NDArray[np.int64] | npt.NDArray[np.int32] | None = (
        None  # computed values, which replace the sources
    )
    packing: MXFP4 | None = None  # the sources are the parts of a quantized matrix that is copied
    multiplied: bool = False  # elementwise, instead of concatenated

    @property
    def keep_f32(self) -> bool:
        return self.name.endswith(KEPT_F32) or "norm" in self.name or self.made is not None


def planned(table: Mapping[str, str | Source], there: Collection[str], n_layer: int) -> Iterator[Target]:
    """Yield the targets whose sources the checkpoint has.

    A table's names are those of modules or tensors, with ``{i}`` for the layer and ``{e}`` for experts, which are
    stacked.  ``.weight`` and ``.bias`` are tried on both sides.
    """
    per_layer = [entry for entry in table.items() if "{i}" in entry[0]]
    for target, entry in table.items():
        if "{i}" not in target:
            yield from _module(target, Source.of(entry), there, "")
    for i in range(n_layer):
        for target, entry in per_layer:
            yield from _module(target, Source.of(entry), there, str(i))


@dataclass(frozen=True)
class PredictingLayers:
    """How a checkpoint names the layers that predict later tokens, which come after the last layer in files.

    ``tensors``: their additional tensors, by the part after ``blk.{i}.``, with ``{i}`` for the number in the file and
    ``{p}`` for the number among themselves.  ``prefix``: the prefix of their other tensors; empty: as in all layers.
    ``by_layer``: their values of keys that have one for each layer.
    """

    tensors: Mapping[str, str | Source]
    prefix: str = ""
    by_layer: Mapping[str, object] = field(default_factory=dict)

    def count(self, there: Collection[str], n_layer: int) -> int:
        """Return how many the checkpoint has after ``n_layer`` others."""
        (name,) = Source.of(self.tensors["nextn.eh_proj"]).names
        is_one = "{" not in name
        n = 0
        while n < (1 if is_one else len(there)) and f"{self._numbered(name, n_layer, n)}.weight" in there:
            n += 1
        return n

    def planned(
        self, table: Mapping[str, str | Source], there: Collection[str], n_layer: int, n: int
    ) -> Iterator[Target]:
        """Yield their targets; ``table`` is that of all layers."""
        entries = {target: self._moved(Source.of(entry)) for target, entry in table.items() if "{i}" in target}
        entries |= {f"blk.{{i}}.{name}": Source.of(entry) for name, entry in self.tensors.items()}
        for p in range(n):
            for target, source in entries.items():
                names = tuple(self._numbered(name, n_layer, p) for name in source.names)
                yield from _module(target, replace(source, names=names), there, str(n_layer + p))

    def _moved(self, source: Source) -> Source:
        if not self.prefix:
            return source
        return replace(source, names=tuple(self.prefix + name.partition("layers.{i}.")[2] for name in source.names))

    @staticmethod
    def _numbered(name: str, n_layer: int, p: int) -> str:
        return name.replace("{i}", str(n_layer + p)).replace("{p}", str(p))


def _module(target: str, source: Source, there: Collection[str], layer: str) -> Iterator[Target]:
    target = target.replace("{i}", layer)
    names = [name.replace("{i}", layer) for name in source.names]
    for suffix in SUFFIXES:
        full = [name + suffix for name in names]
        stacked = any("{e}" in name for name in full)
        if stacked:
            full = [name.replace("{e}", str(e)) for name in full for e in range(_count(name, there))]
        if full and all(name in there for name in full):
            yield Target(target + suffix, tuple(full), source.change, stacked, None, source.packing, source.multiplied)


def _count(name: str, there: Collection[str]) -> int:
    """Return how many experts the checkpoint has for a name with ``{e}``."""
    n = 0
    while name.replace("{e}", str(n)) in there:
        n += 1
    return n


def layers_of(table: Mapping[str, str | Source], there: Collection[str]) -> dict[int, str]:
    """Return the layers that have tensors in the checkpoint, each with the name of one."""
    patterns = {
        re.escape(name).replace(r"\{i\}", r"(\d+)").replace(r"\{e\}", r"\d+")
        for entry in table.values()
        for name in Source.of(entry).names
        if "{i}" in name
    }
    every = re.compile("|".join(f"(?:{pattern})" for pattern in sorted(patterns)) or r"(?!)")
    found: dict[int, str] = {}
    for name in there:
        if match := every.match(name):
            found.setdefault(int(next(group for group in match.groups() if group is not None)), name)
    return found
