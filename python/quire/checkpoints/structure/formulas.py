"""Find the formula of a module by trying it: norms, activations, rotations and mixtures of experts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

TOLERANCE = 2e-5  # relative to the largest number

ACTIVATIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu_squared": lambda x: F.relu(x).square(),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softplus": F.softplus,
    "exp": torch.exp,
    "negate": torch.neg,
}
GATES = ("silu", "gelu", "gelu_tanh", "relu")


def near(one: torch.Tensor, other: torch.Tensor, tolerance: float = TOLERANCE) -> bool:
    """Return whether two tensors hold nearly the same numbers."""
    if one.shape != other.shape or not torch.isfinite(other).all():
        return False
    return float((one.double() - other.double()).abs().max()) <= tolerance * float(other.abs().max().clamp(min=1e-6))


def activation_of(function: Callable[[torch.Tensor], torch.Tensor]) -> str | None:
    """Return the name of an elementwise function."""
    probe = torch.linspace(-6, 6, 241)
    with torch.no_grad():
        try:
            found = function(probe.clone())
        except Exception:  # it wants other arguments
            return None
        if not isinstance(found, torch.Tensor):
            return None
        for name, one in ACTIVATIONS.items():
            if near(found, one(probe), 1e-6):
                return name
    return "identity" if near(found, probe, 1e-7) else None


@dataclass(frozen=True)
class Norm:
    """A norm over the last dimension.  ``plus``: added to the weights."""

    kind: str  # rms, layer, or unit: divide by the length
    weight: int | None  # its number among the weights
    bias: int | None
    eps: float
    plus: float = 0.0


def _normed(kind: str, x: torch.Tensor, eps: float) -> torch.Tensor:
    if kind == "unit":
        return x / x.norm(dim=-1, keepdim=True).clamp(min=max(eps, 1e-30))
    if kind == "layer":
        x = x - x.mean(-1, keepdim=True)
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def norm_of(
    function: Callable[[torch.Tensor], torch.Tensor],
    x: torch.Tensor,
    y: torch.Tensor,
    weights: Sequence[torch.Tensor],
    known_eps: Sequence[float],
) -> Norm | None:
    """Return the formula of a norm that makes ``y`` of ``x``."""
    probe = (x * (1e-3 / x.abs().max())).double().float()
    with torch.no_grad():
        small = function(probe.clone())
    if not isinstance(small, torch.Tensor) or small.shape != probe.shape:
        return None
    vectors = [i for i, one in enumerate(weights) if tuple(one.shape) == (x.shape[-1],)]
    choices: list[tuple[int | None, float]] = [(None, 0.0)] + [(i, plus) for i in vectors for plus in (0.0, 1.0)]
    for kind, (weight, plus), bias in itertools.product(("rms", "layer", "unit"), choices, [None, *vectors]):
        if bias is not None and bias == weight:
            continue
        factor = torch.ones(x.shape[-1]) if weight is None else weights[weight] + plus
        added = torch.zeros(x.shape[-1]) if bias is None else weights[bias]
        for eps in _eps(kind, probe, (small - added) / factor, known_eps):
            if near(_normed(kind, x, eps) * factor + added, y) and near(
                _normed(kind, probe, eps) * factor + added, small, 1e-4
            ):
                return Norm(kind, weight, bias, eps, plus)
    return None


def _eps(kind: str, x: torch.Tensor, y: torch.Tensor, known: Sequence[float]) -> Iterator[float]:
    """Yield the epsilon that small numbers show: one that the module or its configuration holds, if that is near."""
    if kind == "unit":
        yield 1e-12
        return
    x, y = x.double(), y.double()
    if kind == "layer":
        x = x - x.mean(-1, keepdim=True)
    root = (x * x).sum(-1) / (x * y).sum(-1)
    eps = float((root.square() - x.square().mean(-1)).median())
    if near_known := [one for one in known if abs(one - eps) <= 2e-3 * max(abs(one), abs(eps)) + 1e-12]:
        yield near_known[0]
    elif eps > 0:
        yield eps


@dataclass(frozen=True)
class Rotation:
    """A rotation of the first ``n_dims`` of a head, or of the last ones."""

    n_dims: int
    layout: str
    at_end: bool
    inv_freq: tuple[float, ...]
    factor: float


def rotated(x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """Rotate ``x [tokens, heads, dims]`` by its positions from 0 on."""
    angles = torch.arange(x.shape[0], dtype=torch.float64)[:, None] * torch.tensor(
        rotation.inv_freq, dtype=torch.float64
    )
    cos, sin = (part[:, None, :] * rotation.factor for part in (angles.cos(), angles.sin()))
    x = x.double()
    n = rotation.n_dims
    rest = x[..., :-n] if rotation.at_end else x[..., n:]
    part = x[..., -n:] if rotation.at_end else x[..., :n]
    if rotation.layout == "half":
        a, b = part[..., : n // 2], part[..., n // 2 :]
        turned = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    else:
        a, b = part[..., 0::2], part[..., 1::2]
        turned = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
    return torch.cat([rest, turned] if rotation.at_end else [turned, rest], -1)


def rotation_of(x: torch.Tensor, y: torch.Tensor, tables: Sequence[tuple[tuple[float, ...], float]]) -> Rotation | None:
    """Return the rotation that makes ``y`` of ``x``, with one of the tables of frequencies and factors."""
    for (inv_freq, factor), layout in itertools.product(tables, ("half", "interleaved")):
        n = 2 * len(inv_freq)
        if n > x.shape[-1]:
            continue
        for at_end in (False, True) if n < x.shape[-1] else (False,):
            rotation = Rotation(n, layout, at_end, inv_freq, factor)
            if near(rotated(x, rotation), y):
                return rotation
    return None


@dataclass(frozen=True)
class Routing:
    """How experts are chosen and weighed."""

    gating: str
    normalize: bool
    scale: float
    n_group: int = 1
    n_group_used: int = 1
    group_score: str = "largest"


def _scores(logits: torch.Tensor, gating: str) -> torch.Tensor:
    if gating == "softmax":
        return logits.softmax(-1)
    if gating == "sigmoid":
        return logits.sigmoid()
    return F.softplus(logits).sqrt() if gating == "sqrt_softplus" else logits


def routing_of(
    logits: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor, bias: torch.Tensor | None,
    groups: Sequence[tuple[int, int]],
) -> Routing | None:  # fmt: skip
    """Return the routing that makes ``weights`` of experts ``chosen [tokens, k]`` from the router's scores."""
    n, k = logits.shape[-1], chosen.shape[-1]
    logits, expected = logits.double(), torch.zeros(logits.shape, dtype=torch.float64)
    expected.scatter_add_(1, chosen.long(), weights.double())
    gatings = ("softmax", "sigmoid", "softmax_of_chosen", "sqrt_softplus")
    for gating, normalize, (n_group, n_used), score in itertools.product(
        gatings, (True, False), [(1, 1), *groups], ("largest", "two_largest")
    ):
        if n_group == 1 and score == "two_largest":
            continue
        scores = _scores(logits, gating)
        ranked = scores if bias is None else scores + bias.double()
        if n_group > 1:
            each = ranked.reshape(-1, n_group, n // n_group)
            best = each.topk(2, -1).values.sum(-1) if score == "two_largest" else each.amax(-1)
            kept = torch.zeros_like(best).scatter_(1, best.topk(n_used, -1).indices, 1.0)
            ranked = ranked.masked_fill(kept.repeat_interleave(n // n_group, 1) == 0, float("-inf"))
        top = ranked.topk(k, -1).indices
        each = scores.gather(1, top)
        if gating == "softmax_of_chosen":
            each = each.softmax(-1)
        elif normalize:
            each = each / each.sum(-1, keepdim=True)
        found = torch.zeros_like(expected).scatter_(1, top, each)
        scale = float((found * expected).sum() / found.square().sum())
        if scale > 0 and near(found * scale, expected, 1e-4):
            scale = round(scale, 4) if abs(round(scale, 4) - scale) < 1e-5 else scale
            return Routing(gating, normalize, scale, n_group, n_used, score)
    return None


@dataclass(frozen=True)
class Experts:
    """The formula of experts: names of their matrices, and if those are stored as [in, out]."""

    activation: str
    both: str | None  # gate above up
    gate: str | None
    up: str | None
    down: str
    transposed: bool


@dataclass(frozen=True)
class Mixture:
    """A mixture's input ``x`` and result ``y [tokens, dim]``; ``chosen``, ``scores [tokens, n_used]``."""

    x: torch.Tensor
    chosen: torch.Tensor
    scores: torch.Tensor
    y: torch.Tensor

    def is_made_by(self, weights: Mapping[str, torch.Tensor], trial: Experts) -> bool:
        """Return whether matrices ``[experts, ., .]`` make ``y`` by a formula."""
        gives = torch.zeros_like(self.y)
        for token in range(len(self.x)):
            for expert, score in zip(self.chosen[token].tolist(), self.scores[token], strict=True):
                hidden = self._hidden(weights, trial, self.x[token], int(expert))
                if hidden is None or hidden.shape != gives[token].shape:
                    return False
                gives[token] += score * hidden
        return near(gives, self.y, 1e-4)

    @staticmethod
    def _hidden(
        weights: Mapping[str, torch.Tensor], trial: Experts, x: torch.Tensor, expert: int
    ) -> torch.Tensor | None:
        def product(value: torch.Tensor | None, name: str) -> torch.Tensor | None:
            matrix = weights[name][expert]
            matrix = matrix.T if trial.transposed else matrix
            fits = value is not None and matrix.shape[1] == value.shape[-1]
            return value @ matrix.T.contiguous() if fits and value is not None else None

        if trial.both is not None:
            both = product(x, trial.both)
            gate, up = (None, None) if both is None else both.chunk(2)
        else:
            gate, up = (product(x, name or "") for name in (trial.gate, trial.up))
        if gate is None or up is None or gate.shape != up.shape:
            return None
        return product(ACTIVATIONS[trial.activation](gate) * up, trial.down)


def experts_of(weights: Mapping[str, torch.Tensor], mixture: Mixture) -> Experts | None:
    """Return the formula of experts with these matrices ``[experts, ., .]``."""
    for transposed, activation in itertools.product((False, True), GATES):
        for down, *others in itertools.permutations(weights):
            if len(others) not in (1, 2):
                continue
            both, gate, up = (others[0], None, None) if len(others) == 1 else (None, *others)
            trial = Experts(activation, both, gate, up, down, transposed)
            if mixture.is_made_by(weights, trial):
                return trial
    return None


def floats_of(*things: Any) -> list[float]:
    """Return the numbers that modules or configurations hold."""
    return [value for thing in things for value in vars(thing).values() if isinstance(value, float)]
