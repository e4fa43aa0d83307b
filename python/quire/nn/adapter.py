"""Low-rank adapters (Hu et al. 2021, "LoRA") in GGUF files: what they add to the products of a model's matrices."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

from ..errors import LoadError, UnsupportedError

if TYPE_CHECKING:
    from ..gguf import GGUFReader

_HALVES = (".lora_a", ".lora_b")
_DTYPES = ("f32", "f16", "bf16", "q8_0")  # what adapters are written in
# Of the keys "adapter.*", those that change nothing or that are read here.
_KEYS = ("adapter.type", "adapter.lora.alpha", "adapter.lora.task_name")


@dataclass(frozen=True)
class Adapter:
    """An adapter's file, and what its products are multiplied by.

    To the product of a matrix ``W [n_out, n_in]`` it adds ``scale * alpha / rank * B (A x)``, where ``A [rank, n_in]``
    is the tensor ``W.lora_a`` and ``B [n_out, rank]`` is ``W.lora_b``.  Without alpha, or where it is 0, the factor is
    ``scale``.
    """

    reader: GGUFReader
    scale: float = 1.0

    @property
    def alpha(self) -> float:
        """The numerator of the factor; 0: there is none."""
        metadata = self.reader.metadata
        return metadata.number("adapter.lora.alpha") if "adapter.lora.alpha" in metadata else 0.0

    def check(self, arch: str) -> None:
        """LoadError or UnsupportedError for a file that is no adapter of that architecture, or that asks for more."""
        metadata = self.reader.metadata
        for key, expected in (
            ("general.type", "adapter"),
            ("adapter.type", "lora"),
            ("general.architecture", arch),
        ):
            found = metadata.text(key) if key in metadata else "missing"
            if found != expected:
                raise LoadError(f"[adapter] {key} must be '{expected}' but is {found!r}")
        for key in metadata:
            if key.startswith("adapter.") and key not in _KEYS:
                raise UnsupportedError(f"[adapter] the key '{key}' must not be there: it is not supported")
        if not isfinite(self.scale):
            raise LoadError(f"[adapter] the scale must be finite but is {self.scale}")
        names = {info.name: info for info in self.reader.tensors}
        if not names:
            raise LoadError("[adapter] the file must hold tensors but has none")
        for name, info in names.items():
            base, dot, half = name.rpartition(".")
            if dot + half not in _HALVES:
                raise UnsupportedError(
                    f"[adapter] tensor '{name}' must be one of a pair .lora_a and .lora_b but is not"
                )
            other = base + _HALVES[dot + half == _HALVES[0]]
            if other not in names:
                raise LoadError(f"[adapter] tensor '{name}' must have its other half but '{other}' is missing")
            if str(info.dtype) not in _DTYPES:
                raise UnsupportedError(f"[adapter] tensor '{name}' must be {', '.join(_DTYPES)} but is {info.dtype}")

    def rank_of(self, name: str, n_in: int, n_out: int) -> int:
        """Rank of the pair for the matrix ``name [n_out, n_in]``; 0: there is none.  LoadError for other shapes."""
        if name + _HALVES[0] not in self.reader:
            return 0
        a, b = (list(self.reader.tensor_info(name + half).shape) for half in _HALVES)
        rank = a[0]
        if a != [rank, n_in] or b != [n_out, rank]:
            raise LoadError(
                f"[adapter] '{name}' must have lora_a [rank, {n_in}] and lora_b [{n_out}, rank] but has {a} and {b}"
            )
        return rank

    def factor(self, rank: int) -> float:
        """What ``B (A x)`` is multiplied by."""
        return self.scale * self.alpha / rank if self.alpha else self.scale

    def finish(self, taken: set[str]) -> None:
        """UnsupportedError when a pair is of a tensor that is not among the matrices ``taken``."""
        left = sorted({info.name.rpartition(".")[0] for info in self.reader.tensors} - taken)
        if left:
            names = ", ".join(left[:5]) + (", ..." if len(left) > 5 else "")
            raise UnsupportedError(
                f"[adapter] every pair must be of a matrix that the model multiplies by itself (no embedding, norm or"
                f" expert) but {len(left)} are not: {names}"
            )
