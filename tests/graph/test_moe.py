"""Mixtures of experts of every kind: NumPy against ggml's operators against our own kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from quire._native import graph
from quire.errors import ShapeError
from trace_bench import N_VOCAB, Bench

Array = npt.NDArray[np.float32]
N_EXPERT, DIM, FFN = 8, 16, 24

KINDS: dict[str, dict[str, Any]] = {
    "softmax": {"n_used": 3},
    "softmax, not normalized, scaled": {"n_used": 3, "normalize": False, "scale": 2.5},
    "sigmoid with selection bias": {"n_used": 2, "gating": "sigmoid", "selection_bias": True},
    "large scores": {"n_used": 2, "gating": "sigmoid", "factor": 30.0},
    "groups by two": {"n_used": 3, "gating": "sigmoid", "n_group": 4, "n_group_used": 2, "selection_bias": True},
    "groups by the largest": {"n_used": 2, "n_group": 2, "n_group_used": 1, "group_score": "largest"},
    "gpt-oss": {
        "n_used": 4,
        "gating": "softmax_of_chosen",
        "normalize": False,
        "unit": "clamped_swiglu",
        "limit": 1.5,
        "biases": True,
    },
    "sparse mixer": {"n_used": 2, "gating": "sparse_mixer", "normalize": False},
    "sparse mixer of three": {"n_used": 3, "gating": "sparse_mixer", "normalize": False},
    "clipped": {"n_used": 3, "unit": "clipped", "limit": 0.4},
    "clamped": {"n_used": 3, "gating": "sqrt_softplus", "selection_bias": True, "unit": "clamped", "limit": 0.4},
    "capped by tanh": {"n_used": 3, "gating": "sigmoid", "unit": "tanh_capped", "alpha": 0.7, "limit": 0.4},
    "sigmoid of the chosen": {"n_used": 3, "gating": "sigmoid_of_chosen", "selection_bias": True},
    "chosen by ids": {"n_used": 2, "gating": "sqrt_softplus", "scale": 1.5, "chosen": True},
    "llama 4": {"n_used": 1, "gating": "sigmoid", "normalize": False, "weighs_input": True},
    "ungated, squared": {"n_used": 2, "unit": "ungated", "activation": "relu", "is_squared": True},
    "gelu with scales": {"n_used": 2, "activation": "gelu", "expert_scale": True, "biases": True},
}


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def erf(x: Array) -> Array:
    from math import erf as of_one

    return np.vectorize(of_one)(x)


def weights_of(
    scores: Array, spec: dict[str, Any], bias: Array | None, by_id: npt.NDArray[np.int64] | None = None
) -> tuple[npt.NDArray[np.int64], Array]:
    """Chosen experts and their weights of one token."""
    gating = spec.get("gating", "softmax")
    odds = scores
    if gating in ("softmax", "sigmoid"):
        odds = softmax(scores) if gating == "softmax" else 1 / (1 + np.exp(-scores))
    if gating == "sqrt_softplus":
        odds = np.sqrt(np.log1p(np.exp(scores)))
    n_group = spec.get("n_group", 1)
    ranked = scores if gating == "sigmoid" and bias is None and n_group == 1 else odds + (0 if bias is None else bias)
    if n_group > 1:
        groups = ranked.reshape(n_group, -1)
        best = 1 if spec.get("group_score") == "largest" else 2
        totals = np.sort(groups, axis=-1)[:, -best:].sum(-1)
        keep = np.argsort(-totals)[: spec["n_group_used"]]
        mask = np.full(groups.shape, -np.inf)
        mask[keep] = 0
        ranked = (groups + mask).reshape(-1)
    chosen = np.argsort(-ranked)[: spec["n_used"]] if by_id is None else by_id
    weights = softmax(odds[chosen]) if gating == "softmax_of_chosen" else odds[chosen]
    if gating == "sigmoid_of_chosen":
        weights = 1 / (1 + np.exp(-weights))
    if gating == "sparse_mixer":
        weights = np.array([part_of_near(scores, chosen[:u], e) for u, e in enumerate(chosen)])
    if spec.get("normalize", True):
        weights = weights / weights.sum()
    return chosen, weights * spec.get("scale", 1.0)


def part_of_near(scores: Array, before: npt.NDArray[np.int64], best: int) -> float:
    """Return the share in a softmax over those left whose scores are within 2 % of the best one's."""
    left = np.delete(np.arange(len(scores)), before)
    gaps = (scores[best] - scores[left]) / np.maximum(np.abs(scores[left]), scores[best])
    near = scores[left][gaps <= 0.02]
    return float(1 / np.exp(near - scores[best]).sum())


