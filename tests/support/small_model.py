"""A small model of two layers: its weights, its trace, and its forward pass in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from quire._native import graph
from quire._native.core import Tensor

__all__ = ["BASE", "EPS", "N_VOCAB", "VARIANTS", "Variant", "numpy_forward", "random_weights", "trace"]

Array = npt.NDArray[np.float32]

N_VOCAB, DIM, N_HEAD, N_KV_HEAD, HEAD_DIM, FFN, N_EXPERT, RANK = 96, 64, 4, 2, 24, 32, 6, 16
EPS, BASE = 1e-5, 10000.0


@dataclass(frozen=True)
class Variant:
    """A variant of the small model."""

    window: int = 0
    soft_cap: float = 0.0
    sinks: bool = False
    layout: str = "half"
    experts: bool = False
    bias: bool = False
    latent: bool = False  # one kv head; values are the first RANK numbers of keys


VARIANTS = {
    "plain": Variant(),
    "window": Variant(window=5),
    "soft_cap": Variant(soft_cap=2.0),
    "sinks": Variant(sinks=True),
    "interleaved": Variant(layout="interleaved"),
    "experts": Variant(experts=True),
    "bias": Variant(bias=True),
    "all": Variant(window=7, soft_cap=3.0, sinks=True, layout="interleaved", experts=True, bias=True),
    "latent": Variant(latent=True),
}


def random_weights(seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)

    def matrix(*shape: int) -> Array:
        return (rng.standard_normal(shape) * shape[-1] ** -0.5).astype(np.float32)

    weights = {"embd": rng.standard_normal((N_VOCAB, DIM)).astype(np.float32), "norm": matrix(DIM) + 1}
    for i in range(2):
        weights |= {
            f"{i}.norm": matrix(DIM) + 1,
            f"{i}.q": matrix(N_HEAD * HEAD_DIM, DIM),
            f"{i}.k": matrix(N_KV_HEAD * HEAD_DIM, DIM),
            f"{i}.v": matrix(N_KV_HEAD * HEAD_DIM, DIM),
            f"{i}.o": matrix(DIM, N_HEAD * HEAD_DIM),
            f"{i}.bias": matrix(N_HEAD * HEAD_DIM),
            f"{i}.sinks": matrix(N_HEAD),
            f"{i}.gate": matrix(FFN, DIM),
            f"{i}.up": matrix(FFN, DIM),
            f"{i}.down": matrix(DIM, FFN),
            f"{i}.router": matrix(N_EXPERT, DIM),
            f"{i}.gates": matrix(N_EXPERT, FFN, DIM),
            f"{i}.ups": matrix(N_EXPERT, FFN, DIM),
            f"{i}.downs": matrix(N_EXPERT, DIM, FFN),
            f"{i}.v_b": matrix(N_HEAD, HEAD_DIM, RANK),
        }
    return weights


def as_floats(_: str, value: Array) -> Tensor:
    return Tensor.from_numpy(value)


def trace(
    weights: dict[str, Array], variant: Variant, stored: Callable[[str, Array], Tensor] = as_floats
) -> graph.Trace:
    def w(name: str) -> graph.Weight:
        return graph.Weight(name, stored(name, weights[name]))

    spec = graph.CacheSpec(n_kv_head=N_KV_HEAD, head_dim=HEAD_DIM, window=variant.window)
    if variant.latent:
        spec = graph.CacheSpec.latent(rank=RANK, n_rot=HEAD_DIM - RANK)
    tracer = graph.Tracer([spec, spec])
    rope = graph.RopeSpec(n_dims=HEAD_DIM, layout=variant.layout, freq_base=BASE)  # type: ignore[arg-type]
    x = graph.embed(tracer.tokens, w("embd"))
    for i in range(2):
        h = graph.rms_norm(x, w(f"{i}.norm"), EPS)
        q = graph.linear(h, w(f"{i}.q"), w(f"{i}.bias") if variant.bias else None).heads(N_HEAD)
        k = graph.linear(h, w(f"{i}.k")).heads(N_KV_HEAD)
        v = graph.linear(h, w(f"{i}.v")).heads(N_KV_HEAD)
        q, k = (graph.rope(t, tracer.positions, rope) for t in (q, k))
        sinks = w(f"{i}.sinks") if variant.sinks else None
        if variant.latent:
            a = graph.attend_latent(i, q, graph.slice(k, 1, 1, 2), scale=HEAD_DIM**-0.5)
            a = graph.head_linear(a, w(f"{i}.v_b"))
        else:
            a = graph.attend(i, q, k, v, scale=HEAD_DIM**-0.5, soft_cap=variant.soft_cap, sinks=sinks)
        x = x + graph.linear(a.merge_heads(), w(f"{i}.o"))
        h = graph.rms_norm(x, w(f"{i}.norm"), EPS)
        if variant.experts:
            moe = graph.MoeSpec(n_used=2, activation="silu")
            scores = graph.linear(h, w(f"{i}.router"))
            x = x + graph.moe(h, scores, w(f"{i}.gates"), w(f"{i}.ups"), w(f"{i}.downs"), moe)
        else:
            gated = graph.glu(graph.linear(h, w(f"{i}.gate")), graph.linear(h, w(f"{i}.up")), "silu")
            x = x + graph.linear(gated, w(f"{i}.down"))
    x = graph.rms_norm(graph.select_rows(x, tracer.logit_rows), w("norm"), EPS)
    return tracer.finish(graph.linear(x, w("embd")))


def numpy_rope(x: Array, layout: str) -> Array:
    """Su et al. 2021, equation 34, for positions 0, 1, ..."""
    angles = np.arange(len(x))[:, None] * BASE ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    out = np.empty_like(x)
    first, second = (
        (slice(0, None, 2), slice(1, None, 2))
        if layout == "interleaved"
        else (slice(0, HEAD_DIM // 2), slice(HEAD_DIM // 2, None))
    )
    a, b = x[..., first], x[..., second]
    out[..., first], out[..., second] = a * cos - b * sin, a * sin + b * cos
    return out


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def numpy_forward(weights: dict[str, Array], variant: Variant, tokens: list[int]) -> Array:
    """Return the logits ``[n_tokens, n_vocab]`` of one sequence, in double precision."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}

    def norm(x: Array, name: str) -> Array:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * w[name]

    n = len(tokens)
    distance = np.arange(n)[:, None] - np.arange(n)[None, :]
    hidden = (distance < 0) | ((distance >= variant.window) if variant.window else False)
    x = w["embd"][tokens]
    for i in range(2):
        h = norm(x, f"{i}.norm")
        q = (h @ w[f"{i}.q"].T + (w[f"{i}.bias"] if variant.bias else 0)).reshape(n, N_HEAD, HEAD_DIM)
        k = (h @ w[f"{i}.k"].T).reshape(n, N_KV_HEAD, HEAD_DIM)
        v = (h @ w[f"{i}.v"].T).reshape(n, N_KV_HEAD, HEAD_DIM)
        q, k = numpy_rope(q, variant.layout), numpy_rope(k, variant.layout)
        if variant.latent:
            v = np.einsum("nr,hvr->nhv", k[:, 1, :RANK], w[f"{i}.v_b"])
            k = np.repeat(k[:, 1:], N_HEAD, axis=1)
        else:
            k, v = (np.repeat(t, N_HEAD // N_KV_HEAD, axis=1) for t in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) * HEAD_DIM**-0.5
        if variant.soft_cap:
            scores = variant.soft_cap * np.tanh(scores / variant.soft_cap)
        scores = np.where(hidden, -np.inf, scores)
        odds = np.exp(scores)
        total = odds.sum(-1, keepdims=True) + (np.exp(w[f"{i}.sinks"])[:, None, None] if variant.sinks else 0)
        x = x + np.einsum("hqk,khd->qhd", odds / total, v).reshape(n, -1) @ w[f"{i}.o"].T
        h = norm(x, f"{i}.norm")
        if variant.experts:
            odds = np.exp(h @ w[f"{i}.router"].T)
            odds /= odds.sum(-1, keepdims=True)
            for t in range(n):
                best = np.argsort(-odds[t])[:2]
                for e in best:
                    up = silu(w[f"{i}.gates"][e] @ h[t]) * (w[f"{i}.ups"][e] @ h[t])
                    x[t] += odds[t, e] / odds[t, best].sum() * (w[f"{i}.downs"][e] @ up)
        else:
            x = x + (silu(h @ w[f"{i}.gate"].T) * (h @ w[f"{i}.up"].T)) @ w[f"{i}.down"].T
    return (norm(x, "norm") @ w["embd"].T).astype(np.float32)
