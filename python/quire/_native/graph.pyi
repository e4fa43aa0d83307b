"""Tracing a model's forward pass into typed operations, lowering them to a device, running them.

Shapes are NumPy's.  The leading dimension of a traced tensor is a symbol: ``"tokens"`` (rows of the step) or ``"rows"``
(rows whose logits are wanted); a model is traced once and lowered for the sizes that come.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, final

import numpy as np
import numpy.typing as npt

from .core import Device, DType, Tensor
from .kernels import KernelSet

Symbol = Literal["tokens", "rows"]
Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]

@final
class Weight:
    """A named tensor of the model file, in a buffer of the model's device; immutable."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    def __init__(self, name: str, tensor: Tensor) -> None: ...
    def part(self, begin: int, end: int) -> Weight:
        """Elements ``begin:end`` of the first dimension, in the same memory."""

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
    divided by (llama 3).  ``sections``: how many pairs turn by the place in time, height and width (M-RoPE, Wang et al.
    2024), one after the other, or taking turns (Qwen3-VL); zeros: all by the position.  For layout ``"half"``.
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
        sections: tuple[int, int, int] = (0, 0, 0),
        take_turns: bool = False,
    ) -> None: ...

@final
class CacheSpec:
    """What one layer keeps between steps: rows of K and V for every token, recurrent states, both or nothing.

    ``window`` n: the last n tokens are attended to; ``chunk`` n: those of the row's own chunk of n; 0: all of the past.
    ``states``: names and sizes of float32 arrays for each sequence, zero where it begins.  ``of_source``: the rows are
    those of a source text, which an encoder's trace writes (``write_source``) and every token attends to.
    """

    @staticmethod
    def latent(*, rank: int, n_rot: int) -> CacheSpec:
        """Latent attention: a row of ``rank + n_rot`` numbers, the first ``rank`` of which are its value, too."""
    def __init__(
        self,
        *,
        n_kv_head: int = 0,
        head_dim: int = 0,
        v_head_dim: int | None = None,
        window: int = 0,
        chunk: int = 0,
        states: Sequence[tuple[str, int]] = (),
        of_source: bool = False,
    ) -> None: ...
    @property
    def of_source(self) -> bool: ...
    @property
    def n_kv_head(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def v_head_dim(self) -> int: ...
    @property
    def v_in_k(self) -> bool:
        """Whether values are a part of the keys."""
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
    def token_types(self) -> TraceTensor:
        """int32 ``[tokens]``: 1 in the second text of a pair, else 0."""
    @property
    def logit_rows(self) -> TraceTensor:
        """int32 ``[rows]``: which of the step's tokens need logits."""
    def tap(self, layer: int, x: TraceTensor) -> None:
        """Declare the hidden state after a layer, ``[tokens, n]``, to be read after each step (``Executor.tap``).

        Raises ShapeError for another shape, and unless layers ascend.
        """
    @property
    def tapped_layers(self) -> list[int]: ...
    def show_features(self, x: TraceTensor) -> None:
        """Declare the features ``[tokens, n]``, which a head that predicts later tokens reads, after all taps
        (``Executor.features``).  Raises ShapeError as ``tap``."""
    def features(self, n: int) -> TraceTensor:
        """Of a head: float32 ``[tokens, n]``, the features that come with each token.  ShapeError for a second time."""
    def finish(self, logits: TraceTensor, *, encoder: Trace | None = None) -> Trace:
        """End the trace.  ``logits`` must be ``["rows", n_vocab]``.

        ``encoder``: the trace, of the same cache, that writes the layers of a source text, where there are any.
        """
    def finish_vectors(self, vectors: TraceTensor) -> Trace:
        """End the trace of an encoder with vectors ``["rows", n]``: embeddings, or scores of classes."""

@final
class Trace:
    """A finished forward pass."""

    @property
    def n_vocab(self) -> int: ...
    @property
    def n_layer(self) -> int: ...
    @property
    def encoder(self) -> Trace | None:
        """The pass over source texts, for models that read one."""
    @property
    def placed_names(self) -> set[str]:
        """Names of the weights by which operations can be placed, an encoder's included: ``Executor``'s ``places``."""
    def placed_parts(
        self, places: Mapping[str, str], devices: Sequence[Device]
    ) -> list[tuple[dict[str, int], set[int], int]]:
        """With ``Executor``'s ``places`` on its devices: of the CPU, and of each device as far as there are parts, the
        weights that it reads with their bytes, the layers whose rows it keeps, and the bytes of a sequence's states."""
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
    layer: int, q: TraceTensor, k: TraceTensor, v: TraceTensor, *, scale: float, soft_cap: float = 0.0,
    sinks: Weight | None = None, bias: Weight | None = None,
) -> TraceTensor:  # fmt: skip
    """Write k, v ``[tokens, n_kv_head, head_dim]`` to the layer's cache; attend q ``[tokens, n_head, head_dim]`` to it.

    Causal, with the window of the layer's ``CacheSpec``.  Scores are scaled, soft-capped where ``soft_cap`` is set, and
    normalized with ``sinks [n_head]`` as extra logits.  ``bias [n_head, n]`` is added to scores by distance: the last
    column for the token itself, each before it for one token farther away, the first for all beyond.  Returns
    ``[tokens, n_head, v_head_dim]``.
    """

