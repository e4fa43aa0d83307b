"""Read an adapter as pairs of matrices in float32, in the order of the model's file."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ..._native.core import Tensor
from ..._native.quant import dequantize
from ...errors import LoadError
from ...files.gguf import GGUFReader
from .peft_reader import opened_adapters

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    _Array: TypeAlias = npt.NDArray[np.float32]

__all__ = ["AdapterPairs", "adapter_pairs"]


@dataclass(frozen=True)
class AdapterPairs:
    """Pairs (matrix, A ``[rank, in]``, B ``[out, rank]``, factor), and a digest of all of it."""

    pairs: Sequence[tuple[str, _Array, _Array, float]]
    identity: bytes

    @property
    def tensors(self) -> list[tuple[str, Tensor, Tensor, float]]:
        """The pairs as an executor takes them."""
        import numpy as np

        return [
            (name, Tensor.from_numpy(np.ascontiguousarray(a)), Tensor.from_numpy(np.ascontiguousarray(b)), factor)
            for name, a, b, factor in self.pairs
        ]


def adapter_pairs(path: str, base: GGUFReader, products: Mapping[str, float]) -> AdapterPairs:
    """Read an adapter for the model of ``base``.

    Args:
        path: A GGUF file or a PEFT folder.
        base: The model's file; only keys and shapes are read.
        products: The matrices that adapters can change, with the factor that the model multiplies their products by.

    Raises:
        LoadError: The adapter is malformed or does not fit the model.
        UnsupportedError: It has something that Quire does not compute.
    """
    import numpy as np

    found = []
    with opened_adapters([(path, 1.0)], base) as (adapter,):
        adapter.check(base.metadata.text("general.architecture"))
        for name, factor in products.items():
            n_out, n_in = (int(n) for n in base.tensor_info(name).shape)
            if not (rank := adapter.rank_of(name, n_in, n_out)):
                continue
            a, b = (
                np.asarray(dequantize(adapter.reader.tensor(f"{name}.lora_{half}")), np.float32).reshape(shape)
                for half, shape in (("a", (rank, n_in)), ("b", (n_out, rank)))
            )
            if not (np.isfinite(a).all() and np.isfinite(b).all()):
                raise LoadError(f"[adapter] the pair of '{name}' has a number that is not finite")
            found.append((name, a, b, adapter.factor(rank) / factor))
        adapter.finish({*products})
    digest = hashlib.blake2b(digest_size=32)
    for name, a, b, factor in found:
        digest.update(struct.pack("<QQQd", len(name), *b.shape, factor) + name.encode())
        digest.update(a.tobytes())
        digest.update(b.tobytes())
    return AdapterPairs(found, digest.digest())
