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
        """Return elements ``begin:end`` of the first dimension, in the same memory."""

@final
class TraceTensor:
    """A float32 value of the forward pass (int32 for ``tokens``, ``positions``, ``rows``).  It has no bytes."""

    @property
    def shape(self) -> tuple[Symbol | int, ...]: ...
    def __add__(self, other: TraceTensor) -> TraceTensor:
        """Add elementwise; shapes must be equal."""
    def __mul__(self, other: TraceTensor | float) -> TraceTensor:
        """Multiply elementwise, or by a number."""
    def heads(self, n_head: int) -> TraceTensor:
        """Return ``[tokens, n_head * head_dim]`` as ``[tokens, n_head, head_dim]``."""
    def merge_heads(self) -> TraceTensor:
        """Return ``[tokens, n_head, head_dim]`` as ``[tokens, n_head * head_dim]``."""

@final
class RopeSpec:
    """Rotary position embedding (Su et al. 2021) with its scalings.

    Args:
        n_dims: The number of rotated dimensions.
        layout: ``"half"`` rotates dimension i with i + n_dims / 2 (NeoX, Hugging Face), ``"interleaved"`` 2i with 2i +
            1 (GGUF files of the llama architecture).
        freq_scale: 1 / factor of linear scaling.
        ext_factor: Nonzero for YaRN (Peng et al. 2023).
        factors: A weight ``[n_dims / 2]`` that divides the frequencies (llama 3).
        sections: For layout ``"half"``: the number of pairs rotated by the position in time, height and width (M-RoPE,
            Wang et al. 2024); zeros rotate all by the position.
        take_turns: Interleave the sections (Qwen3-VL).
        inverse: Turn back.
        behind: Turn by the position that is so many before the row's.
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
        inverse: bool = False,
        behind: int = 0,
    ) -> None: ...

@final
class CacheSpec:
    """The data that one layer keeps between steps: rows of K and V for every token, recurrent states, both or neither.

    Args:
        window: n limits attention to the last n tokens; 0 means no limit.
        chunk: n limits attention to the row's own chunk of n tokens; 0 means no limit.
        states: Names and sizes of float32 arrays for each sequence, initially zero.
        of_source: The rows are those of a source text, which an encoder's trace writes (``write_source``) and every
            token attends to.
        bidirectional_media: Rows of an image attend to its later rows, too, as far back as the window reaches.
    """

    @staticmethod
    def latent(*, rank: int, n_rot: int, window: int = 0, every: int = 1) -> CacheSpec:
        """Return the spec of latent attention: rows of ``rank + n_rot`` numbers, the first ``rank`` of which are the
        value, too.

        ``every``: n tokens share a row (compressed attention); n divides 32 or is a multiple of 32.
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
        of_source: bool = False,
        bidirectional_media: bool = False,
    ) -> None: ...
    @property
    def of_source(self) -> bool: ...
    @property
    def bidirectional_media(self) -> bool: ...
    @property
    def n_kv_head(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def v_head_dim(self) -> int: ...
    @property
    def v_in_k(self) -> bool:
        """True if values are part of the keys."""
    @property
    def window(self) -> int: ...
    @property
    def chunk(self) -> int: ...
    @property
    def every(self) -> int: ...
    @property
    def states(self) -> list[tuple[str, int]]: ...

@final
class Tracer:
    """Collects the operations of one forward pass.  The functions below find it through their first argument."""

    def __init__(self, cache: Sequence[CacheSpec]) -> None: ...
    @property
    def tokens(self) -> TraceTensor:
        """The token ids, int32 ``[tokens]``."""
    @property
    def positions(self) -> TraceTensor:
        """The position of each token in its sequence, int32 ``[tokens]``."""
    @property
    def token_types(self) -> TraceTensor:
        """The type of each token, int32 ``[tokens]``: 1 in the second text of a pair, otherwise 0."""
    @property
    def logit_rows(self) -> TraceTensor:
        """The indices of the step's tokens that need logits, int32 ``[rows]``."""
    def tap(self, layer: int, x: TraceTensor) -> None:
        """Declare the hidden state after a layer, ``[tokens, n]``, to be read after each step (``Executor.tap``).

        Raises:
            ShapeError: It has another shape, or layers do not ascend.
        """
    @property
    def tapped_layers(self) -> list[int]: ...
    def leave_unused(self, layer: int) -> None:
        """Declare that rows of the layer are not written, as this trace needs none."""
    def show_features(self, x: TraceTensor) -> None:
        """Declare the features ``[tokens, n]`` for a head that predicts later tokens (``Executor.features``).

        Must come after all taps.  Raises ShapeError like ``tap``.
        """
    def features(self, n: int) -> TraceTensor:
        """Return the features that a head gets with each token, float32 ``[tokens, n]``.

        Raises:
            ShapeError: It is called a second time.
        """
    def finish(self, logits: TraceTensor, *, encoder: Trace | None = None) -> Trace:
        """End the trace.  ``logits`` must be ``["rows", n_vocab]``.

        ``encoder`` is the trace with the same cache that writes the layers of a source text, if there are any.
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
        """The trace for source texts, for encoder-decoder models."""
    @property
    def placed_names(self) -> set[str]:
        """The names of the weights that ``places`` of ``Executor`` may have, including an encoder's."""
    def placed_parts(
        self, places: Mapping[str, str], devices: Sequence[Device]
    ) -> list[tuple[dict[str, int], set[int], int]]:
        """Return the parts on the CPU and on each device for ``places`` of ``Executor``.

        Each part has the weights it reads with their bytes, the layers whose rows it keeps, and the bytes of a
        sequence's states.
        """
    def describe(self) -> list[str]:
        """Return one line per recorded operation."""

def embed(tokens: TraceTensor, weight: Weight) -> TraceTensor:
    """Return the rows of ``weight [n_vocab, dim]`` for the tokens: ``[tokens, dim]``."""

def linear(x: TraceTensor, weight: Weight, bias: Weight | None = None) -> TraceTensor:
    """Return ``x [n, in] @ weight [out, in].T + bias [out]``: ``[n, out]``."""

def rms_norm(x: TraceTensor, weight: Weight | None, eps: float) -> TraceTensor:
    """Apply the root-mean-square norm over the last dimension (Zhang and Sennrich 2019), times ``weight [last]``."""

def rope(x: TraceTensor, positions: TraceTensor, spec: RopeSpec) -> TraceTensor:
    """Rotate the first ``spec.n_dims`` of each head of ``x [tokens, n_head, head_dim]``."""

def attend(
    layer: int, q: TraceTensor, k: TraceTensor, v: TraceTensor, *, scale: float, soft_cap: float = 0.0,
    sinks: Weight | None = None, bias: Weight | None = None, picked: TraceTensor | None = None,
) -> TraceTensor:  # fmt: skip
    """Write k, v ``[tokens, n_kv_head, head_dim]`` to the layer's cache; attend q ``[tokens, n_head, head_dim]`` to it.

    Attention is causal, with the window of the layer's ``CacheSpec``.

    Args:
        soft_cap: c caps the scaled scores to ``c * tanh(score / c)``; 0 means no cap.
        sinks: [n_head], extra logits in the softmax.
        picked: The result of ``pick``; other tokens are not attended to.
        bias: [n_head, n], added to scores by distance: the last column for the token itself, each column before it for
            one token farther away, the first column for all beyond.

    Returns:
        ``[tokens, n_head, v_head_dim]``.
    """

def attend_latent(
    layer: int, q: TraceTensor, k: TraceTensor, *, scale: float, soft_cap: float = 0.0, sinks: Weight | None = None,
    picked: TraceTensor | None = None,
) -> TraceTensor:  # fmt: skip
    """Attend like ``attend`` in a layer with ``CacheSpec.latent``, whose values are the first ``rank`` numbers of keys.

    q ``[tokens, n_head, rank + n_rot]``, k ``[tokens, 1, rank + n_rot]``.  Returns ``[tokens, n_head, rank]``.
    """

def pick(
    layer: int, q: TraceTensor, k: TraceTensor, weights: TraceTensor, *, n_picked: int, n_ctx: int
) -> TraceTensor:  # fmt: skip
    """Pick the tokens that each row attends to (DeepSeek-AI 2025), for ``attend`` and ``attend_latent``.

    Picks those with the largest sums over heads of ``weights * max(q . k, 0)``.

    Args:
        layer: Where k is kept: a layer of its own, with ``CacheSpec.latent``.
        q: ``[tokens, n_head, head_dim]``.
        k: ``[tokens, 1, head_dim]``.
        weights: ``[tokens, n_head]``.
        n_picked: The number of tokens; rows that see no more attend to all of them.
        n_ctx: The longest context.
    """

def pick_blocks(
    layer: int, q: TraceTensor, k: TraceTensor, *, block: int, n_picked: int, n_local: int
) -> TraceTensor:  # fmt: skip
    """Pick the blocks of tokens that heads attend to (MiniMax 2026), for ``attend``; see ``Step.pick_blocks``."""

def compress(
    layer: int, kv: TraceTensor, gate: TraceTensor, bias: Weight, *, every: int, overlaps: bool
) -> TraceTensor:
    """Make one row of each ``every`` tokens (DeepSeek-AI 2026): the mean of kv, weighed by ``softmax(gate + bias)``.

    kv, gate ``[tokens, n]`` are kept by ``layer`` as K and V of one head, with a window of ``every`` tokens; bias
    ``[every, n]``.  ``overlaps``: the second half of rows takes part in the mean, and the first in the next one; the
    window is twice as long.  Returns ``[tokens, n]`` (or n / 2): the means in the rows of each ``every``-th token.
    """

def attend_compressed(
    local: int, compressed: int, q: TraceTensor, k: TraceTensor, rows: TraceTensor, *, scale: float,
    sinks: Weight | None = None, picked: TraceTensor | None = None,
) -> TraceTensor:  # fmt: skip
    """Attend to the last tokens, and to earlier ones by compressed rows; keys are values.

    q ``[tokens, n_head, head_dim]``; layer ``local`` keeps k ``[tokens, 1, head_dim]``, with a window, ``compressed``
    the rows ``[tokens, head_dim]`` of ``compress`` (``CacheSpec.latent`` with ``every``).  ``picked``: from ``pick``.
    """

def attend_pools(
    layer: int, q: TraceTensor, k: TraceTensor, picked: TraceTensor, *, every: int, scale: float
) -> TraceTensor:
    """Attend to the tokens of picked pools of ``every`` tokens, and to those after the last whole pool.

    q ``[tokens, n_head, head_dim]``; the layer keeps k ``[tokens, 1, head_dim]``, which are values too.  ``picked``: by
    ``pick`` from rows that ``every`` tokens share (``compress``).
    """

def attend_to_written(
    layer: int, q: TraceTensor, *, scale: float, soft_cap: float = 0.0, sinks: Weight | None = None,
    bias: Weight | None = None, picked: TraceTensor | None = None,
) -> TraceTensor:  # fmt: skip
    """Attend q to the rows that ``attend`` has written to a layer's cache in this step, otherwise like ``attend``.

    For a layer that keeps the rows of a source it is cross attention to all rows that ``write_source`` has written.
    """

def write_source(layer: int, k: TraceTensor, v: TraceTensor) -> None:
    """Write K and V ``[tokens, n_kv_head, head_dim]`` of an encoder's rows to a layer ``of_source``."""

def attend_rows(
    q: TraceTensor, k: TraceTensor, v: TraceTensor, *, scale: float, soft_cap: float = 0.0, window: int = 0,
    bias: Weight | None = None, related: TraceTensor | None = None,
) -> TraceTensor:  # fmt: skip
    """Attend in both directions among the rows of each sequence, without a cache, so prompts are not divided.

    Args:
        window: w limits rows to w // 2 positions on either side; 0 means no limit.
        bias: [n_head, n], like in ``attend``, its middle column for the token itself; or ``related``: by ``relate``.
    """

def relate(by_row: TraceTensor, by_token: TraceTensor, *, buckets: Sequence[int], n_ctx: int) -> TraceTensor:
    """Return ``[tokens, n_head, n_ctx]`` for ``attend_rows``; see ``Step.relate``."""

def glu(gate: TraceTensor, up: TraceTensor, activation: Activation) -> TraceTensor:
    """Return ``activation(gate) * up`` (Shazeer 2020)."""

def activate(x: TraceTensor, activation: Activation) -> TraceTensor:
    """Return ``activation(x)``, elementwise."""

def soft_cap(x: TraceTensor, cap: float) -> TraceTensor:
    """``cap * tanh(x / cap)``."""

def select_rows(x: TraceTensor, rows: TraceTensor) -> TraceTensor:
    """Select rows: ``[tokens, n]`` to ``["rows", n]``."""

def reshape(x: TraceTensor, rest: Sequence[int]) -> TraceTensor:
    """Reshape a row to 1 to 3 dimensions after the first one."""

def head_linear(x: TraceTensor, weight: Weight) -> TraceTensor:
    """Multiply ``x [tokens, h, n_in]`` by ``weight [h, n_out, n_in]``, each head by its own matrix."""

@final
class MoeSpec:
    """The routing of a mixture of experts, and the function between an expert's matrices.

    Args:
        n_used: The number of experts per token.
        gating: ``"softmax"`` over all experts, ``"sigmoid"`` of each score, ``"sqrt_softplus"`` of each score (the
            square root of ``log(1 + exp(score))``), ``"softmax_of_chosen"`` (gpt-oss), ``"sigmoid_of_chosen"``, which
            adds the selection bias to the scores themselves, or ``"sparse_mixer"``, a softmax for each chosen expert
            over the remaining ones whose scores are within 2 % of its own (Liu et al. 2024).
        normalize: Divide the weights of the chosen experts by their sum.
        scale: A factor for the weights.
        n_group, n_group_used: Only experts of the ``n_group_used`` best of ``n_group`` groups are chosen.
        group_score: The score of a group.
        unit: ``"gated"`` is ``activation(gate) * up``, ``"clamped_swiglu"`` that of gpt-oss with ``alpha`` and
            ``limit``, ``"clipped"`` ``min(activation(gate), limit) * clamp(up, -limit, limit)``, ``"clamped"`` the same
            with ``activation(min(gate, limit))``, ``"tanh_capped"`` ``soft_cap(gate, alpha) * sigmoid(gate) *
            soft_cap(up, limit)``, ``"ungated"`` ``activation(up)``.
        is_squared: Square the result of ``"ungated"``.
        weighs_input: Weights multiply the experts' inputs instead of their outputs (Llama 4).
    """

    def __init__(
        self, *, n_used: int, activation: Activation = "silu",
        gating: Literal[
            "softmax", "sigmoid", "softmax_of_chosen", "sigmoid_of_chosen", "sparse_mixer", "sqrt_softplus"
        ] = "softmax",
        normalize: bool = True, scale: float = 1.0, n_group: int = 1, n_group_used: int = 1,
        group_score: Literal["largest", "two_largest"] = "two_largest",
        unit: Literal["gated", "clamped_swiglu", "clipped", "clamped", "tanh_capped", "ungated"] = "gated",
        is_squared: bool = False, alpha: float = 1.702, limit: float = 7.0, weighs_input: bool = False,
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
    chosen: TraceTensor | None = None,
) -> TraceTensor:
    """Apply a mixture of experts.

    Args:
        x: ``[tokens, dim]``.
        scores: The router's scores ``[tokens, n_expert]``.
        gate, up: ``[n_expert, ffn, dim]``.
        down: ``[n_expert, dim, ffn]``.
        selection_bias: ``[n_expert]``, added to the scores for choosing experts, but not to their weights.
        expert_scale: ``[n_expert]``, factors for the weights.
        gate_bias, up_bias, down_bias: ``[n_expert, n_out]``.
        chosen: ``[tokens, n_used]``, the numbers of each token's experts, instead of those with the best scores.
    """

@final
class AdapterPair:
    """An adapter's change of one matrix; see ``quire.checkpoints.conversion.adapter_pairs.Pair``."""

    def __init__(
        self,
        matrix: str,
        a: Tensor | None,
        b: Tensor,
        factor: float,
        *,
        is_table: bool = False,
        bias: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> None: ...

@final
class LowRankAdapter:
    """A low-rank adapter (Hu et al. 2021, "LoRA") in the form that an executor's steps read; immutable."""

    @property
    def identity(self) -> bytes: ...
    @property
    def size_bytes(self) -> int: ...

class ExecutorBase:
    """The base class of executors, which run a decoder's steps."""

@final
class PackedCache:
    """A folder of files with packed weights of models, found by their source.

    Args:
        source: ``Reader.identity`` of the model's file, to avoid hashing an unchanged file again; "" always hashes.
        load: How a packed file is loaded.
        source_is_mapped: The matrices are in a mapped file, whose pages are released after hashing.
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
    """A traced model on a device with its cache store.  Use it from one thread at a time.

    Quire's own kernels run one program for all sizes.  For ggml's kernels the largest graph is built here, and each
    other one when a step first has its sizes.

    Args:
        kernels: ``"auto"`` for Quire's own kernels if the device is the CPU, ``"stock"`` for ggml's only (the reference
            for tests), ``"cpu"`` for Quire's own.
        repack: If weights are packed for Quire's matrix products, on machines with kernels for that: ``"release"`` also
            returns the memory of the original tensors to the system, which must not be read again; ``"lock"`` does that
            and locks the packed ones in memory.
        cpus: Logical processors that the threads of Quire's kernels may use, including the thread that calls ``run``;
            empty for any.
        packed_cache: Keeps packed weights for the next start.
        kernel_set: Instruction set and determinism of Quire's kernels; None for the defaults.
        cache_bytes: Bytes for the blocks of all groups together, if less than ``n_blocks`` of each (windows need
            fewer); 0 for ``n_blocks`` of each.
        sums_inputs: Accumulate the inputs of matrix products for ``input_sums``; only with ggml's kernels on the CPU.
        team_of: An executor whose threads and packed matrices this one shares, if both use Quire's kernels.  They must
            not run at the same time.
        places: The place of each weight: ``"cpu"``, ``"device"``, or ``"device1"`` and so on for ``more_devices``.  An
            operation runs where its matrices are (on the CPU if they are in two places), one without matrices where
            its inputs are; inputs from elsewhere are copied.  Quire's kernels run the CPU's part.  Each place keeps
            the cache rows of its layers; recurrent states are on the CPU.  Empty: everything runs on ``device``.

    Raises:
        UnsupportedError: ``cpus`` or ``kernel_set`` with ggml's kernels, which have their own threads.
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
        """Return the ``device_bytes`` that such an executor would have, and the bytes of values on the CPU.

        No memory is taken; the CPU's bytes are for weights that are not packed.  Raises the executor's errors, except
        CapacityError.
        """
    def adapter(self, identity: bytes, pairs: Sequence[AdapterPair]) -> LowRankAdapter:
        """Return an adapter for requests.  UnsupportedError or ShapeError if it does not fit the model; thread-safe."""
    def keep_adapters_within(self, size_bytes: int) -> None: ...
    @property
    def adapter_bytes(self) -> int: ...
    @property
    def n_vocab(self) -> int: ...
    @property
    def n_hidden(self) -> int:
        """The size of the hidden states before the logits, or of an encoder's vectors; 0 if they are not available."""
    @property
    def tapped_layers(self) -> list[int]:
        """The layers that ``tap`` supports, ascending."""
    def tap(self, layer: int, n_rows: int) -> npt.NDArray[np.float32]:
        """Return hidden states ``[n_rows, n]`` after a layer, of the last step's first rows.  Raises ShapeError."""
    @property
    def n_features(self) -> int:
        """The number of features per row for a head; 0 if the model has none."""
    @property
    def n_features_read(self) -> int:
        """The number of features that a head reads per token; 0 for other models."""
    def features(self, n_rows: int) -> npt.NDArray[np.float32]:
        """Return the features ``[n_rows, n_features]`` of the last step's first rows.  Raises ShapeError."""
    @property
    def makes_logits(self) -> bool:
        """True if the trace ends with logits; otherwise ``run`` returns vectors."""
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
        """The kernels in use."""

    @property
    def kernel_set(self) -> KernelSet | None:
        """The kernel set, None if the model runs with ggml's kernels."""
    @property
    def threads(self) -> int: ...
    @property
    def packed_from_cache(self) -> bool:
        """True if the packed weights were loaded from the cache."""
    @property
    def packed_cache_notes(self) -> list[str]:
        """Problems with the cache, one line each: a file that was ignored or could not be written."""
    @property
    def memory_bytes(self) -> dict[str, int]:
        """Bytes by use: ``cache``, ``compute``, and ``packed`` for packed weights."""
    @property
    def device_bytes(self) -> list[dict[str, int]]:
        """The bytes of ``weights``, ``cache`` and ``compute`` (buffers of steps) on each device, and the ``free`` and
        ``total`` it reports; [] if the whole model runs with Quire's kernels."""
    @property
    def n_pieces(self) -> int:
        """The number of pieces of the trace that a step runs in order: 1, or more with ``places``."""
    @property
    def n_graphs(self) -> int: ...
    def input_sums(self) -> dict[str, tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]]:
        """Return, by name of a matrix, sums of squares ``[n_matrix, n_in]`` and counts of the rows that it multiplied.

        Must not be called during a step.
        """
    @property
    def stock_operations(self) -> list[str]:
        """Operations without a kernel in Quire, which ggml's operators compute inside the program."""
    @property
    def n_nodes(self) -> int:
        """The number of nodes in the program of Quire's kernels; 0 with stock kernels."""
    def run(
        self, tokens: Sequence[int], *, positions: Sequence[int], slots: Sequence[int], logit_rows: Sequence[int],
        row_begin: Sequence[int], n_kv: Sequence[int], tables: Sequence[Sequence[int]], states: Sequence[int] = (),
        axes: Sequence[int] = (), token_types: Sequence[int] = (), source_tables: Sequence[Sequence[int]] = (),
        n_source: Sequence[int] = (), features: npt.NDArray[np.float32] | None = None, likeliest: Sequence[int] = (),
        last_visible: Sequence[int] = (),
    ) -> npt.NDArray[np.float32]:  # fmt: skip
        """Run one step (for tests) and return the logits ``[len(logit_rows), n_vocab]``.

        Args:
            features: ``[tokens, n]``, the features of a head's tokens.
            likeliest: The number of most likely tokens needed per row, 0 for all; other logits may be -inf.
            axes: The tokens' positions in time, then in height, then in width; empty for their positions in all three.
            source_tables: The block tables of each sequence's source.
            n_source: The rows of each sequence's source.
            last_visible: The last position that each token attends to in layers with bidirectional media; empty for
                its own.
        """
    def copy_block(self, group: int, from_block: int, to_block: int) -> None:
        """Copy one block of a group's layers to another (for tests)."""
    def encode(
        self,
        tokens: Sequence[int],
        *,
        slots: Sequence[int],
        row_begin: Sequence[int],
        tables: Sequence[Sequence[int]],
    ) -> None:
        """Encode whole source texts, writing their rows to ``slots`` (for tests)."""
    def maxima(self, n_rows: int) -> npt.NDArray[np.float32] | None:
        """Return the largest of every 64 logits of the last step's first ``n_rows`` logit rows (for tests).

        Shape ``[n_rows, (n_vocab + 63) // 64]``, NaN if a logit is not finite; None if they are not kept.
        """

def plan_memory(values: Sequence[tuple[int, int, int]]) -> tuple[list[int], int]:
    """Return offsets for values ``(size_bytes, first, last)`` in one buffer, and its size (for tests).

    Values whose lifetimes (including ``last``) intersect do not overlap.
    """

def packed_row_bytes(dtype: DType | str, n: int) -> int:
    """Return the bytes of a packed row of n values, in the type itself or an equivalent one."""

def cache_bytes_per_block(cache: Sequence[CacheSpec], kv_dtype: str) -> int:
    """Return the bytes of one block of tokens in the caches of all layers."""

# Standalone operations (native/graph/trace/standalone_operations.h).  Axes count from the last dimension, 0.
STANDALONE: tuple[str, ...]
"""The names of all that follow (for tests)."""

def sigmoid(x: TraceTensor) -> TraceTensor:
    """Return ``1 / (1 + exp(-x))``."""

def softplus(x: TraceTensor) -> TraceTensor:
    """Return ``log(1 + exp(x))``."""

def tanh(x: TraceTensor) -> TraceTensor:
    """Return the hyperbolic tangent."""

def exp(x: TraceTensor) -> TraceTensor:
    """Return ``e ** x``."""

def relu_squared(x: TraceTensor) -> TraceTensor:
    """Return ``max(x, 0) ** 2``."""

def quick_gelu(x: TraceTensor) -> TraceTensor:
    """Return ``x * sigmoid(1.702 * x)``."""

def negate(x: TraceTensor) -> TraceTensor:
    """Return ``-x``."""

def sqrt(x: TraceTensor) -> TraceTensor:
    """Return the square root of each number, none of which may be negative."""

def clamp(x: TraceTensor, low: float, high: float) -> TraceTensor:
    """Return ``min(max(x, low), high)``."""

def xielu(x: TraceTensor, *, alpha_p: float, alpha_n: float, beta: float, eps: float) -> TraceTensor:
    """Apply the expanded integral of ELU (Huang and Schlag 2025); ``alpha_n`` includes ``beta``."""

def clamped_swiglu(gate: TraceTensor, up: TraceTensor, *, alpha: float, limit: float) -> TraceTensor:
    """Return ``g * sigmoid(alpha * g) * (clamp(up, -limit, limit) + 1)`` with ``g = min(gate, limit)`` (gpt-oss)."""

def add_broadcast(a: TraceTensor, b: TraceTensor) -> TraceTensor:
    """Return ``a + b``, repeating dimensions of 1 in ``b``."""

def multiply_broadcast(a: TraceTensor, b: TraceTensor) -> TraceTensor:
    """Return ``a * b``, repeating dimensions of 1 in ``b``."""

def add_weight(x: TraceTensor, weight: Weight) -> TraceTensor:
    """Return ``x + weight`` for a float32 weight with the last dimensions of ``x``, repeating dimensions of 1."""

def multiply_weight(x: TraceTensor, weight: Weight) -> TraceTensor:
    """Return ``x * weight``, with weights like in ``add_weight``."""

def layer_norm(x: TraceTensor, weight: Weight | None, bias: Weight | None, eps: float) -> TraceTensor:
    """Apply the layer norm over the last dimension (Ba, Kiros and Hinton 2016)."""

def l2_norm(x: TraceTensor, eps: float) -> TraceTensor:
    """Return ``x / max(|x|, eps)`` over the last dimension."""

def softmax(x: TraceTensor) -> TraceTensor:
    """Return the softmax over the last dimension."""

def group_norm(x: TraceTensor, n_groups: int, weight: Weight | None, eps: float) -> TraceTensor:
    """Apply the root-mean-square norm to each of ``n_groups`` parts of a row ``[tokens, n]``, with ``weight [n]``."""

def slice(x: TraceTensor, axis: int, begin: int, end: int) -> TraceTensor:
    """Return elements ``begin:end`` of an axis."""

def concat(a: TraceTensor, b: TraceTensor, axis: int) -> TraceTensor:
    """Concatenate along an axis."""

def repeat_heads(x: TraceTensor, n: int) -> TraceTensor:
    """Repeat each head ``n`` times: ``[tokens, h, d]`` to ``[tokens, h * n, d]``."""

def scale_by_position(
    x: TraceTensor, positions: TraceTensor, *, beta: float, n_ctx: int, offset: int = 0
) -> TraceTensor:
    """Return ``x * (1 + beta * log(1 + floor((position + offset) / n_ctx)))``."""

def conv_state(
    x: TraceTensor, weight: Weight, bias: Weight | None, *, layer: int, state: int, silu: bool = False
) -> TraceTensor:
    """Apply a depthwise causal convolution to ``x [tokens, channels]`` with a float32 ``weight [channels, kernel]``.

    Its last ``kernel - 1`` inputs are the layer's state with index ``state``: ``(kernel - 1) * channels`` numbers.
    """

def hyper_weights(x: TraceTensor, scale: Weight, base: Weight, *, n: int, iterations: int, eps: float) -> TraceTensor:
    """Return the weights of hyper-connections with ``n`` streams (Xie et al. 2026), from ``x [rows, 2 n + n * n]``.

    With ``a = x * scale + base``: ``sigmoid(a) + eps`` of a layer's input, ``2 * sigmoid(a)`` of its output, and the
    mix ``[n, n]``, softmax over rows plus ``eps``, whose columns, then rows and columns, are divided by their sums.
    """

def hyper_input(streams: TraceTensor, weights: TraceTensor) -> TraceTensor:
    """Return the sum of ``streams [rows, n, dim]`` by the first ``n`` of ``weights``: ``[rows, dim]``."""

def hyper_output(streams: TraceTensor, y: TraceTensor, weights: TraceTensor) -> TraceTensor:
    """Return stream k after a layer: ``y [rows, dim]`` by its weight, plus the sum of streams j by ``mix[j, k]``."""

def token_shift(x: TraceTensor, *, layer: int, state: int) -> TraceTensor:
    """Return the previous row of ``x [tokens, n]``, zero at the start of a sequence; the state has ``n`` numbers."""

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
    """Apply ``h = exp(dt * a) * h + dt * x * b``, ``y = h . c + d * x`` (Mamba 1).

    ``x``, ``dt [tokens, channels]``; ``b``, ``c [tokens, n_state]``; float32 ``a [channels, n_state] <= 0``, ``d``.
    """

def state_space_dual(
    x: TraceTensor, dt: TraceTensor, b: TraceTensor, c: TraceTensor, a: Weight, d: Weight | None, *, layer: int,
    state: int,
) -> TraceTensor:  # fmt: skip
    """Apply the scan of ``selective_scan`` with one decay per head (Mamba 2).

    ``x [tokens, n_head, head_dim]``; ``dt [tokens, n_head]``; ``b``, ``c [tokens, n_group, n_state]``; float32 ``a``,
    ``d [n_head]``.  The state has ``n_head * n_state * head_dim`` numbers; ``n_state`` is 256 at most.
    """

def retention(q: TraceTensor, k: TraceTensor, v: TraceTensor, decay: Weight, *, layer: int, state: int) -> TraceTensor:
    """Apply ``S = exp(decay) S + k v``, ``out = q S``: linear attention with decay (Sun et al. 2023).

    ``q``, ``k [tokens, n_key_head, n_key]``; ``v [tokens, n_head, n_value]``; ``decay [n_head]``, at most 0, float32.
    The state has ``n_head * n_key * n_value`` numbers; ``n_key`` is 256 at most.
    """

def gated_delta(
    q: TraceTensor, k: TraceTensor, v: TraceTensor, g: TraceTensor, beta: TraceTensor, *, layer: int, state: int,
    tiled: bool = False,
) -> TraceTensor:  # fmt: skip
    """Apply ``S = exp(g) S``, ``S += k (beta * (v - k S))``, ``out = q S`` (gated delta rule; with ``g`` by key, KDA).

    ``q``, ``k [tokens, n_key_head, n_key]``; ``v [tokens, n_head, n_value]``; ``g [tokens, n_head]`` or
    ``[tokens, n_head, n_key]``, at most 0; ``beta [tokens, n_head]``.  Neighbouring heads share a key head, or with
    ``tiled`` head h uses key head ``h % n_key_head``.  The caller scales and norms ``q``
    and ``k``.  The state has ``n_head * n_key * n_value`` numbers; ``n_key <= 256``.
    """

def wkv6(
    r: TraceTensor, w: TraceTensor, k: TraceTensor, v: TraceTensor, u: Weight, *, layer: int, state: int
) -> TraceTensor:
    """Apply ``out = r S + (r . (u * k)) v``, ``S = exp(w) S + k v`` (RWKV-6).

    ``r``, ``w``, ``k [tokens, n_head, n_key]``; ``v [tokens, n_head, n_value]``; ``u [n_head, n_key]``; ``w <= 0``.
    """

def wkv7(
    r: TraceTensor, w: TraceTensor, k: TraceTensor, v: TraceTensor, a: TraceTensor, b: TraceTensor, *, layer: int,
    state: int,
) -> TraceTensor:  # fmt: skip
    """Apply ``S = exp(w) S + k v + b (a S)``, ``out = r S`` (RWKV-7), with shapes and state like ``wkv6``."""