def attend_latent(layer: int, q: TraceTensor, k: TraceTensor, *, scale: float, soft_cap: float = 0.0) -> TraceTensor:
    """As ``attend`` where the layer keeps ``CacheSpec.latent``: its values are the first ``rank`` numbers of each key.

    q ``[tokens, n_head, rank + n_rot]``, k ``[tokens, 1, rank + n_rot]``.  Returns ``[tokens, n_head, rank]``.
    """

def attend_to_written(
    layer: int, q: TraceTensor, *, scale: float, soft_cap: float = 0.0, sinks: Weight | None = None,
    bias: Weight | None = None,
) -> TraceTensor:  # fmt: skip
    """Attend q to what ``attend`` has written to a layer's cache in the same step; otherwise the same.

    Of a layer that keeps the rows of a source: cross attention, to all that ``write_source`` has written.
    """

def write_source(layer: int, k: TraceTensor, v: TraceTensor) -> None:
    """Keep K and V ``[tokens, n_kv_head, head_dim]`` of an encoder's rows in a layer ``of_source``."""

def attend_rows(
    q: TraceTensor, k: TraceTensor, v: TraceTensor, *, scale: float, soft_cap: float = 0.0, window: int = 0,
    bias: Weight | None = None,
) -> TraceTensor:  # fmt: skip
    """The rows of each sequence attend to each other both ways, and nothing is cached: prompts are not divided.

    ``window`` w: only w // 2 positions to either side are seen; 0: all.  ``bias [n_head, n]``: as for ``attend``, with
    the middle column for the token itself.
    """

def glu(gate: TraceTensor, up: TraceTensor, activation: Activation) -> TraceTensor:
    """``activation(gate) * up`` (Shazeer 2020)."""

def activate(x: TraceTensor, activation: Activation) -> TraceTensor:
    """``activation(x)``, elementwise."""

def soft_cap(x: TraceTensor, cap: float) -> TraceTensor:
    """``cap * tanh(x / cap)``."""

def select_rows(x: TraceTensor, rows: TraceTensor) -> TraceTensor:
    """``[tokens, n]`` to ``["rows", n]``."""

def reshape(x: TraceTensor, rest: Sequence[int]) -> TraceTensor:
    """Another shape of the same row, in 1 to 3 dimensions after the leading one."""

def head_linear(x: TraceTensor, weight: Weight) -> TraceTensor:
    """``x [tokens, h, n_in]`` times ``weight [h, n_out, n_in]``, each head with its own matrix."""

