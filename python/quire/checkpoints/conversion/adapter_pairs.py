"""Read an adapter as pairs of matrices in float32, in the order of the model's file."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from ..._native.core import Tensor
from ..._native.graph import AdapterPair
from ..._native.quant import dequantize
from ...errors import LoadError, UnsupportedError
from ...files.gguf import GGUFReader
from ...nn.adapter import BY_REQUEST, HEAD, TABLE
from .peft_reader import opened_adapters

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ...nn import Adapter

    _Array: TypeAlias = npt.NDArray[np.float32]

__all__ = ["AdapterPairs", "Pair", "adapter_pairs"]

_SLAB_ROWS = 4096
_WEIGHT, _BIAS = ".weight", ".bias"


@dataclass(frozen=True, eq=False)
class Pair:
    """An adapter's change of one matrix.

    ``a [rank, in]`` and ``b [out, rank]``; without ``a``, ``b`` is the difference of the whole matrix.  For lookups
    (``is_table``): ``a [rows, rank]``, ``b [columns, rank]``.  ``bias``: the difference of the bias.  ``lengths
    [4, out]``: for DoRA, the lengths of the rows, and the constant, linear and square terms of their squared norms by
    the adapter's scale.
    """

    name: str
    a: _Array | None
    b: _Array
    factor: float
    is_table: bool = False
    bias: _Array | None = None
    lengths: _Array | None = None

    @property
    def rank(self) -> int:
        """0 for a whole matrix."""
        return 0 if self.a is None else int(self.b.shape[1])

    @property
    def arrays(self) -> list[_Array | None]:
        """Its numbers, in a fixed order."""
        return [self.a, self.b, self.bias, self.lengths]


@dataclass(frozen=True)
class AdapterPairs:
    """The pairs of an adapter, a digest of all of it, and the tokens from which on it applies (none: everywhere)."""

    pairs: Sequence[Pair]
    identity: bytes
    invocation: tuple[int, ...]

    @property
    def tensors(self) -> list[AdapterPair]:
        """The pairs as an executor takes them."""
        return [
            AdapterPair(
                each.name, _tensor(each.a), Tensor.from_numpy(each.b), each.factor, is_table=each.is_table,
                bias=_tensor(each.bias), lengths=_tensor(each.lengths),
            )
            for each in self.pairs
        ]  # fmt: skip


def _tensor(values: _Array | None) -> Tensor | None:
    return None if values is None else Tensor.from_numpy(values)


def adapter_pairs(path: str, base: GGUFReader, products: Mapping[str, float]) -> AdapterPairs:
    """Read an adapter for the model of ``base``.

    Args:
        path: A GGUF file or a PEFT folder.
        base: The model's file; tensors are read for DoRA and for whole modules.
        products: The matrices that adapters can change, with the factor that the model multiplies their products by.

    Raises:
        LoadError: The adapter is malformed or does not fit the model.
        UnsupportedError: It has something that Quire does not compute.
    """
    import numpy as np

    with opened_adapters([(path, 1.0)], base, takes=BY_REQUEST) as (adapter,):
        adapter.check(base.metadata.text("general.architecture"))
        found = [*_low_rank(adapter, base, products)]
        found = _with_wholes(found, adapter.wholes, base, products)
        adapter.finish({*products})
        invocation = adapter.invocation
    digest = hashlib.blake2b(digest_size=32)
    checked = []
    for each in found:
        arrays = [None if one is None else np.ascontiguousarray(one, np.float32) for one in each.arrays]
        if not all(one is None or np.isfinite(one).all() for one in arrays):
            raise LoadError(f"[adapter] the pair of '{each.name}' has a number that is not finite")
        a, b, bias, lengths = arrays
        assert b is not None
        checked.append(replace(each, a=a, b=b, bias=bias, lengths=lengths))
        digest.update(struct.pack("<Q?QQd", len(each.name), each.is_table, *b.shape, each.factor) + each.name.encode())
        for one in arrays:
            if one is not None:
                digest.update(one.tobytes())
    digest.update(np.asarray(invocation, np.int64).tobytes())
    return AdapterPairs(checked, digest.digest(), invocation)


def _low_rank(adapter: Adapter, base: GGUFReader, products: Mapping[str, float]) -> Iterator[Pair]:
    def halves(name: str, *shapes: tuple[int, int]) -> Iterator[_Array]:
        import numpy as np

        for half, shape in zip("ab", shapes, strict=True):
            yield np.asarray(dequantize(adapter.reader.tensor(f"{name}.lora_{half}")), np.float32).reshape(shape)

    for name, scale in (products if _has_head(base) else {**products, HEAD: 1.0}).items():
        own = _own(name, base)
        n_out, n_in = (int(n) for n in base.tensor_info(own).shape)
        if not (rank := adapter.rank_of(name, n_in, n_out)):
            continue
        a, b = halves(name, (rank, n_in), (n_out, rank))
        lengths = None
        if (given := adapter.magnitudes.get(name)) is not None:
            lengths = _lengths(name, given, scale * _values(own, base), adapter.factor(rank) * b, a)
        yield Pair(own, a, b, adapter.factor(rank) / scale, lengths=lengths)
    if TABLE in base:
        n_vocab, dim = (int(n) for n in base.tensor_info(TABLE).shape)
        if rank := adapter.rank_of_table(n_vocab, dim):
            a, b = halves(TABLE, (n_vocab, rank), (dim, rank))
            yield Pair(TABLE, a, b, adapter.factor(rank), is_table=True)


def _has_head(base: GGUFReader) -> bool:
    return HEAD in base or TABLE not in base


def _own(name: str, base: GGUFReader) -> str:
    """Return the matrix of the model's file: a head may share that of the embeddings."""
    return TABLE if name == HEAD and not _has_head(base) else name


