"""Attention that a class computes itself, by products and a softmax."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from .attention import Attention
from .blocks import ADD, DIV, MUL, SUB
from .formulas import near
from .recorder import Traced, Value

PRODUCTS = {"matmul", "__matmul__", "bmm"}
# Calls between the products of queries and keys and the softmax.
_SCORES = ADD | SUB | MUL | DIV | {"where", "masked_fill", "masked_fill_", "baddbmm", "maximum", "max"}


def _by_head(traced: Traced) -> Traced:
    """Return ``[1, heads, tokens, dims]``."""
    if traced.tensor.dim() == 3:
        return Traced(traced.tensor[None], traced.origin[None])
    return traced


class PlainAttention(Attention):
    """Describes attention that was recorded call by call."""

    def plain_attention(self, value: Value) -> int | None:
        """Emit attention whose last call is ``value``; None if it is none."""
        operands = value.args[:2]
        if value.call not in PRODUCTS or not all(isinstance(one, Traced) for one in operands):
            return None
        weights, v = operands
        softmax = self._single(weights)
        if softmax is None or softmax.call != "softmax" or not isinstance(softmax.args[0], Traced):
            return None
        product = self._product(softmax.args[0])
        if product is None:
            return None
        q, k = product.args[-2:]
        k = Traced(k.tensor.transpose(-1, -2), k.origin.transpose(-1, -2))
        n = self.n
        found, scores = softmax.result.reshape(-1, n, n), product.result.reshape(-1, n, n)
        mask = found[0] > 0
        scale = _scale_of(found, scores, mask, q.tensor.shape[-1])
        if scale is None:
            raise self.refuse("attention scores", value)
        named = {"mask": mask, "scale": scale}
        return self._attend(replace(value, args=(_by_head(q), _by_head(k), _by_head(v)), named=named))

    def _single(self, traced: Traced) -> Value | None:
        numbers = traced.numbers
        return self.values[numbers[0]] if len(numbers) == 1 else None

    def _product(self, scores: Traced) -> Value | None:
        """Return the product of queries and keys that scores are made of."""
        todo, found, seen = list(scores.numbers), dict[int, Value](), set[int]()
        while todo:
            number = todo.pop()
            if number in seen:
                continue
            seen.add(number)
            value = self.values[number]
            pair = value.args[-2:]
            if value.call in PRODUCTS | {"baddbmm"} and all(isinstance(one, Traced) for one in pair):
                found[number] = value
            elif value.call in _SCORES and number > self.block.base:
                todo += [n for one in value.args if isinstance(one, Traced) for n in one.numbers]
            else:
                return None
        return next(iter(found.values())) if len(found) == 1 else None


def _scale_of(weights: torch.Tensor, products: torch.Tensor, mask: torch.Tensor, dim: int) -> float | None:
    """Return the factor of products before the softmax; None if weights depend on something else, too."""
    if not bool((torch.isfinite(weights)).all()) or not bool(mask.diagonal().all()):
        return None
    log = weights.double().clamp(min=1e-30).log()
    ours, theirs = (one - one.diagonal(dim1=-2, dim2=-1)[..., None] for one in (products.double(), log))
    clear = mask & (weights > 1e-6)
    scale = float((ours * theirs)[clear].sum() / ours[clear].square().sum())
    near_scales: Sequence[float] = [one for one in (1.0, dim**-0.5) if abs(one - scale) < 1e-4 * one]
    scale = near_scales[0] if near_scales else scale
    made = (products.double() * scale).masked_fill(~mask, float("-inf")).softmax(-1)
    return scale if near(made, weights, 1e-4) else None