@final
class MoeSpec:
    """Routing of a mixture of experts, and what an expert does between its matrices.

    ``gating``: ``"softmax"`` over all experts, ``"sigmoid"`` of each score, ``"softmax_of_chosen"`` (gpt-oss),
    ``"sparse_mixer"``: of each chosen one over those left whose scores are within 2 % of its own (Liu et al. 2024).
    ``normalize``: the weights of the ``n_used`` chosen are divided by their sum; ``scale`` multiplies them.
    Only experts of the ``n_group_used`` best of ``n_group`` groups are chosen; a group counts as its ``group_score``.
    ``unit``: ``"gated"`` is ``activation(gate) * up``, ``"clamped_swiglu"`` gpt-oss's with ``alpha`` and ``limit``,
    ``"clipped"`` ``min(activation(gate), limit) * clamp(up, -limit, limit)``, ``"ungated"`` ``activation(up)``, whose
    square ``is_squared`` takes.  ``weighs_input``: weights multiply the experts' inputs instead of their outputs
    (Llama 4).
    """

    def __init__(
        self, *, n_used: int, activation: Activation = "silu",
        gating: Literal["softmax", "sigmoid", "softmax_of_chosen", "sparse_mixer"] = "softmax", normalize: bool = True,
        scale: float = 1.0, n_group: int = 1, n_group_used: int = 1,
        group_score: Literal["largest", "two_largest"] = "two_largest",
        unit: Literal["gated", "clamped_swiglu", "clipped", "ungated"] = "gated", is_squared: bool = False,
        alpha: float = 1.702, limit: float = 7.0, weighs_input: bool = False,
    ) -> None: ...  # fmt: skip

