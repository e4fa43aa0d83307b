"""Tracing a model's forward pass into typed operations, lowering them to a device, running them.

Shapes are NumPy's.  The leading dimension of a traced tensor is a symbol: ``"tokens"`` (rows of the step) or ``"rows"``
(rows whose logits are wanted); a model is traced once and lowered for every bucket of sizes.
"""

from collections.abc import Sequence
from typing import Literal, final

import numpy as np
import numpy.typing as npt

from .core import Device, Tensor

Symbol = Literal["tokens", "rows"]
Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]

@final
class Weight:
    """A named tensor of the model file, in a buffer of the model's device; immutable."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    def __init__(self, name: str, tensor: Tensor) -> None: ...

@final
class TraceTensor:
    """A float32 value of the forward pass (int32 for ``tokens``, ``positions``, ``rows``).  It has no bytes."""

    @property
    def shape(self) -> tuple[Symbol | int, ...]: ...
    def __add__(self, other: TraceTensor) -> TraceTensor:
        """Elementwise; shapes must be equal."""
    def __mul__(self, other: TraceTensor | float) -> TraceTensor:
        """Elementwise, or by a number."""
    def heads(self, n_head: int) -> TraceTensor:
        """``[tokens, n_head * head_dim]`` as ``[tokens, n_head, head_dim]``."""
    def merge_heads(self) -> TraceTensor:
        """``[tokens, n_head, head_dim]`` as ``[tokens, n_head * head_dim]``."""

@final
class RopeSpec:
    """Rotary position embedding (Su et al. 2021) with its scalings.

    ``layout``: ``"half"`` rotates dimension i with i + n_dims/2 (NeoX, Hugging Face), ``"interleaved"`` 2i with 2i + 1
    (what GGUF files of the llama architecture expect).  ``freq_scale`` is 1 / factor of linear scaling.  YaRN (Peng et
    al. 2023) is on when ``ext_factor`` is not 0.  ``factors``: a weight ``[n_dims / 2]`` that the frequencies are
    divided by (llama 3).
    """

    def __init__(
        self,
        *,
        n_dims: int,
        layout: Literal["half", "interleaved"],
        freq_base: float,
        freq_scale: float = 1.0,
        ext_factor: float = 0.0,
        attn_factor: float = 1.0,
        beta_fast: float = 32.0,
        beta_slow: float = 1.0,
        n_ctx_orig: int = 0,
        factors: Weight | None = None,
    ) -> None: ...

@final
class CacheSpec:
    """What one layer keeps between steps: rows of K and V for every token, recurrent states, both or nothing.

    ``window`` n: the last n tokens are attended to; ``chunk`` n: those of the row's own chunk of n; 0: all of the past.
    ``states``: names and sizes of float32 arrays for each sequence, zero where it begins.
    """

    def __init__(
        self,
        *,
        n_kv_head: int = 0,
        head_dim: int = 0,
        v_head_dim: int | None = None,
        window: int = 0,
        chunk: int = 0,
        states: Sequence[tuple[str, int]] = (),
    ) -> None: ...
    @property
    def n_kv_head(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def v_head_dim(self) -> int: ...
    @property
    def window(self) -> int: ...
    @property
    def chunk(self) -> int: ...
    @property
    def states(self) -> list[tuple[str, int]]: ...

@final
class Tracer:
    """Collects the operations of one forward pass.  The functions below find it through their first argument."""

    def __init__(self, cache: Sequence[CacheSpec]) -> None: ...
    @property
    def tokens(self) -> TraceTensor:
        """int32 ``[tokens]``: ids."""
    @property
    def positions(self) -> TraceTensor:
        """int32 ``[tokens]``: position of each token in its sequence."""
    @property
    def logit_rows(self) -> TraceTensor:
        """int32 ``[rows]``: which of the step's tokens need logits."""
    def finish(self, logits: TraceTensor) -> Trace:
        """End the trace.  ``logits`` must be ``["rows", n_vocab]``."""