def _values(name: str, base: GGUFReader) -> _Array:
    import numpy as np

    return np.asarray(dequantize(base.tensor(name)), np.float32)


def _lengths(name: str, lengths: _Array, matrix: _Array, left: _Array, right: _Array) -> _Array:
    """Return ``Pair.lengths`` for ``matrix + scale * left @ right``."""
    import numpy as np

    found = np.empty((4, len(lengths)), np.float32)
    found[0] = lengths
    for begin in range(0, len(matrix), _SLAB_ROWS):
        rows = slice(begin, begin + _SLAB_ROWS)
        own, added = matrix[rows], left[rows] @ right
        for i, (one, other) in enumerate(((own, own), (own, added), (added, added)), 1):
            found[i, rows] = (2 if i == 2 else 1) * np.einsum("ij,ij->i", one, other)
    if not (found[1:].sum(0) > 0).all():
        raise LoadError(f"[adapter] a row of '{name}' has the length 0: DoRA is undefined")
    return found


def _with_wholes(
    found: Sequence[Pair], wholes: Mapping[str, _Array], base: GGUFReader, products: Mapping[str, float]
) -> list[Pair]:
    """Add the differences of whole modules."""
    added = {(each.name, each.is_table): each for each in found}
    for name, values in wholes.items():
        if name == TABLE:
            _add(added, Pair(TABLE, None, values - _values(TABLE, base), 1.0, is_table=True))
        elif name in products or (name == HEAD and not _has_head(base)):
            scale, own = products.get(name, 1.0), _own(name, base)
            _add(added, Pair(own, None, values / scale - _values(own, base), 1.0))
    for name, values in wholes.items():
        matrix = name.removesuffix(_BIAS) + _WEIGHT
        if name.endswith(_BIAS) and (matrix, False) in added:
            added[matrix, False] = replace(added[matrix, False], bias=values - _values(name, base))
        elif name != TABLE and name not in products and (name != HEAD or _has_head(base)):
            raise UnsupportedError(
                f"[adapter] unsupported modules_to_save for requests: '{name}': merge it into a GGUF file with"
                " 'quire lora merge'"
            )
    return [*added.values()]


def _add(pairs: dict[tuple[str, bool], Pair], pair: Pair) -> None:
    if pairs.setdefault((pair.name, pair.is_table), pair) is not pair:
        raise UnsupportedError(f"[adapter] '{pair.name}' is both adapted and replaced as a whole")