def moe(
    x: TraceTensor,
    scores: TraceTensor,
    gate: Weight | None,
    up: Weight,
    down: Weight,
    spec: MoeSpec,
    *,
    selection_bias: Weight | None = None,
    expert_scale: Weight | None = None,
    gate_bias: Weight | None = None,
    up_bias: Weight | None = None,
    down_bias: Weight | None = None,
) -> TraceTensor:
    """Mixture of experts.

    x ``[tokens, dim]``, a router's scores ``[tokens, n_expert]``; gate and up ``[n_expert, ffn, dim]``, down
    ``[n_expert, dim, ffn]`` with biases ``[n_expert, n_out]``.  ``selection_bias [n_expert]`` is added to what experts
    are chosen by and not to their weights, which ``expert_scale [n_expert]`` multiplies.
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
    empty: any.  ``kernel_set``: the instruction set of our own kernels and determinism; None: the defaults.
    UnsupportedError for either with stock kernels, which have another team.
    ``cache_bytes``: of the blocks of all groups together, where that is less than ``n_blocks`` of each (windows need
    fewer); 0: that many.
    ``sums_inputs``: what products read is added up for ``input_sums``, by stock kernels on the CPU only.
    ``places``: where weights are, ``"cpu"``, ``"device"``, or ``"device1"`` and so on for ``more_devices``: an
    operation runs where its matrices are (on the CPU where these are in two places), and one without a word where its
    inputs are.  What is on the CPU runs by our own kernels; each place keeps its layers' rows, and recurrent states are
    the CPU's.  Empty: everything runs on ``device``.  What a device reads that lies elsewhere is copied there.
    ``team_of``: an executor whose threads this one uses, where both have our own kernels; they must not run at once.
    Packed matrices that both traces read are shared.
    Our own kernels run one program for all sizes.  For stock ones the largest graph is made here, and others
    of the frozen trace when a step first has their sizes.
    """

    def __init__(
        self,
        trace: Trace,
        device: Device,
        *,
        n_blocks: int,
        threads: int = 0,
        kv_dtype: str = "f16",
        kernels: Literal["auto", "stock", "cpu"] = "auto",
        max_rows: int = 512,
        max_sequences: int = 32,
        repack: Literal["no", "keep", "release", "lock"] = "keep",
        cpus: Sequence[int] = (),
        packed_cache: PackedCache | None = None,
        n_states: int = 0,
        kernel_set: KernelSet | None = None,
        cache_bytes: int = 0,
        sums_inputs: bool = False,
        team_of: Executor | None = None,
        places: Mapping[str, str] = ...,
        more_devices: Sequence[Device] = (),
    ) -> None: ...
    @staticmethod
    def measure(
        trace: Trace,
        device: Device,
        *,
        n_blocks: int,
        kv_dtype: str = "f16",
        kernels: Literal["auto", "stock", "cpu"] = "auto",
        max_rows: int = 512,
        max_sequences: int = 32,
        n_states: int = 0,
        kernel_set: KernelSet | None = None,
        cache_bytes: int = 0,
        places: Mapping[str, str] = ...,
        more_devices: Sequence[Device] = (),
    ) -> tuple[list[dict[str, int]], int]:
        """What such an executor would have as ``device_bytes``, without taking it; and the bytes of values on the CPU
        (of weights that are not packed).  Raises as the executor does, but for CapacityError."""
    @property
    def n_vocab(self) -> int: ...
    @property
    def n_hidden(self) -> int:
        """Size of the hidden states that logits are made of, or of an encoder's vectors; 0 where they cannot be had."""
    @property
    def tapped_layers(self) -> list[int]:
        """Layers whose hidden states ``tap`` gives, ascending."""
    def tap(self, layer: int, n_rows: int) -> npt.NDArray[np.float32]:
        """The hidden states after a layer ``[n_rows, n]`` of the first rows of the last step.  Raises ShapeError."""
    @property
    def n_features(self) -> int:
        """Numbers of a row that the model leaves for a head; 0 where it shows none."""
    @property
    def n_features_read(self) -> int:
        """Numbers that come with each token of a head; 0 for all other models."""
    def features(self, n_rows: int) -> npt.NDArray[np.float32]:
        """The features ``[n_rows, n_features]`` of the first rows of the last step.  Raises ShapeError."""
    @property
    def makes_logits(self) -> bool:
        """Whether the trace ends with logits; otherwise ``run`` gives vectors."""
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
    def kernel_set(self) -> KernelSet | None:
        """None where the model runs by ggml's kernels."""
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
    def device_bytes(self) -> list[dict[str, int]]:
        """By device ``weights``, ``cache``, ``compute`` (buffers of steps), and what it tells as ``free`` and
        ``total``; empty where all of the model runs by our own kernels."""
    @property
    def n_pieces(self) -> int:
        """Pieces of the trace that a step runs one after the other: 1, or more with ``places``."""
    @property
    def n_graphs(self) -> int: ...
    def input_sums(self) -> dict[str, tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]]:
        """Of the rows that came to each matrix, by its tensor's name: sums of squares ``[n_matrix, n_in]`` and counts.

        While no step runs.
        """
    @property
    def stock_operations(self) -> list[str]:
        """Operations that have no kernel of ours, so that ggml's operators compute them inside the program."""
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
        axes: Sequence[int] = (),
        token_types: Sequence[int] = (),
        source_tables: Sequence[Sequence[int]] = (),
        n_source: Sequence[int] = (),
        features: npt.NDArray[np.float32] | None = None,
        likeliest: Sequence[int] = (),
    ) -> npt.NDArray[np.float32]:
        """One step (for tests): logits ``[len(logit_rows), n_vocab]``.

        ``features``: ``[tokens, n]``, those that come with a head's tokens.
        ``likeliest``: how many of each row are enough, 0 for all; others may be -inf then.
        ``axes``: places of the tokens in time, then in height, then in width; empty: their positions in all three.
        ``source_tables``, ``n_source``: where the rows of each sequence's source lie, and how many they are.
        """
    def copy_block(self, group: int, from_block: int, to_block: int) -> None:
        """Copy what a group's layers keep in one block to another (for tests)."""
    def encode(
        self,
        tokens: Sequence[int],
        *,
        slots: Sequence[int],
        row_begin: Sequence[int],
        tables: Sequence[Sequence[int]],
    ) -> None:
        """Encode whole source texts, whose rows go to ``slots`` (for tests)."""
    def maxima(self, n_rows: int) -> npt.NDArray[np.float32] | None:
        """The largest of every 64 logits of the last step's first ``n_rows`` logit rows (for tests).

        ``[n_rows, (n_vocab + 63) // 64]``; NaN where one of them is not finite; None where they are not kept.
        """

def plan_memory(values: Sequence[tuple[int, int, int]]) -> tuple[list[int], int]:
    """Where values ``(size_bytes, first, last)`` lie in one buffer, and its size (for tests).

    Values whose lifetimes, ``last`` included, meet do not overlap.
    """

