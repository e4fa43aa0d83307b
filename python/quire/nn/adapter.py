"""Low-rank adapters (Hu et al. 2021, "LoRA") in GGUF files, which add to the products of a model's matrices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from numbers import Integral
from typing import TYPE_CHECKING, Any

from ..errors import LoadError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import numpy.typing as npt

    from ..files.gguf import GGUFReader

_HALVES = (".lora_a", ".lora_b")
_ALPHA_MAX = 1e6
_DTYPES = ("f32", "f16", "bf16", "q8_0")  # types of an adapter's tensors
# Keys "adapter.*" that are read here or have no effect; others are rejected.
_INVOCATION = "adapter.alora.invocation_tokens"
_KEYS = ("adapter.type", "adapter.lora.alpha", "adapter.lora.task_name", _INVOCATION)
TABLE, HEAD = "token_embd.weight", "output.weight"
# Features beside pairs of products, with what to do where one is not supported.
_MERGE = "merge it into a GGUF file with 'quire lora merge'"
_FEATURES = {
    "use_dora": _MERGE, "modules_to_save": _MERGE, "embeddings": _MERGE, "experts": _MERGE,
    "alora_invocation_tokens": "only requests can choose such an adapter",
}  # fmt: skip
BY_REQUEST = frozenset(_FEATURES) - {"experts"}
BY_MERGE = frozenset(_FEATURES) - {"alora_invocation_tokens"}


@dataclass(frozen=True)
class Adapter:
    """An adapter's file and its scale.

    It adds ``scale * alpha / rank * B (A x)`` to the product of a matrix ``W [n_out, n_in]``, where ``A [rank, n_in]``
    is the tensor ``W.lora_a`` and ``B [n_out, rank]`` is ``W.lora_b``.  If alpha is absent or 0, the factor is
    ``scale``.  For the table of embeddings, ``A [n_vocab, rank]`` has a row for each token.

    ``takes``: what is supported beside pairs of products: "use_dora", "modules_to_save", "embeddings", "experts",
    "alora_invocation_tokens".
    """

    reader: GGUFReader
    scale: float = 1.0
    takes: frozenset[str] = frozenset()

    @property
    def magnitudes(self) -> Mapping[str, npt.NDArray[np.float32]]:
        """The length of each row of ``W + factor * B A``, by matrix (Liu et al. 2024, "DoRA"); empty for LoRA."""
        found: Mapping[str, npt.NDArray[np.float32]] = getattr(self.reader, "magnitudes", {})
        return found

    @property
    def wholes(self) -> Mapping[str, npt.NDArray[np.float32]]:
        """Tensors that replace the model's, by name."""
        found: Mapping[str, npt.NDArray[np.float32]] = getattr(self.reader, "wholes", {})
        return found

    @property
    def experts(self) -> Mapping[str, Mapping[int, tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]]]:
        """B ``[out, rank]`` times the factor and A ``[rank, in]`` of single experts, by tensor and expert."""
        found = getattr(self.reader, "experts", {})
        return {name: {i: (product.left, product.right) for i, product in each.items()} for name, each in found.items()}

    @property
    def invocation(self) -> tuple[int, ...]:
        """The tokens from which on the adapter applies (Greenewald et al. 2025, "aLoRA"); empty: everywhere."""
        metadata = self.reader.metadata
        if _INVOCATION not in metadata:
            return ()
        value = metadata[_INVOCATION]
        tokens: list[Any] = [*value] if isinstance(value, Iterable) and not isinstance(value, str) else [None]
        if not all(isinstance(token, Integral) and 0 <= int(token) < 2**31 for token in tokens):
            raise LoadError(f"[adapter] {_INVOCATION} is {value!r:.40}: expected a list of tokens")
        return tuple(map(int, tokens))

    @property
    def alpha(self) -> float:
        """The numerator of the factor; 0 if the file has none."""
        metadata = self.reader.metadata
        return metadata.number("adapter.lora.alpha") if "adapter.lora.alpha" in metadata else 0.0

    def check(self, arch: str) -> None:
        """Check that the file is an adapter for ``arch``.

        Raises:
            LoadError: It is not, or its tensors do not come in pairs.
            UnsupportedError: It has keys or tensors that Quire does not apply.
        """
        metadata = self.reader.metadata
        for key, expected in (
            ("general.type", "adapter"),
            ("adapter.type", "lora"),
            ("general.architecture", arch),
        ):
            found = metadata.text(key) if key in metadata else "missing"
            if found != expected:
                raise LoadError(f"[adapter] {key} is {found!r}: expected '{expected}'")
        for key in metadata:
            if key.startswith("adapter.") and key not in _KEYS:
                raise UnsupportedError(f"[adapter] unsupported key '{key}'")
        if not isfinite(self.scale):
            raise LoadError(f"[adapter] scale {self.scale} is not finite")
        if abs(self.alpha) > _ALPHA_MAX:
            raise LoadError(f"[adapter] alpha {self.alpha:g} is out of range: expected at most {_ALPHA_MAX:g}")
        names = {info.name: info for info in self.reader.tensors}
        self._check_features()
        if not names and not self.wholes and not self.experts:
            raise LoadError("[adapter] the file has no tensors")
        for name, info in names.items():
            base, dot, half = name.rpartition(".")
            if dot + half not in _HALVES:
                raise UnsupportedError(f"[adapter] unsupported tensor '{name}': expected pairs .lora_a and .lora_b")
            other = base + _HALVES[dot + half == _HALVES[0]]
            if other not in names:
                raise LoadError(f"[adapter] tensor '{other}' is missing, the other half of '{name}'")
            if str(info.dtype) not in _DTYPES:
                expected = ", ".join(_DTYPES)
                raise UnsupportedError(f"[adapter] tensor '{name}' has type {info.dtype}: expected one of {expected}")

    def _check_features(self) -> None:
        there = {
            "use_dora": bool(self.magnitudes), "modules_to_save": bool(self.wholes),
            "embeddings": TABLE + _HALVES[0] in self.reader, "experts": bool(self.experts),
            "alora_invocation_tokens": bool(self.invocation),
        }  # fmt: skip
        for feature, advice in _FEATURES.items():
            if there[feature] and feature not in self.takes:
                raise UnsupportedError(f"[adapter] unsupported {feature} here: {advice}")

    def rank_of(self, name: str, n_in: int, n_out: int) -> int:
        """Return the rank of the pair for the matrix ``name [n_out, n_in]``, or 0 if there is none.

        Raises:
            LoadError: The pair does not fit the matrix.
        """
        if name + _HALVES[0] not in self.reader:
            return 0
        a, b = (list(self.reader.tensor_info(name + half).shape) for half in _HALVES)
        rank = a[0]
        if a != [rank, n_in] or b != [n_out, rank]:
            raise LoadError(
                f"[adapter] lora_a and lora_b of '{name}' have shapes {a} and {b}: expected [rank, {n_in}] and "
                f"[{n_out}, rank]"
            )
        return rank

    def rank_of_table(self, n_vocab: int, dim: int) -> int:
        """Return the rank of the pair for the embeddings ``[n_vocab, dim]``, or 0; LoadError if it does not fit."""
        if TABLE + _HALVES[0] not in self.reader:
            return 0
        a, b = (list(self.reader.tensor_info(TABLE + half).shape) for half in _HALVES)
        rank = b[-1]
        if a != [n_vocab, rank] or b != [dim, rank]:
            raise LoadError(
                f"[adapter] lora_a and lora_b of '{TABLE}' have shapes {a} and {b}: expected [{n_vocab}, rank] and "
                f"[{dim}, rank]"
            )
        return rank

    def factor(self, rank: int) -> float:
        """Return the factor of ``B (A x)``."""
        return self.scale * self.alpha / rank if self.alpha else self.scale

    def finish(self, taken: set[str]) -> None:
        """Raise UnsupportedError if a pair belongs to a tensor that is not among the matrices ``taken``."""
        if "embeddings" in self.takes:
            taken = taken | {TABLE, HEAD}
        left = sorted({info.name.rpartition(".")[0] for info in self.reader.tensors} - taken)
        if left:
            names = ", ".join(left[:5]) + (", ..." if len(left) > 5 else "")
            raise UnsupportedError(f"[adapter] no matrices of the model for adapter pairs ({len(left)}): {names}")
