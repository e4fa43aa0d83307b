"""Hand out the tensors of a model file to the layers that declare them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import accumulate
from math import isfinite
from typing import TYPE_CHECKING

from .._native.core import Tensor
from .._native.graph import Weight
from ..errors import LoadError, UnsupportedError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .._native.parallel import RankGroup
    from ..files.gguf import GGUFReader
    from .adapter import Adapter
    from .layers import Embedding, LayerNorm, Linear, LowRank, RMSNorm

_VECTOR_DTYPES = ("f32",)  # for elementwise operations; matrices may have any type that ggml multiplies
_WHOLE = ("i32", "i64")
# Products of inputs that ranks split, which are summed over them.
SUMMED = ("attn_output", "ffn_down")
_NOT_MATRICES = ("i8", "i16", "i32", "i64", "f64", "q8_1", "q8_k")


def without_ones(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape without leading dimensions of size 1."""
    first = next((i for i, n in enumerate(shape) if n != 1), len(shape))
    return tuple(shape[first:])


class Weights:
    """Weights below a prefix.  Each declaration checks name, shape and dtype; a tensor can be taken only once.

    Names are GGUF's: ``weights.scope("blk.0").linear("attn_q", 64, 64)`` takes ``blk.0.attn_q.weight``.
    """

    _adapters: Sequence[Adapter] = ()
    _products: dict[str, float]
    predicts = False
    group: RankGroup | None = None

    def __init__(
        self,
        reader: GGUFReader,
        place: Callable[[Tensor], Tensor],
        adapters: Sequence[Adapter] = (),
        *,
        predicts: bool = False,
        group: RankGroup | None = None,
    ) -> None:
        """Read weights from ``reader``.

        Args:
            reader: The model file.
            place: Moves a tensor of the file to where the model runs.
            adapters: Low-rank adapters whose products are added to those of ``linear``.
            predicts: Use layers that predict later tokens (``nn.Predictor``).
            group: The ranks that split the model, if ``reader`` has a share of it (``nn.shares``).
        """
        self._reader = reader
        self.group = group
        self.predicts = predicts
        self._adapters = adapters
        self._products = {}  # matrices that adapters can change, with the factor of their products
        self._place = place
        self._prefix = ""
        self._taken: dict[str, Weight] = {}
        self._ignored: dict[str, str] = {}  # pattern to reason

    @property
    def products(self) -> Mapping[str, float]:
        """The matrices of ``linear``, which adapters can change, with the factor of their products."""
        return self._products

    def scope(self, name: str) -> Weights:
        """Return the weights below ``name``."""
        inner = Weights(self._reader, self._place, self._adapters, predicts=self.predicts, group=self.group)
        inner._prefix = f"{self._prefix}{name}."
        inner._taken, inner._ignored, inner._products = self._taken, self._ignored, self._products
        return inner

    def blocks(self, n: int) -> Iterator[Weights]:
        """Iterate over the weights of ``n`` layers: ``blk.0``, ``blk.1``, ..."""
        return (self.scope(f"blk.{i}") for i in range(n))

    def has(self, name: str) -> bool:
        """Return whether the file holds the tensor; ``name`` includes ``.weight`` or ``.bias``."""
        return self._prefix + name in self._reader

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor in the file."""
        return tuple(self._reader.tensor_info(self._prefix + name).shape)

    def n_rows(self, name: str) -> int:
        """Return the first dimension of a tensor, for sizes that no key holds."""
        return int(self._reader.tensor_info(self._prefix + name).shape[0])

    def n_columns(self, name: str) -> int:
        """Return the second dimension of a tensor; 0 if it has only one."""
        shape = self._reader.tensor_info(self._prefix + name).shape
        return int(shape[1]) if len(shape) > 1 else 0

    def tensor(
        self, name: str, shape: Sequence[int], *, vector: bool = False, stored: Sequence[int] | None = None
    ) -> Weight:
        """Take a tensor.

        Args:
            name: Its name, with ``.weight`` or ``.bias``.
            shape: Its expected shape.
            vector: Require f32, for elementwise operations.
            stored: A vector's shape in the file, if it differs from ``shape``.

        Raises:
            LoadError: The tensor is missing, has another shape or was already taken.
            UnsupportedError: It has a type that operations cannot read.
        """
        full = self._prefix + name
        if full in self._taken:
            raise LoadError(f"[weights] tensor '{full}' is declared twice")
        info, expected = self._reader.tensor_info(full), tuple(stored or shape)
        if info.shape != expected:
            # Dimensions of size 1 in front do not count in GGUF; ERNIE 4.5's files have one in a vector.
            if not vector or without_ones(info.shape) != without_ones(expected):
                raise LoadError(f"[weights] tensor '{full}' has shape {list(info.shape)}: expected {list(expected)}")
            stored = info.shape
        if vector and str(info.dtype) not in _VECTOR_DTYPES:
            raise UnsupportedError(f"[weights] tensor '{full}' has type {info.dtype}: expected f32")
        if str(info.dtype) in _NOT_MATRICES:
            raise UnsupportedError(f"[weights] tensor '{full}' has type {info.dtype}, which cannot be multiplied")
        tensor = self._reader.tensor(full)
        if stored is not None:
            tensor = Tensor.from_numpy(tensor.numpy().reshape(shape))
        weight = Weight(full, self._place(tensor))
        self._taken[full] = weight
        return weight

    def row(self, name: str, n_in: int) -> Weight:
        """Take an f32 vector as a matrix ``[1, n_in]``, for a product with one result."""
        import numpy as np

        full = self._prefix + name
        n_dims = len(self._reader.tensor_info(full).shape)
        vector = self.tensor(name, (n_in,) if n_dims == 1 else (1, n_in), vector=True)
        values = np.array(self._reader.tensor(full).numpy(), np.float32).reshape(1, n_in)
        return self.computed(name, values) if n_dims == 1 else vector

    def numbers(self, name: str, shape: Sequence[int]) -> npt.NDArray[np.float32]:
        """Take an f32 tensor and return its values, to compute weights from them."""
        import numpy as np

        self.tensor(name, shape, vector=True)
        return np.array(self._reader.tensor(self._prefix + name).numpy(), np.float32)

    def whole_numbers(self, name: str, shape: Sequence[int]) -> npt.NDArray[np.int64]:
        """Take a tensor of integers and return its values."""
        import numpy as np

        full = self._prefix + name
        info = self._reader.tensor_info(full)
        if info.shape != tuple(shape) or str(info.dtype) not in _WHOLE:
            raise LoadError(
                f"[weights] tensor '{full}' is {list(info.shape)} of {info.dtype}: expected {list(shape)} of i32 or i64"
            )
        tensor = self._reader.tensor(full)
        self._taken[full] = Weight(full, tensor)
        return np.array(tensor.numpy(), np.int64)

    def grouped(self, name: str, shape: tuple[int, int, int]) -> Weight:
        """Take a matrix of each group, ``[n, n_out, n_in]``, which files store below each other or as they are."""
        n, n_out, n_in = shape
        if self.shape(name) == shape:
            return self.tensor(name, shape)
        whole = self.tensor(name, (n * n_out, n_in))
        stored = self._reader.tensor(whole.name)
        tensor = Tensor.empty(stored.dtype, shape)
        tensor.numpy().view("u1").reshape(-1)[:] = stored.numpy().view("u1").reshape(-1)
        return Weight(whole.name, self._place(tensor))

    def dequantized(self, name: str, shape: Sequence[int]) -> npt.NDArray[np.float32 | np.float16]:
        """Take a matrix and return its values, to reorder them: f32 if the file stores f32, else f16."""
        import numpy as np

        from .._native.quant import dequantize

        self.tensor(name, shape)
        tensor = self._reader.tensor(self._prefix + name)
        values = np.asarray(dequantize(tensor), np.float32).reshape(shape)
        return values if str(tensor.dtype) == "f32" else values.astype(np.float16)

    def values(self, name: str) -> npt.NDArray[np.float32]:
        """Return the values of a tensor that another call takes."""
        import numpy as np

        from .._native.quant import dequantize

        full = self._prefix + name
        shape = self._reader.tensor_info(full).shape
        return np.asarray(dequantize(self._reader.tensor(full)), np.float32).reshape(shape)

    def computed(self, name: str, values: npt.NDArray[np.float32 | np.float16]) -> Weight:
        """Return a weight computed from the file's keys or from other weights."""
        import numpy as np

        from .._native.core import Tensor

        return Weight(self._prefix + name, self._place(Tensor.from_numpy(np.ascontiguousarray(values))))

    def ignore(self, pattern: str, reason: str) -> None:
        """Declare tensors below this prefix that the model does not use; ``*`` matches any text."""
        self._ignored[self._prefix + pattern] = reason

    def linear(self, name: str, n_in: int, n_out: int, *, bias: bool | None = False) -> Linear:
        """Take ``name.weight [n_out, n_in]`` and perhaps ``name.bias [n_out]``.

        ``bias``: whether there is one; None: if the file has it.
        """
        from .layers import Linear

        if bias is None:
            bias = self.has(f"{name}.bias")
        weight = self.tensor(f"{name}.weight", (n_out, n_in))
        bias_weight = self.tensor(f"{name}.bias", (n_out,), vector=True) if bias else None
        scale = self._products[weight.name] = self._scale(name)
        summed = self.group if self.group is not None and name in SUMMED else None
        if summed is not None and summed.part > 0:
            bias_weight = None  # the first one adds it
        return Linear(weight, bias_weight, scale, self._added(f"{name}.weight", n_in, n_out), summed)

    @property
    def n_parts(self) -> int:
        """Among how many ranks heads are split."""
        return 1 if self.group is None else self.group.n_split

    def experts_here(self, n_expert: int) -> tuple[int, int] | None:
        """Return the first of the experts that this rank has, and their number; None: it has all of them."""
        if self.group is None:
            return None
        from .shares import experts_of_part

        return experts_of_part(n_expert, self.group.part, self.group.n_split)

    def _added(self, name: str, n_in: int, n_out: int) -> tuple[LowRank, ...]:
        """Return the low-rank products that the adapters add to a matrix, in the adapters' order."""
        from .layers import LowRank

        if not self._adapters:
            return ()
        full, added = self._prefix + name, []
        for i, adapter in enumerate(self._adapters):
            if rank := adapter.rank_of(full, n_in, n_out):
                a, b = (
                    Weight(f"{full}.lora_{half}.{i}", self._place(adapter.reader.tensor(f"{full}.lora_{half}")))
                    for half in "ab"
                )
                added.append(LowRank(a, b, adapter.factor(rank)))
        return tuple(added)

    def _scale(self, name: str) -> float:
        """Return the factor of a product: one number beside the matrix, in files with NVFP4; else 1."""
        full = f"{self._prefix}{name}.scale"
        if full not in self._reader or self._reader.tensor_info(full).shape != (1,):
            return 1.0
        self.tensor(f"{name}.scale", (1,), vector=True)
        scale = float(self._reader.tensor(full).numpy()[0])
        if not isfinite(scale) or scale == 0:
            raise LoadError(f"[weights] tensor '{full}' holds {scale}: expected a finite number other than 0")
        return scale

    def linears(self, name: str, n_in: int, n_outs: Sequence[int], *, bias: bool | None = False) -> list[Linear]:
        """Take a tensor that stacks the matrices of several products, such as fused q, k and v, or gate and up."""
        whole = self.linear(name, n_in, sum(n_outs), bias=bias)
        ends = list(accumulate(n_outs))
        return [whole.part(end - n, end) for n, end in zip(n_outs, ends, strict=True)]

    def halves(self, name: str, n_in: int, n_out: int, n_head: int, *, n_plain: int = 0) -> Linear:
        """Take ``name.weight`` and its bias, if any, whose rows in each head are stored as ``interleaved`` orders them.

        The result has them in halves, as RoPE by sections rotates them.  The last ``n_plain`` rows stay as they are.
        """
        from .layers import Linear

        n = n_out - n_plain

        def reorder(rows: npt.NDArray[np.generic], into: npt.NDArray[np.generic]) -> None:
            rest = rows.shape[1:]
            into[:] = rows
            into[:n].reshape(n_head, 2, -1, *rest)[:] = rows[:n].reshape(n_head, -1, 2, *rest).swapaxes(1, 2)

        full = self.tensor(f"{name}.weight", (n_out, n_in)).name
        stored = self._reader.tensor(full)
        tensor = Tensor.empty(stored.dtype, (n_out, n_in))
        reorder(stored.numpy().view("u1").reshape(n_out, -1), tensor.numpy().view("u1").reshape(n_out, -1))
        bias = None
        if self.has(f"{name}.bias"):
            pairs = self.numbers(f"{name}.bias", (n_out,))
            halves = pairs.copy()
            reorder(pairs, halves)
            bias = self.computed(f"{name}.bias.halves", halves)
        return Linear(Weight(full, self._place(tensor)), bias)

    def gates_and_ups(self, n_expert: int, ffn_dim: int, dim: int) -> tuple[Weight, Weight]:
        """Take the experts' gate and up matrices, each ``[n_expert, ffn_dim, dim]``.

        Files store them as two tensors, or as one with each expert's gate above its up matrix.
        """
        shape = (n_expert, ffn_dim, dim)
        if not self.has("ffn_gate_up_exps.weight"):
            return self.tensor("ffn_gate_exps.weight", shape), self.tensor("ffn_up_exps.weight", shape)
        name = "ffn_gate_up_exps.weight"
        self.tensor(name, (n_expert, 2 * ffn_dim, dim))
        both = self._reader.tensor(self._prefix + name)
        stored = both.numpy().view("u1").reshape(n_expert, 2, -1)
        halves = []
        for i, half in enumerate(("gate", "up")):
            tensor = Tensor.empty(both.dtype, shape)
            tensor.numpy().view("u1").reshape(n_expert, -1)[:] = stored[:, i]
            halves.append(Weight(f"{self._prefix}ffn_{half}_exps.weight", self._place(tensor)))
        return halves[0], halves[1]

    def repeated(self, name: str, shape: tuple[int, int, int], n: int) -> Weight:
        """Take matrices ``[m, rows, columns]`` and return each ``n`` times, in a row."""
        self.tensor(name, shape)
        stored = self._reader.tensor(self._prefix + name)
        out = Tensor.empty(stored.dtype, (shape[0] * n, *shape[1:]))
        out.numpy().view("u1").reshape(shape[0], n, -1)[:] = stored.numpy().view("u1").reshape(shape[0], 1, -1)
        return Weight(self._prefix + name, self._place(out))

    def layer_norm(self, name: str, dim: int, eps: float, *, bias: bool | None = None) -> LayerNorm:
        """Take ``name.weight [dim]`` of a layer norm and perhaps ``name.bias [dim]``; ``bias`` as in ``linear``."""
        from .layers import LayerNorm

        if bias is None:
            bias = self.has(f"{name}.bias")
        return LayerNorm(
            self.tensor(f"{name}.weight", (dim,), vector=True),
            self.tensor(f"{name}.bias", (dim,), vector=True) if bias else None,
            eps,
        )

    def norm(self, name: str, dim: int, eps: float) -> RMSNorm:
        """Take ``name.weight [dim]`` of a root-mean-square norm."""
        from .layers import RMSNorm

        return RMSNorm(self.tensor(f"{name}.weight", (dim,), vector=True), eps)

    def embedding(self, name: str, n_vocab: int, dim: int) -> Embedding:
        """Take ``name.weight [n_vocab, dim]``."""
        from .layers import Embedding

        return Embedding(self.tensor(f"{name}.weight", (n_vocab, dim)))

    def finish(self) -> None:
        """Check that everything was used.

        Raises:
            LoadError: The file has tensors that no layer declared and that are not ignored by name.
            UnsupportedError: An adapter has a pair that no ``linear`` took.
        """
        # These scales apply only if inputs are rounded to NVFP4 too, which Quire does not do.
        self._ignored["*.input_scale"] = "inputs are not rounded to NVFP4"
        left = [info.name for info in self._reader.tensors if info.name not in self._taken]
        left = [name for name in left if not any(fnmatchcase(name, pattern) for pattern in self._ignored)]
        scales = [name for name in left if name.endswith(".scale")]
        if scales:
            raise UnsupportedError(f"[weights] unsupported tensor '{scales[0]}': this product cannot be scaled")
        if left:
            names = ", ".join(left[:5]) + (", ..." if len(left) > 5 else "")
            raise LoadError(f"[weights] unused tensors in the file ({len(left)}): {names}")
        for adapter in self._adapters:
            adapter.finish({*self._products})