@final
class Trace:
    """A finished forward pass."""

    @property
    def n_vocab(self) -> int: ...
    @property
    def n_layer(self) -> int: ...
    def describe(self) -> list[str]:
        """One line per recorded operation."""

def embed(tokens: TraceTensor, weight: Weight) -> TraceTensor:
    """Rows of ``weight [n_vocab, dim]``: ``[tokens, dim]``."""

def linear(x: TraceTensor, weight: Weight, bias: Weight | None = None) -> TraceTensor:
    """``x [n, in] @ weight [out, in].T + bias [out]``: ``[n, out]``."""

def rms_norm(x: TraceTensor, weight: Weight | None, eps: float) -> TraceTensor:
    """Root-mean-square norm over the last dimension (Zhang and Sennrich 2019), times ``weight [last]``."""

def rope(x: TraceTensor, positions: TraceTensor, spec: RopeSpec) -> TraceTensor:
    """Rotate the first ``spec.n_dims`` of each head of ``x [tokens, n_head, head_dim]``."""

def attend(
    layer: int,
    q: TraceTensor,
    k: TraceTensor,
    v: TraceTensor,
    *,
    scale: float,
    soft_cap: float = 0.0,
    sinks: Weight | None = None,
) -> TraceTensor:
    """Write k, v ``[tokens, n_kv_head, head_dim]`` to the layer's cache; attend q ``[tokens, n_head, head_dim]`` to it.

    Causal; window and head counts are those of the layer's ``CacheSpec``.  Scores are scaled, soft-capped (``cap *
    tanh(s / cap)`` where ``soft_cap`` is not 0) and normalized with ``sinks [n_head]`` as extra logits.  Returns
    ``[tokens, n_head, v_head_dim]``.
    """

def glu(gate: TraceTensor, up: TraceTensor, activation: Activation) -> TraceTensor:
    """``activation(gate) * up`` (Shazeer 2020)."""

def activate(x: TraceTensor, activation: Activation) -> TraceTensor:
    """``activation(x)``, elementwise."""

def soft_cap(x: TraceTensor, cap: float) -> TraceTensor:
    """``cap * tanh(x / cap)``."""

def select_rows(x: TraceTensor, rows: TraceTensor) -> TraceTensor:
    """``[tokens, n]`` to ``["rows", n]``."""

@final
class MoeSpec:
    """Routing of a mixture of experts.

    ``gating`` ``"softmax"``: probabilities over all experts, then the best ``n_used``.  ``normalize``: the chosen
    probabilities are divided by their sum.  ``scale`` multiplies them.
    """

    def __init__(
        self,
        *,
        n_used: int,
        activation: Activation,
        gating: Literal["softmax", "sigmoid"] = "softmax",
        normalize: bool = True,
        scale: float = 1.0,
    ) -> None: ...

def moe(x: TraceTensor, router: Weight, gate: Weight, up: Weight, down: Weight, spec: MoeSpec) -> TraceTensor:
    """Mixture of experts with gated units.

    x ``[tokens, dim]``, router ``[n_expert, dim]``, gate and up ``[n_expert, ffn, dim]``, down
    ``[n_expert, dim, ffn]``.
    """

class ExecutorBase:
    """What a decoder runs its steps on."""

@final
class PackedCache:
    """A folder of files with the packed weights of models, each found by what it was made from.

    ``source``: ``Reader.identity`` of the model's file, so that it need not be hashed when it is the same as last time;
    empty: it is hashed.  ``load``: how a file is brought to memory.  ``source_is_mapped``: the matrices are a mapped
    file's, whose pages are given back once they are hashed.
    """

    def __init__(
        self,
        directory: str,
        *,
        source: str = "",
        load: Literal["mmap", "copy", "lock"] = "mmap",
        source_is_mapped: bool = False,
    ) -> None: ...