def packed_row_bytes(dtype: DType | str, n: int) -> int:
    """Bytes of a row of n values as Quire's own products read it: of the type itself, or of one with these numbers."""

def cache_bytes_per_block(cache: Sequence[CacheSpec], kv_dtype: str) -> int:
    """Bytes that one block of tokens takes in the caches of all layers."""

# Standalone operations (native/graph/trace/standalone_operations.h).  Axes count from the last dimension, 0.
STANDALONE: tuple[str, ...]
"""The names of all that follow (for tests)."""

def sigmoid(x: TraceTensor) -> TraceTensor:
    """``1 / (1 + exp(-x))``."""

def softplus(x: TraceTensor) -> TraceTensor:
    """``log(1 + exp(x))``."""

def tanh(x: TraceTensor) -> TraceTensor:
    """Hyperbolic tangent."""

def exp(x: TraceTensor) -> TraceTensor:
    """``e ** x``."""

def relu_squared(x: TraceTensor) -> TraceTensor:
    """``max(x, 0) ** 2``."""

def quick_gelu(x: TraceTensor) -> TraceTensor:
    """``x * sigmoid(1.702 * x)``."""

def negate(x: TraceTensor) -> TraceTensor:
    """``-x``."""

def clamp(x: TraceTensor, low: float, high: float) -> TraceTensor:
    """``min(max(x, low), high)``."""

def xielu(x: TraceTensor, *, alpha_p: float, alpha_n: float, beta: float, eps: float) -> TraceTensor:
    """Expanded integral of ELU (Huang and Schlag 2025); ``alpha_n`` contains ``beta``."""

def clamped_swiglu(gate: TraceTensor, up: TraceTensor, *, alpha: float, limit: float) -> TraceTensor:
    """``g * sigmoid(alpha * g) * (clamp(up, -limit, limit) + 1)`` with ``g = min(gate, limit)`` (gpt-oss)."""

def add_broadcast(a: TraceTensor, b: TraceTensor) -> TraceTensor:
    """``a + b`` where dimensions of 1 of ``b`` are repeated."""

def multiply_broadcast(a: TraceTensor, b: TraceTensor) -> TraceTensor:
    """``a * b`` where dimensions of 1 of ``b`` are repeated."""

def add_weight(x: TraceTensor, weight: Weight) -> TraceTensor:
    """``x + weight``, a float32 weight of the last dimensions of ``x``, of which those of 1 are repeated."""

def multiply_weight(x: TraceTensor, weight: Weight) -> TraceTensor:
    """``x * weight``, likewise."""

def layer_norm(x: TraceTensor, weight: Weight | None, bias: Weight | None, eps: float) -> TraceTensor:
    """Over the last dimension (Ba, Kiros and Hinton 2016)."""

def l2_norm(x: TraceTensor, eps: float) -> TraceTensor:
    """``x / max(|x|, eps)`` over the last dimension."""

def group_norm(x: TraceTensor, n_groups: int, weight: Weight | None, eps: float) -> TraceTensor:
    """Root-mean-square norm of each of ``n_groups`` parts of a row ``[tokens, n]``; ``weight [n]``."""

def slice(x: TraceTensor, axis: int, begin: int, end: int) -> TraceTensor:
    """Elements ``begin:end`` of an axis."""

def concat(a: TraceTensor, b: TraceTensor, axis: int) -> TraceTensor:
    """Both after each other along an axis."""

def repeat_heads(x: TraceTensor, n: int) -> TraceTensor:
    """``[tokens, h, d]`` to ``[tokens, h * n, d]``, each head ``n`` times in turn."""

def scale_by_position(
    x: TraceTensor, positions: TraceTensor, *, beta: float, n_ctx: int, offset: int = 0
) -> TraceTensor:
    """``x * (1 + beta * log(1 + floor((position + offset) / n_ctx)))``."""