def unit(gate: Array | None, up: Array, spec: dict[str, Any]) -> Array:
    kind = spec.get("unit", "gated")
    if gate is None:
        return np.maximum(up, 0) ** 2
    if kind == "clamped":
        gate, up = np.minimum(gate, spec["limit"]), np.clip(up, -spec["limit"], spec["limit"])
    if kind == "tanh_capped":
        a, limit = spec["alpha"], spec["limit"]
        return a * np.tanh(gate / a) / (1 + np.exp(-gate)) * limit * np.tanh(up / limit)
    if kind == "clamped_swiglu":
        g = np.minimum(gate, spec["limit"])
        return g / (1 + np.exp(-1.702 * g)) * (np.clip(up, -spec["limit"], spec["limit"]) + 1)
    active = (
        gate / (1 + np.exp(-gate)) if spec.get("activation", "silu") == "silu" else gate * (1 + erf(gate / 2**0.5)) / 2
    )
    if kind == "clipped":
        return np.minimum(active, spec["limit"]) * np.clip(up, -spec["limit"], spec["limit"])
    return active * up


@pytest.mark.parametrize("kernels", ["stock", "cpu"])
@pytest.mark.parametrize("kind", KINDS)
def test_mixtures_equal_numpy(kind: str, kernels: str) -> None:
    spec = dict(KINDS[kind])
    factor = spec.pop("factor", 1.0)
    bench = Bench(seed=5)
    (x, v), (scores, s) = bench.value(DIM), bench.value(N_EXPERT)
    scores, s = scores * factor, s * np.float32(factor)
    if spec.get("gating") == "sparse_mixer":  # so that some are near
        scores, s = graph.soft_cap(scores, 0.7), 0.7 * np.tanh(s / 0.7)
    gates, ups, downs = (bench.array(N_EXPERT, *d, low=-0.5, high=0.5) for d in ((FFN, DIM), (FFN, DIM), (DIM, FFN)))
    gated = spec.get("unit") != "ungated"
    has_biases = spec.pop("biases", False)
    biases = [bench.array(N_EXPERT, n) if has_biases else None for n in (FFN, FFN, DIM)]
    bias = bench.array(N_EXPERT, low=-0.5, high=0.5) if spec.pop("selection_bias", False) else None
    table = None
    if spec.pop("chosen", False):
        table = bench.random.random((N_VOCAB, N_EXPERT)).argsort(axis=1)[:, : spec["n_used"]]
    each = bench.array(N_EXPERT, low=0.5, high=1.5) if spec.pop("expert_scale", False) else None

    def maybe(values: Array | None) -> graph.Weight | None:
        return None if values is None else bench.weight(values)

    y = graph.moe(
        x,
        scores,
        bench.weight(gates) if gated else None,
        bench.weight(ups),
        bench.weight(downs),
        graph.MoeSpec(**spec),
        selection_bias=maybe(bias),
        expert_scale=maybe(each),
        gate_bias=maybe(biases[0]),
        up_bias=maybe(biases[1]),
        down_bias=maybe(biases[2]),
        chosen=None if table is None else graph.embed(bench.tracer.tokens, bench.weight(table.astype(np.float32))),
    )
    expected = np.zeros_like(v)
    zero = np.zeros(1, np.float32)
    gate_bias, up_bias, down_bias = (np.broadcast_to(zero, (N_EXPERT, 1)) if b is None else b for b in biases)
    for t, row in enumerate(v):
        chosen, weights = weights_of(s[t], spec, bias, None if table is None else table[bench.tokens[t]])
        for e, weight in zip(chosen, weights * (1 if each is None else each[chosen]), strict=True):
            into = row * weight if spec.get("weighs_input") else row
            up = ups[e] @ into + up_bias[e]
            out = downs[e] @ unit(gates[e] @ into + gate_bias[e] if gated else None, up, spec) + down_bias[e]
            expected[t] += out if spec.get("weighs_input") else out * weight
    # Our own products of f32 are of pairs of bf16.
    np.testing.assert_allclose(bench.run(y, kernels), expected, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize(
    "bad",
    [
        {"n_used": 9},
        {"n_used": 2, "n_group": 3},
        {"n_used": 5, "n_group": 4, "n_group_used": 2},
        {"n_used": 2, "n_group": 8, "n_group_used": 2},
        {"n_used": 2, "scale": 0.0},
        {"n_used": 2, "unit": "ungated"},
        {"n_used": 2, "unit": "clipped", "limit": 0.0},
        {"n_used": 2, "gating": "sparse_mixer", "n_group": 2},
    ],
)
def test_invalid_routing_is_refused(bad: dict[str, Any]) -> None:
    bench = Bench()
    (x, _), (scores, _) = bench.value(DIM), bench.value(N_EXPERT)
    up, down = bench.weight(bench.array(N_EXPERT, FFN, DIM)), bench.weight(bench.array(N_EXPERT, DIM, FFN))
    with pytest.raises(ShapeError):
        graph.moe(x, scores, up, up, down, graph.MoeSpec(**bad))