@final
class Executor(ExecutorBase):
    """A traced model on a device with its cache store.  One thread at a time.

    ``kernels``: ``"auto"`` (ours where the device is the CPU), ``"stock"`` (ggml's only: the oracle), ``"cpu"``.
    ``repack``: whether weights are rearranged for our own products, where this machine has them; ``"release"`` gives
    the memory that they were read from back to the system, so that nobody may read those tensors again; ``"lock"``
    also locks the rearranged ones in memory.  ``packed_cache``: where they are kept for the next start.
    ``cpus``: the logical processors that the threads of our own kernels may use, the one that calls ``run`` included;
    empty: any.  UnsupportedError for stock kernels, which have another team.
    Our own kernels run one program for all sizes.  For stock ones every bucket of sizes is lowered and planned here;
    afterwards the cache of graphs is frozen.
    """

    def __init__(
        self,
        trace: Trace,
        device: Device,
        *,
        n_blocks: int,
        threads: int = 0,
        kv_dtype: Literal["f32", "f16", "bf16", "q8_0"] = "f16",
        kernels: Literal["auto", "stock", "cpu"] = "auto",
        max_rows: int = 512,
        max_sequences: int = 32,
        repack: Literal["no", "keep", "release", "lock"] = "keep",
        cpus: Sequence[int] = (),
        packed_cache: PackedCache | None = None,
        n_states: int = 0,
    ) -> None: ...
    @property
    def n_vocab(self) -> int: ...
    @property
    def n_hidden(self) -> int:
        """Size of the hidden states that logits are made of; 0 where they cannot be had."""
    @property
    def n_blocks(self) -> int: ...
    @property
    def block_tokens(self) -> int: ...
    @property
    def max_rows(self) -> int: ...
    @property
    def max_logit_rows(self) -> int: ...
    @property
    def max_sequences(self) -> int: ...
    @property
    def kernels(self) -> Literal["cpu", "stock"]:
        """Which are in use."""

    @property
    def threads(self) -> int: ...
    @property
    def packed_from_cache(self) -> bool:
        """Whether the packed weights came from the cache's file: nothing was packed."""
    @property
    def packed_cache_notes(self) -> list[str]:
        """What went wrong with the cache, a line each: a file that was ignored, or could not be written."""
    @property
    def memory_bytes(self) -> dict[str, int]:
        """Bytes by use: ``cache``, ``compute``, and ``packed`` for weights in the layout of our own products."""
    @property
    def n_graphs(self) -> int: ...
    @property
    def n_nodes(self) -> int:
        """Nodes of the program of our own kernels; 0 with stock ones."""
    def run(
        self,
        tokens: Sequence[int],
        *,
        positions: Sequence[int],
        slots: Sequence[int],
        logit_rows: Sequence[int],
        row_begin: Sequence[int],
        n_kv: Sequence[int],
        tables: Sequence[Sequence[int]],
        states: Sequence[int] = (),
    ) -> npt.NDArray[np.float32]:
        """One step (for tests): logits ``[len(logit_rows), n_vocab]``."""
    def maxima(self, n_rows: int) -> npt.NDArray[np.float32] | None:
        """The largest of every 64 logits of the last step's first ``n_rows`` logit rows (for tests).

        ``[n_rows, (n_vocab + 63) // 64]``; NaN where one of them is not finite; None where they are not kept.
        """

def plan_memory(values: Sequence[tuple[int, int, int]]) -> tuple[list[int], int]:
    """Where values ``(size_bytes, first, last)`` lie in one buffer, and its size (for tests).

    Values whose lifetimes, ``last`` included, meet do not overlap.
    """

def cache_bytes_per_block(cache: Sequence[CacheSpec], kv_dtype: Literal["f32", "f16", "bf16", "q8_0"]) -> int:
    """Bytes that one block of tokens takes in the caches of all layers."""
