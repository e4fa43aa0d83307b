"""Every operation that a trace can have, with inputs as models have them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .._native import graph
from .._native.core import DType
from .._native.graph import CacheSpec, MoeSpec, RopeSpec, TraceTensor
from .bench import BLOCKS, FAR_BLOCK, N_TOKENS, Bench

__all__ = ["CPU_ONLY", "OPERATIONS", "OperationCase"]

# Tolerances of deviations.  Devices multiply in FP16, or in 8 bits if a weight is quantized, and so does the CPU.  Two
# products in a row round twice.
ELEMENTS, PRODUCTS, QUANTIZED, CHAINED = 1e-3, 5e-3, 2.5e-2, 4e-2
Build = Callable[[Bench], TraceTensor]
_ROWS = CacheSpec(n_kv_head=2, head_dim=64)
CPU_ONLY = {"compress", "attend_compressed", "attend_pools", "pick_blocks"}  # operations that no device has


@dataclass(frozen=True)
class OperationCase:
    """``operation``: its name in ``quire._native.graph``.  ``cache``: that of its layers.

    ``blocks``: see ``Bench``.
    """

    operation: str
    build: Build
    tolerance: float = ELEMENTS
    cache: tuple[CacheSpec, ...] = ()
    variant: str = ""
    blocks: tuple[int, int] = BLOCKS

    @property
    def name(self) -> str:
        return f"{self.operation} {self.variant}".strip()


def _rope(layout: str, **options: float) -> Build:
    def build(bench: Bench) -> TraceTensor:
        spec = RopeSpec(n_dims=32, layout=layout, freq_base=1e4, **options)  # type: ignore[arg-type]
        return graph.rope(bench.value(4, 64), bench.tracer.positions, spec)

    return build


def _qkv(bench: Bench) -> tuple[TraceTensor, TraceTensor, TraceTensor]:
    return bench.value(4, 64), bench.value(2, 64), bench.value(2, 64)


def _attend(*, soft_cap: float = 0.0, sinks: bool = False, bias: bool = False) -> Build:
    def build(bench: Bench) -> TraceTensor:
        q, k, v = _qkv(bench)
        return graph.attend(
            0, q, k, v, scale=0.125, soft_cap=soft_cap, sinks=bench.weight(4) if sinks else None,
            bias=bench.weight(4, 5) if bias else None,
        )  # fmt: skip

    return build


def _heads_of_products(bench: Bench) -> TraceTensor:
    """Return attention as in models: eight query heads and two key heads of the same rows, normalized and rotated."""
    x = bench.value(512)
    q, k, v = (graph.linear(x, bench.weight(n * 128, 512, low=-0.1, high=0.1)).heads(n) for n in (8, 2, 2))
    spec = RopeSpec(n_dims=128, layout="half", freq_base=1e4)
    q, k = (graph.rope(graph.rms_norm(h, bench.weight(128), 1e-6), bench.tracer.positions, spec) for h in (q, k))
    return graph.attend(0, q, k, v, scale=0.09)


def _gated_products(dtype: str) -> Build:
    def build(bench: Bench) -> TraceTensor:
        x = bench.value(512)
        h = graph.rms_norm(x, bench.weight(512), 1e-6)
        gate, up = (graph.linear(h, bench.weight(768, 512, low=-0.1, high=0.1, dtype=dtype)) for _ in range(2))
        return graph.linear(graph.glu(gate, up, "silu"), bench.weight(512, 768, low=-0.1, high=0.1, dtype=dtype)) + x

    return build


def _relate(bench: Bench) -> TraceTensor:
    q, k, v = (bench.value(4, 64) for _ in range(3))
    # The embedding's row of each distance; tokens more than eight away share those at the ends.
    buckets = [min(max(8 - away, 0), 16) for away in range(-N_TOKENS, N_TOKENS + 1)]
    related = graph.relate(bench.value(4, 17), bench.value(4, 17), buckets=buckets, n_ctx=N_TOKENS)
    return graph.attend_rows(q, k, v, scale=0.125, related=related)


def _attend_to_written(bench: Bench) -> TraceTensor:
    q, k, v = _qkv(bench)
    return graph.attend(0, q, k, v, scale=0.125) + graph.attend_to_written(0, bench.value(4, 64), scale=0.125)


def _attend_to_picked(bench: Bench) -> TraceTensor:
    q, k, v = _qkv(bench)
    # Scores differ widely, and none is zero: of equal ones each kernel picks another.
    index_q, index_k = bench.value(3, 32, low=1.0, high=1.0), bench.value(1, 32, low=0.1)
    picked = graph.pick(1, index_q, index_k, bench.value(3, low=0.5), n_picked=3, n_ctx=64)
    return graph.attend(0, q, k, v, scale=0.125, picked=picked)


def _write_source(bench: Bench) -> TraceTensor:
    def write(encoder: Bench) -> TraceTensor:
        x, k, v = _qkv(encoder)
        graph.write_source(1, k, v)
        return x

    bench.encode(write)
    q, k, v = _qkv(bench)
    return graph.attend(0, q, k, v, scale=0.125) + graph.attend_to_written(1, bench.value(4, 64), scale=0.125)


def _moe(
    unit: str = "gated", gating: str = "softmax", dtype: str = "f32", *, bias: bool = False, **options: object
) -> Build:
    def build(bench: Bench) -> TraceTensor:
        spec = MoeSpec(n_used=2, unit=unit, gating=gating, **options)  # type: ignore[arg-type]
        x, scores = bench.value(64), bench.value(6)

        def matrix(n_out: int, n_in: int) -> graph.Weight:
            return bench.weight(6, n_out, n_in, low=-0.2, high=0.2, dtype=dtype)

        gate = None if unit == "ungated" else matrix(96, 64)
        up, down = matrix(96, 64), matrix(64, 96)
        biases: dict[str, Any] = (
            {name: bench.weight(6, n) for name, n in (("gate_bias", 96), ("up_bias", 96), ("down_bias", 64))}
            if bias
            else {}
        )
        return graph.moe(x, scores, gate, up, down, spec, **biases)

    return build


def _linear(dtype: str) -> Build:
    # Not a multiple of 512, to which some devices pad the rows of quantized types.
    return lambda bench: graph.linear(bench.value(768), bench.weight(48, 768, low=-0.1, high=0.1, dtype=dtype))


def _embed(dtype: str) -> Build:
    return lambda bench: graph.embed(bench.tracer.tokens, bench.weight(32, 256, dtype=dtype))


def _with_state(n: int) -> tuple[CacheSpec, ...]:
    return (CacheSpec(states=[("state", n)]),)


def _ssd(bench: Bench) -> TraceTensor:
    x, dt = bench.value(4, 16), bench.value(4, low=0.0, high=1.0)
    b, c = bench.value(2, 128, low=-0.5, high=0.5), bench.value(2, 128, low=-0.5, high=0.5)
    return graph.state_space_dual(x, dt, b, c, bench.weight(4, low=-2.0, high=-0.01), None, layer=0, state=0)


def _scan(bench: Bench) -> TraceTensor:
    x, dt, b, c = bench.value(128), bench.value(128, low=0.0, high=1.0), bench.value(16), bench.value(16)
    a, d = bench.weight(128, 16, low=-3.0, high=-0.01), bench.weight(128)
    return graph.selective_scan(x, dt, b, c, a, d, layer=0, state=0)


def _retention(bench: Bench) -> TraceTensor:
    q, k, v = bench.value(4, 128), bench.value(4, 128, low=-0.5, high=0.5), bench.value(4, 16)
    return graph.retention(q, k, v, bench.weight(4, low=-1.0, high=-0.1), layer=0, state=0)


def _delta(*, by_key: bool = False, tiled: bool = False) -> Build:
    def build(bench: Bench) -> TraceTensor:
        q, k, v = bench.value(2, 32), bench.value(2, 32, low=-0.15, high=0.15), bench.value(4, 32)
        g = bench.value(4, 32, low=-1.0, high=0.0) if by_key else bench.value(4, low=-1.0, high=0.0)
        beta = bench.value(4, low=0.0, high=1.0)
        return graph.gated_delta(q, k, v, g, beta, layer=0, state=0, tiled=tiled)

    return build


def _wkv6(bench: Bench) -> TraceTensor:
    r, w, k, v = bench.value(2, 64), bench.value(2, 64, low=-1.0, high=0.0), bench.value(2, 64), bench.value(2, 64)
    return graph.wkv6(r, w, k, v, bench.weight(2, 64), layer=0, state=0)


def _wkv7(bench: Bench) -> TraceTensor:
    r, w, k, v = bench.value(2, 64), bench.value(2, 64, low=-1.0, high=-0.2), bench.value(2, 64), bench.value(2, 64)
    a, b = bench.value(2, 64, low=-0.1, high=0.1), bench.value(2, 64, low=-0.1, high=0.1)
    return graph.wkv7(r, w, k, v, a, b, layer=0, state=0)


def _of_one(name: str, **options: float) -> OperationCase:
    return OperationCase(name, lambda bench: getattr(graph, name)(bench.value(3, 32), **options))


def _quantized_types() -> list[str]:
    """Return the types of matrices in files that need no calibration to make."""
    return [
        str(t)
        for t in DType.all()
        if t.is_quantized and str(t) not in ("q8_1", "q8_k") and not str(t).startswith(("iq1", "iq2"))
    ]


_FUSED = [
    OperationCase("embed", _embed("f32"), variant="f32"),
    OperationCase("embed", _embed("f16"), variant="f16"),
    OperationCase("embed", _embed("q8_0"), variant="q8_0"),
    *(OperationCase("linear", _linear(t), PRODUCTS, variant=t) for t in ("f32", "f16", "bf16")),
    *(OperationCase("linear", _linear(t), QUANTIZED, variant=t) for t in _quantized_types()),
    *(OperationCase("linear", _gated_products(t), CHAINED, variant=f"norm and gate {t}") for t in ("q4_k", "q6_k")),
    OperationCase("linear", lambda b: graph.linear(b.value(64), b.weight(48, 64), b.weight(48)), PRODUCTS, (), "bias"),
    OperationCase("rms_norm", lambda b: graph.rms_norm(b.value(96), b.weight(96), 1e-5)),
    OperationCase("rms_norm", lambda b: graph.rms_norm(b.value(3, 32), None, 1e-5), variant="heads"),
    OperationCase("rope", _rope("half"), variant="half"),
    OperationCase("rope", _rope("interleaved"), variant="interleaved"),
    OperationCase("rope", _rope("half", freq_scale=0.25, ext_factor=1.0, n_ctx_orig=64), variant="yarn"),
    OperationCase("rope", _rope("interleaved", inverse=True), variant="inverse"),
    OperationCase("rope", _rope("interleaved", behind=3), variant="behind"),
    OperationCase("attend", _attend(), PRODUCTS, (_ROWS,)),
    OperationCase("attend", _attend(), PRODUCTS, (CacheSpec(n_kv_head=2, head_dim=64, window=3),), "window"),
    OperationCase("attend", _attend(soft_cap=2.0), PRODUCTS, (_ROWS,), "soft cap"),
    OperationCase("attend", _attend(sinks=True), PRODUCTS, (_ROWS,), "sinks"),
    OperationCase("attend", _attend(bias=True), PRODUCTS, (_ROWS,), "bias"),
    OperationCase("attend", _attend(), PRODUCTS, (_ROWS,), "copied blocks", (1, FAR_BLOCK)),
    OperationCase("attend", _attend(), PRODUCTS, (_ROWS,), "stretch of the pool", (FAR_BLOCK, FAR_BLOCK + 1)),
    OperationCase("attend", _heads_of_products, PRODUCTS, (CacheSpec(n_kv_head=2, head_dim=128),), "heads of products"),
    OperationCase("attend_to_written", _attend_to_written, PRODUCTS, (_ROWS,)),
    OperationCase(
        "write_source", _write_source, PRODUCTS, (_ROWS, CacheSpec(n_kv_head=2, head_dim=64, of_source=True)),
    ),
    OperationCase(
        "attend_latent", lambda b: graph.attend_latent(0, b.value(4, 80), b.value(1, 80), scale=0.1), PRODUCTS,
        (CacheSpec.latent(rank=64, n_rot=16),),
    ),
    OperationCase("pick", _attend_to_picked, PRODUCTS, (_ROWS, CacheSpec.latent(rank=31, n_rot=1))),
    OperationCase("attend_rows", lambda b: graph.attend_rows(*_qkv(b), scale=0.125), PRODUCTS),
    OperationCase("attend_rows", lambda b: graph.attend_rows(*_qkv(b), scale=0.125, window=4), PRODUCTS, (), "window"),
    OperationCase("relate", _relate, PRODUCTS),
    *(
        OperationCase("glu", lambda b, a=a: graph.glu(b.value(96), b.value(96), a), variant=a)  # type: ignore[misc]
        for a in ("silu", "gelu", "gelu_tanh", "relu")
    ),
    *(
        OperationCase("activate", lambda b, a=a: graph.activate(b.value(96), a), variant=a)  # type: ignore[misc]
        for a in ("silu", "gelu", "gelu_tanh", "relu")
    ),
    OperationCase("soft_cap", lambda b: graph.soft_cap(b.value(96), 1.5)),
    OperationCase("select_rows", lambda b: b.value(96) * 2.0),
    OperationCase("moe", _moe(), PRODUCTS),
    OperationCase("moe", _moe(gating="sigmoid", scale=2.0), PRODUCTS, variant="sigmoid"),
    OperationCase("moe", _moe("clamped_swiglu", "softmax_of_chosen", bias=True), PRODUCTS, variant="clamped_swiglu"),
    OperationCase("moe", _moe("ungated", activation="relu", is_squared=True), PRODUCTS, variant="ungated"),
    OperationCase("moe", _moe("clamped", "sqrt_softplus"), PRODUCTS, variant="clamped"),
    OperationCase("moe", _moe("tanh_capped", "sigmoid"), PRODUCTS, variant="tanh_capped"),
    OperationCase("moe", _moe(dtype="q8_0"), QUANTIZED, variant="q8_0"),
]  # fmt: skip


def _hyper_weights(bench: Bench) -> TraceTensor:
    return graph.hyper_weights(bench.value(24), bench.weight(3), bench.weight(24), n=4, iterations=20, eps=1e-6)


_STANDALONE = [
    OperationCase("hyper_weights", _hyper_weights),
    OperationCase("hyper_input", lambda b: graph.hyper_input(b.value(4, 32), b.value(24))),
    OperationCase("hyper_output", lambda b: graph.hyper_output(b.value(4, 32), b.value(32), b.value(24))),
    *map(_of_one, ("sigmoid", "softplus", "tanh", "exp", "relu_squared", "quick_gelu", "negate")),
    OperationCase("sqrt", lambda b: graph.sqrt(graph.relu_squared(b.value(96)))),
    _of_one("clamp", low=-0.5, high=1.0),
    _of_one("xielu", alpha_p=0.8, alpha_n=1.3, beta=0.5, eps=-1e-6),
    _of_one("l2_norm", eps=1e-6),
    _of_one("softmax"),
    OperationCase("clamped_swiglu", lambda b: graph.clamped_swiglu(b.value(96), b.value(96), alpha=1.702, limit=1.1)),
    OperationCase("add_broadcast", lambda b: graph.add_broadcast(b.value(3, 32), b.value(3, 1))),
    OperationCase("multiply_broadcast", lambda b: graph.multiply_broadcast(b.value(3, 32), b.value(1, 32))),
    OperationCase("add_weight", lambda b: graph.add_weight(b.value(3, 32), b.weight(32))),
    OperationCase("multiply_weight", lambda b: graph.multiply_weight(b.value(3, 32), b.weight(3, 32))),
    OperationCase("layer_norm", lambda b: graph.layer_norm(b.value(96), b.weight(96), b.weight(96), 1e-5)),
    OperationCase("group_norm", lambda b: graph.group_norm(b.value(96), 3, b.weight(96), 1e-5)),
    OperationCase("slice", lambda b: graph.slice(b.value(3, 32), 0, 4, 28)),
    OperationCase("concat", lambda b: graph.concat(b.value(3, 32), b.value(3, 16), 0)),
    OperationCase("repeat_heads", lambda b: graph.repeat_heads(b.value(3, 32), 3)),
    OperationCase("reshape", lambda b: graph.reshape(b.value(3, 32), [32, 3]) * 2.0),
    OperationCase("head_linear", lambda b: graph.head_linear(b.value(3, 64), b.weight(3, 32, 64)), PRODUCTS),
    OperationCase(
        "scale_by_position",
        lambda b: graph.scale_by_position(b.value(2, 32), b.tracer.positions, beta=0.3, n_ctx=2, offset=1),
    ),
]  # fmt: skip

_RECURRENT = [
    OperationCase(
        "conv_state", lambda b: graph.conv_state(b.value(128), b.weight(128, 4), None, layer=0, state=0), ELEMENTS,
        _with_state(384),
    ),
    OperationCase(
        "conv_state", lambda b: graph.conv_state(b.value(48), b.weight(48, 7), b.weight(48), layer=0, state=0),
        ELEMENTS, _with_state(288), "wide",
    ),
    OperationCase("token_shift", lambda b: graph.token_shift(b.value(32), layer=0, state=0), ELEMENTS, _with_state(32)),
    OperationCase("selective_scan", _scan, PRODUCTS, _with_state(2048)),
    OperationCase("state_space_dual", _ssd, PRODUCTS, _with_state(8192)),
    OperationCase("retention", _retention, PRODUCTS, _with_state(8192)),
    OperationCase("gated_delta", _delta(), PRODUCTS, _with_state(4096)),
    OperationCase("gated_delta", _delta(tiled=True), PRODUCTS, _with_state(4096), "tiled"),
    OperationCase("gated_delta", _delta(by_key=True), PRODUCTS, _with_state(4096), "by key"),
    OperationCase("wkv6", _wkv6, PRODUCTS, _with_state(8192)),
    OperationCase("wkv7", _wkv7, PRODUCTS, _with_state(8192)),
]  # fmt: skip

OPERATIONS = (*_FUSED, *_STANDALONE, *_RECURRENT)
