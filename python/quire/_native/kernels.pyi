"""The CPU kernels.  Those on NumPy arrays are for tests and benchmarks; the engine calls the same on its own memory."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt

from .core import Tensor

def supported_isas() -> list[str]:
    """Those that this machine runs, the best last: of ``portable``, ``neon``, ``neoni8mm``, ``avx2``, ``avx2vnni``,
    ``avx512``, ``avx512vnni``, ``avx512bf16``, ``avx512amx``.

    ``avx2vnni`` is AVX2 with AVX-VNNI, which some machines with AVX-512 lack; ``avx512bf16`` is ``avx512vnni``
    with products of BF16, for weights of which it rounds activations to BF16, and ``avx512amx`` is ``avx512bf16`` with
    tiles of bytes.
    """

def emulated_isas() -> list[str]:
    """Those that ``KernelSet`` takes, too, and that compute in software what this machine may lack, for tests.

    ``avx512amx-emulated``, on machines with AVX-512 VNNI and in builds with ``QUIRE_EMULATED_TILES``.
    """

def poisons() -> bool:
    """Whether memory that nobody may read yet is not a number: ``QUIRE_POISON=1`` in the environment, for tests."""

class AttentionBatch:
    """The rows of one step: new tokens of some sequences, in order.

    - ``row_begin`` [n_sequences + 1]: the first row of each sequence, then the number of rows.
    - ``n_kv`` [n_sequences]: tokens in the cache when this step's are written.
    - ``tables``: the block ids of each sequence, at least ``n_kv / 32`` of them.
    - ``slots`` [n_rows]: where each row's K and V go, ``block * 32 + offset``.

    Raises ShapeError where they do not agree.
    """

    def __init__(
        self,
        *,
        row_begin: Sequence[int],
        n_kv: Sequence[int],
        tables: Sequence[Sequence[int]],
        slots: Sequence[int],
    ) -> None: ...
    @property
    def n_rows(self) -> int: ...
    @property
    def n_sequences(self) -> int: ...

@final
class KernelSet:
    """What an executor computes with: an instruction set, and whether a row's bits may depend on what is computed
    beside.

    ``isa``: None is ``QUIRE_ISA`` of the environment, else the best of this machine.  ``deterministic``: None is False,
    unless ``QUIRE_DETERMINISTIC=1`` is in the environment.  Raises UnsupportedError if there is no such set or this
    machine does not run it.  The methods are single kernels, for tests and benchmarks.
    """

    def __init__(self, isa: str | None = None, *, deterministic: bool | None = None) -> None: ...
    @property
    def isa(self) -> str: ...
    @property
    def is_deterministic(self) -> bool: ...
    @property
    def determinism_costs(self) -> bool:
        """Whether that makes a difference here: where many rows are multiplied by tiles."""
    @property
    def multiplies_bf16(self) -> bool:
        """Whether there are products of BF16."""
    def kv_write(
        self,
        k: npt.NDArray[np.float32],
        v: npt.NDArray[np.float32] | None,
        k_pool: npt.NDArray[Any],
        v_pool: npt.NDArray[Any] | None,
        batch: AttentionBatch,
        n_workers: int = 1,
        poison_rest: bool = False,
    ) -> None:
        """Write ``k`` [n_rows, n_kv_head, head_dim] and ``v`` [n_rows, n_kv_head, v_head_dim] to their slots.

        Pools are C-contiguous, K [n_blocks, n_kv_head, head_dim, 32] and V [n_blocks, n_kv_head, 32, v_head_dim], of
        float32, float16, or uint16 with the bits of bf16.  Pools of an 8-bit cache are int8, [n_blocks, n_kv_head,
        32 * (n + 4)] with n the head's dimensions, rounded up to a multiple of 4: K's codes [n / 4, 32, 4] or V's
        [32, v_head_dim], then at 32 * n the float32 scales of the 32 tokens, largest magnitude / 127.
        Values are rounded to nearest, ties to even.  ``poison_rest``: what the step's last tokens leave of their blocks
        becomes not a number (of an 8-bit cache, the scales).  Without ``v`` and ``v_pool`` (latent attention) there is
        one head whose values are a part of its keys.  Raises ShapeError, and ValueError for a read-only pool.
        """
    def paged_attention(
        self,
        q: npt.NDArray[np.float32],
        k_pool: npt.NDArray[Any],
        v_pool: npt.NDArray[Any] | None,
        batch: AttentionBatch,
        *,
        scale: float,
        soft_cap: float | None = None,
        window: int | None = None,
        sinks: npt.NDArray[np.float32] | None = None,
        bias: npt.NDArray[np.float32] | None = None,
        v_head_dim: int | None = None,
        n_workers: int = 1,
    ) -> npt.NDArray[np.float32]:
        """Causal attention of ``q`` [rows, n_head, head_dim] to the pools: [rows, n_head, v_head_dim].

        Rows after ``batch.n_rows`` are padding, and zero in the result.  ``window`` w: a row sees the last w
        positions, its own included.  ``soft_cap`` c: scores become ``c * tanh(score / c)``.  ``sinks`` [n_head]: one
        more score per head in the softmax, with no value (as in gpt-oss).  ``bias`` [n_head, n]: added to scores by
        distance, see ``graph.attend``.  Without ``v_pool`` values are the first ``v_head_dim`` dimensions of the keys
        (latent attention).  ``v_head_dim`` must be given then, and for an 8-bit cache; there queries are rounded to 8
        bits too, with a scale per head, for their scores.  A row's bits do not depend on the other rows, on how a
        prompt is cut into steps, on shared blocks, nor on ``n_workers``.  Raises ShapeError.
        """
    def rms_norm(
        self, x: npt.NDArray[np.float32], weight: npt.NDArray[np.float32] | None, eps: float
    ) -> npt.NDArray[np.float32]:
        """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension."""
    def layer_norm(
        self,
        x: npt.NDArray[np.float32],
        weight: npt.NDArray[np.float32] | None,
        bias: npt.NDArray[np.float32] | None,
        eps: float,
    ) -> npt.NDArray[np.float32]:
        """``(x - mean) / sqrt(variance + eps) * weight + bias`` of every row; ShapeError where the sizes do not fit."""
    def rotate(
        self,
        x: npt.NDArray[np.float32],
        cosines: npt.NDArray[np.float32],
        sines: npt.NDArray[np.float32],
        *,
        interleaved: bool = False,
    ) -> npt.NDArray[np.float32]:
        """``x * cosines + partner * sines``, all ``[n]``.

        The partner is the number n / 2 away, or with ``interleaved`` the other of a pair of neighbours.
        """
    def activate(self, x: npt.NDArray[np.float32], activation: str) -> npt.NDArray[np.float32]:
        """``silu``, ``gelu``, ``gelu_tanh`` or ``relu`` of each number."""
    def gate(
        self, gate: npt.NDArray[np.float32], up: npt.NDArray[np.float32], activation: str
    ) -> npt.NDArray[np.float32]:
        """``activate(gate) * up``."""
    def soft_cap(self, x: npt.NDArray[np.float32], cap: float) -> npt.NDArray[np.float32]:
        """``cap * tanh(x / cap)``."""
    def largest(self, x: npt.NDArray[np.float32]) -> float:
        """The largest number, -inf of none; NaN where one is not finite."""

class PackedMatrix:
    """A matrix [n_out, n_in] in the layout of our own products by ``kernels`` (the default ones), a copy of ``tensor``.

    Raises UnsupportedError for types without a layout.
    """

    def __init__(self, tensor: Tensor, kernels: KernelSet = ..., *, threads: int = 1) -> None: ...
    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def size_bytes(self) -> int: ...
    def values(self) -> npt.NDArray[np.float32]:
        """The matrix as float32, as table look-ups read it."""
    def multiply(self, x: npt.NDArray[np.float32], *, n_workers: int = 1, raw: bool = False) -> npt.NDArray[np.float32]:
        """``x [n, n_in] @ matrix.T``, with x rounded to 8 bits in groups of 32 columns (largest magnitude / 127).

        ``raw``: each worker rounds all rows for itself, as for few rows.  A row's bits depend on that row alone.
        Weights of 32 and 16 bits are multiplied with x as it is, in single precision.  The bits of products with
        quantized weights are the same on every instruction set.  Raises ShapeError.
        """

class ThreadTeam:
    """The team of threads that kernels run on (for tests).

    ``cpus``: the logical processors that they may use; CapacityError when this process has none of them.
    """

    def __init__(self, n_workers: int, *, cpus: Sequence[int] = ()) -> None: ...
    @property
    def n_workers(self) -> int: ...
    def count(self, n: int, *, grain: int = 1, repetitions: int = 1) -> list[int]:
        """How often each of ``n`` indexes was handed out in ``repetitions`` rounds."""