def conv_state(
    x: TraceTensor, weight: Weight, bias: Weight | None, *, layer: int, state: int, silu: bool = False
) -> TraceTensor:
    """Depth-wise causal convolution of ``x [tokens, channels]`` with a float32 ``weight [channels, kernel]``.

    Its last ``kernel - 1`` inputs are state ``state`` of the layer's ``CacheSpec``, ``(kernel - 1) * channels`` in all.
    """

def token_shift(x: TraceTensor, *, layer: int, state: int) -> TraceTensor:
    """The row before of ``x [tokens, n]``, zero where a sequence begins; the state has ``n`` numbers."""

def selective_scan(
    x: TraceTensor,
    dt: TraceTensor,
    b: TraceTensor,
    c: TraceTensor,
    a: Weight,
    d: Weight | None,
    *,
    layer: int,
    state: int,
) -> TraceTensor:
    """``h = exp(dt * a) * h + dt * x * b``, ``y = h . c + d * x`` (Mamba 1).

    ``x``, ``dt [tokens, channels]``; ``b``, ``c [tokens, n_state]``; float32 ``a [channels, n_state]``, at most 0, and
    ``d [channels]``.  The state has ``channels * n_state`` numbers.
    """

def state_space_dual(
    x: TraceTensor,
    dt: TraceTensor,
    b: TraceTensor,
    c: TraceTensor,
    a: Weight,
    d: Weight | None,
    *,
    layer: int,
    state: int,
) -> TraceTensor:
    """The same with one decay for a head (Mamba 2).

    ``x [tokens, n_head, head_dim]``; ``dt [tokens, n_head]``; ``b``, ``c [tokens, n_group, n_state]``; float32 ``a``,
    ``d [n_head]``.  The state has ``n_head * n_state * head_dim`` numbers; ``n_state`` is 256 at most.
    """

def retention(q: TraceTensor, k: TraceTensor, v: TraceTensor, decay: Weight, *, layer: int, state: int) -> TraceTensor:
    """``S = exp(decay) S + k v``, ``out = q S``: linear attention whose past fades (Sun et al. 2023).

    ``q``, ``k [tokens, n_key_head, n_key]``; ``v [tokens, n_head, n_value]``; float32 ``decay [n_head]``, logarithms
    that are not above 0.  The state has ``n_head * n_key * n_value`` numbers; ``n_key`` is 256 at most.
    """

def gated_delta(
    q: TraceTensor,
    k: TraceTensor,
    v: TraceTensor,
    g: TraceTensor,
    beta: TraceTensor,
    *,
    layer: int,
    state: int,
    tiled: bool = False,
) -> TraceTensor:
    """``S = exp(g) S``, ``S += k (beta * (v - k S))``, ``out = q S`` (gated delta rule; with ``g`` by key, KDA).

    ``q``, ``k [tokens, n_key_head, n_key]``; ``v [tokens, n_head, n_value]``; ``g [tokens, n_head]`` or
    ``[tokens, n_head, n_key]``, not above 0; ``beta [tokens, n_head]``.  Neighbouring heads share a key, or, ``tiled``,
    head h has key ``h % n_key_head``.  The state has ``n_head * n_key * n_value`` numbers; ``n_key`` is 256 at most.
    Scales and norms of ``q`` and ``k`` are the caller's.
    """

def wkv6(
    r: TraceTensor, w: TraceTensor, k: TraceTensor, v: TraceTensor, u: Weight, *, layer: int, state: int
) -> TraceTensor:
    """``out = r S + (r . (u * k)) v``, ``S = exp(w) S + k v`` (RWKV-6); ``r``, ``w``, ``k [tokens, n_head, n_key]``.

    ``v [tokens, n_head, n_value]``; float32 ``u [n_head, n_key]``.  ``w``, logarithms of decays, are not above 0.  The
    state has ``n_head * n_key * n_value`` numbers; ``n_key`` is 256 at most.
    """

def wkv7(
    r: TraceTensor,
    w: TraceTensor,
    k: TraceTensor,
    v: TraceTensor,
    a: TraceTensor,
    b: TraceTensor,
    *,
    layer: int,
    state: int,
) -> TraceTensor:
    """``S = exp(w) S + k v + b (a S)``, ``out = r S`` (RWKV-7); shapes and state as for ``wkv6``."""
