"""The tensors of a model file, handed out one by one to the layers that declare them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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

    from ..gguf import GGUFReader
    from .adapter import Adapter
    from .layers import Embedding, LayerNorm, Linear, LowRank, RMSNorm

# What elementwise operations take; matrices may be anything that ggml multiplies.
_VECTOR_DTYPES = ("f32",)
_WHOLE = ("i32", "i64")
_NOT_MATRICES = ("i8", "i16", "i32", "i64", "f64", "q8_1", "q8_k")


class Weights:
    """Weights below a prefix.  Every declaration checks name, shape and dtype, and takes its tensor exactly once.

    The names are GGUF's: ``weights.scope("blk.0").linear("attn_q", 64, 64)`` takes ``blk.0.attn_q.weight``.
    """

    _adapters: Sequence[Adapter] = ()
    _adapted: set[str]
    predicts = False

    def __init__(
        self,
        reader: GGUFReader,
        place: Callable[[Tensor], Tensor],
        adapters: Sequence[Adapter] = (),
        *,
        predicts: bool = False,
    ) -> None:
        """``place`` puts a tensor of the file where the model runs.  ``adapters`` add to the linears.

        ``predicts``: layers that predict later tokens are to be used (``nn.Predictor``).
        """
        self._reader = reader
        self.predicts = predicts
        self._adapters = adapters
        self._adapted = set()  # the matrices that adapters could add to
        self._place = place
        self._prefix = ""
        self._taken: dict[str, Weight] = {}
        self._ignored: dict[str, str] = {}  # pattern to reason

    def scope(self, name: str) -> Weights:
        """The weights below ``name``."""
        inner = Weights(self._reader, self._place, self._adapters, predicts=self.predicts)
        inner._prefix = f"{self._prefix}{name}."
        inner._taken, inner._ignored, inner._adapted = self._taken, self._ignored, self._adapted
        return inner

    def blocks(self, n: int) -> Iterator[Weights]:
        """The weights of each of ``n`` layers: ``blk.0``, ``blk.1``, ..."""
        return (self.scope(f"blk.{i}") for i in range(n))

    def has(self, name: str) -> bool:
        """Whether the file holds the tensor (``name`` with its ``.weight`` or ``.bias``)."""
        return self._prefix + name in self._reader

    def n_rows(self, name: str) -> int:
        """The first dimension of a tensor, where nothing but the file tells it."""
        return int(self._reader.tensor_info(self._prefix + name).shape[0])

    def tensor(
        self, name: str, shape: Sequence[int], *, vector: bool = False, stored: Sequence[int] | None = None
    ) -> Weight:
        """Take a tensor of that shape.  ``vector``: it must be f32.  ``stored``: a vector's shape in the file."""
        full = self._prefix + name
        if full in self._taken:
            raise LoadError(f"[weights] tensor '{full}' must be used once but is declared again")
        info = self._reader.tensor_info(full)
        if info.shape != tuple(stored or shape):
            raise LoadError(f"[weights] tensor '{full}' must be {list(stored or shape)} but is {list(info.shape)}")
        if vector and str(info.dtype) not in _VECTOR_DTYPES:
            raise UnsupportedError(f"[weights] tensor '{full}' must be f32 but is {info.dtype}")
        if str(info.dtype) in _NOT_MATRICES:
            raise UnsupportedError(
                f"[weights] tensor '{full}' must be of a type that can be multiplied but is {info.dtype}"
            )
        tensor = self._reader.tensor(full)
        if stored is not None:
            tensor = Tensor.from_numpy(tensor.numpy().reshape(shape))
        weight = Weight(full, self._place(tensor))
        self._taken[full] = weight
        return weight

    def row(self, name: str, n_in: int) -> Weight:
        """Take an f32 vector as a matrix ``[1, n_in]``, of a product with one result."""
        import numpy as np

        full = self._prefix + name
        n_dims = len(self._reader.tensor_info(full).shape)
        vector = self.tensor(name, (n_in,) if n_dims == 1 else (1, n_in), vector=True)
        values = np.array(self._reader.tensor(full).numpy(), np.float32).reshape(1, n_in)
        return self.made(name, values) if n_dims == 1 else vector

    def numbers(self, name: str, shape: Sequence[int]) -> npt.NDArray[np.float32]:
        """Take an f32 tensor that the model's weights follow from."""
        import numpy as np

        self.tensor(name, shape, vector=True)
        return np.array(self._reader.tensor(self._prefix + name).numpy(), np.float32)

    def whole_numbers(self, name: str, n: int) -> npt.NDArray[np.int64]:
        """Take ``n`` whole numbers."""
        import numpy as np

        full = self._prefix + name
        info = self._reader.tensor_info(full)
        if info.shape != (n,) or str(info.dtype) not in _WHOLE:
            raise LoadError(
                f"[weights] tensor '{full}' must be [{n}] of whole numbers but is {list(info.shape)} of {info.dtype}"
            )
        tensor = self._reader.tensor(full)
        self._taken[full] = Weight(full, tensor)
        return np.array(tensor.numpy(), np.int64)

    def dequantized(self, name: str, shape: Sequence[int]) -> npt.NDArray[np.float32 | np.float16]:
        """Take a matrix whose numbers are put in another order: as f32 where the file has that, else as f16."""
        import numpy as np

        from .._native.quant import dequantize

        self.tensor(name, shape)
        tensor = self._reader.tensor(self._prefix + name)
        values = np.asarray(dequantize(tensor), np.float32).reshape(shape)
        return values if str(tensor.dtype) == "f32" else values.astype(np.float16)

    def made(self, name: str, values: npt.NDArray[np.float32 | np.float16]) -> Weight:
        """A weight that follows from the file's keys, or from its other weights."""
        import numpy as np

        from .._native.core import Tensor

        return Weight(self._prefix + name, self._place(Tensor.from_numpy(np.ascontiguousarray(values))))

    def ignore(self, pattern: str, reason: str) -> None:
        """Declare tensors below this prefix that files hold and the model does not use; ``*`` stands for any text."""
        self._ignored[self._prefix + pattern] = reason

    def linear(self, name: str, n_in: int, n_out: int, *, bias: bool | None = False) -> Linear:
        """``name.weight [n_out, n_in]`` and, with ``bias``, ``name.bias [n_out]``; None: where the file has one."""
        from .layers import Linear

        if bias is None:
            bias = self.has(f"{name}.bias")
        weight = self.tensor(f"{name}.weight", (n_out, n_in))
        bias_weight = self.tensor(f"{name}.bias", (n_out,), vector=True) if bias else None
        return Linear(weight, bias_weight, self._scale(name), self._added(f"{name}.weight", n_in, n_out))

    def _added(self, name: str, n_in: int, n_out: int) -> tuple[LowRank, ...]:
        """What the adapters add to a product, in their order."""
        from .layers import LowRank

        if not self._adapters:
            return ()
        full, added = self._prefix + name, []
        self._adapted.add(full)
        for i, adapter in enumerate(self._adapters):
            if rank := adapter.rank_of(full, n_in, n_out):
                a, b = (
                    Weight(f"{full}.lora_{half}.{i}", self._place(adapter.reader.tensor(f"{full}.lora_{half}")))
                    for half in "ab"
                )
                added.append(LowRank(a, b, adapter.factor(rank)))
        return tuple(added)

    def _scale(self, name: str) -> float:
        """What a product is multiplied by: one number beside the matrix, in files with NVFP4."""
        full = f"{self._prefix}{name}.scale"
        if full not in self._reader or self._reader.tensor_info(full).shape != (1,):
            return 1.0
        self.tensor(f"{name}.scale", (1,), vector=True)
        scale = float(self._reader.tensor(full).numpy()[0])
        if not isfinite(scale) or scale == 0:
            raise LoadError(f"[weights] tensor '{full}' must hold a finite number other than 0 but has {scale}")
        return scale

    def linears(self, name: str, n_in: int, n_outs: Sequence[int], *, bias: bool | None = False) -> list[Linear]:
        """Several products in one tensor, one below the other, each a part of it: fused q, k and v, gate and up."""
        whole = self.linear(name, n_in, sum(n_outs), bias=bias)
        ends = list(accumulate(n_outs))
        return [whole.part(end - n, end) for n, end in zip(n_outs, ends, strict=True)]

    def gates_and_ups(self, n_expert: int, ffn_dim: int, dim: int) -> tuple[Weight, Weight]:
        """Of experts, each ``[n_expert, ffn_dim, dim]``: two tensors, or one with an expert's gate above its up."""
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

    def layer_norm(self, name: str, dim: int, eps: float, *, bias: bool | None = None) -> LayerNorm:
        """``name.weight [dim]`` of a layer norm and ``name.bias [dim]``; ``bias`` None: where the file has one."""
        from .layers import LayerNorm

        if bias is None:
            bias = self.has(f"{name}.bias")
        return LayerNorm(
            self.tensor(f"{name}.weight", (dim,), vector=True),
            self.tensor(f"{name}.bias", (dim,), vector=True) if bias else None,
            eps,
        )

    def norm(self, name: str, dim: int, eps: float) -> RMSNorm:
        """``name.weight [dim]`` of a root-mean-square norm."""
        from .layers import RMSNorm

        return RMSNorm(self.tensor(f"{name}.weight", (dim,), vector=True), eps)

    def embedding(self, name: str, n_vocab: int, dim: int) -> Embedding:
        """``name.weight [n_vocab, dim]``."""
        from .layers import Embedding

        return Embedding(self.tensor(f"{name}.weight", (n_vocab, dim)))

    def finish(self) -> None:
        """LoadError when the file holds tensors that no layer declared and that are not ignored by name.

        UnsupportedError when an adapter has a pair that no linear took.
        """
        # What inputs are scaled by only where they are rounded to NVFP4 as well, which they are not here.
        self._ignored["*.input_scale"] = "inputs are not rounded to NVFP4"
        left = [info.name for info in self._reader.tensors if info.name not in self._taken]
        left = [name for name in left if not any(fnmatchcase(name, pattern) for pattern in self._ignored)]
        scales = [name for name in left if name.endswith(".scale")]
        if scales:
            raise UnsupportedError(f"[weights] tensor '{scales[0]}' must not be there: its product cannot be scaled")
        if left:
            names = ", ".join(left[:5]) + (", ..." if len(left) > 5 else "")
            raise LoadError(f"[weights] every tensor of the file must be used but {len(left)} are not: {names}")
        for adapter in self._adapters:
            adapter.finish(self._adapted)
