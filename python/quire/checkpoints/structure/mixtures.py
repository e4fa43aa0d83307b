"""Mixtures of experts."""

from __future__ import annotations

from typing import Any

import torch

from .blocks import Source, canonical
from .formulas import Mixture, experts_of, routing_of
from .plain_attention import PlainAttention
from .recorder import Traced, Value


class Mixtures(PlainAttention):
    """Describes mixtures of experts, and how a router chooses them."""

    def _experts(self, value: Value) -> int:
        args = [*value.args, *value.named.values()]
        floats = [one for one in args if isinstance(one, Traced) and one.tensor.dtype.is_floating_point]
        chosen = next((one for one in args if isinstance(one, torch.Tensor) and not one.dtype.is_floating_point), None)
        if chosen is None:
            chosen = next((o.tensor for o in args if isinstance(o, Traced) and not o.tensor.is_floating_point()), None)
        if len(floats) != 2 or chosen is None or chosen.dim() != 2 or floats[1].tensor.shape != chosen.shape:
            raise self.refuse("experts", value)
        x, scores = floats
        named = {name: one for name, one in value.module.named_parameters() if one.dim() == 3}
        if len(named) != len(list(value.module.parameters())):
            raise self.refuse("experts with biases", value)
        rows = x.tensor.reshape(self.n, -1)
        mixture = Mixture(rows, chosen, scores.tensor, value.result.reshape(self.n, -1))
        found = experts_of(named, mixture)
        if found is None:
            raise self.refuse("formula of the experts", value)
        router = self._router(scores)
        if router is None:
            raise self.refuse("router", value)
        parts, logits = router
        groups = self._groups(logits.shape[-1])
        for bias in (None, *self._corrections(value, logits.shape[-1], parts[2])):
            vector = None if bias is None else self.weights[bias].reshape(-1)
            routing = routing_of(logits, chosen, scores.tensor, vector, groups)
            if routing is not None:
                break
        else:
            raise self.refuse("router", value)
        op: dict[str, Any] = {"op": "moe", "x": self.explain(x), "f": found.activation, "n_used": chosen.shape[1]}
        op |= vars(routing) | {"n_expert": logits.shape[-1]}
        op["scores"] = self.linear(("router", value.number), parts, None)
        self._rename(op["scores"], "ffn_gate_inp")
        if bias is not None:
            op["bias"] = self.take(Source(bias, flat=True), "exp_probs_b.bias")
        paths = {name: self._path_of(one) for name, one in named.items()}
        for part, name in (("gate_up", found.both), ("gate", found.gate), ("up", found.up), ("down", found.down)):
            if name is not None:
                op[part] = self.take(Source(paths[name], transposed=found.transposed), f"ffn_{part}_exps.weight")
        return self.emit(value.number, **op)

    def _rename(self, ref: int, name: str) -> None:
        op = self.block.ops[ref - 1]
        for key, suffix in (("w", "weight"), ("b", "bias")):
            if key in op:
                source = self.block.sources.pop(op[key])
                op[key] = self.take(source, f"{name}.{suffix}")

    def _groups(self, n_expert: int) -> list[tuple[int, int]]:
        config = self.seen.model.config
        n, used = getattr(config, "n_group", None), getattr(config, "topk_group", None)
        usable = isinstance(n, int) and isinstance(used, int) and n > 1 and n_expert % n == 0
        return [(int(n), int(used))] if usable and n is not None and used is not None else []

    def _corrections(self, experts: Value, n_expert: int, of_router: str | None) -> list[str]:
        """Return the stored vectors beside the experts that may correct which ones are chosen."""
        beside = experts.where.rpartition(".")[0] + "."
        stored = set(self.seen.model.state_dict()) - {of_router}
        return [
            name
            for name, one in self.weights.items()
            if name.startswith(beside) and name in stored and one.numel() == max(one.shape, default=0) == n_expert
        ]

    def _router(self, scores: Traced) -> tuple[Any, torch.Tensor] | None:
        """Return the product that makes the router's scores, and its result."""
        todo, found = list(scores.numbers), dict[int, Value]()
        seen = set[int]()
        while todo:
            number = todo.pop()
            if number in seen or number <= self.block.base:
                continue
            seen.add(number)
            value = self.values[number]
            if self.linear_of(value) is not None:
                found[number] = value
                continue
            todo += [n for one in [*value.args, *value.named.values()] if isinstance(one, Traced) for n in one.numbers]
        if len(found) != 1:
            return None
        (value,) = found.values()
        logits, parts = canonical(value.result, self.n), self.linear_of(value)
        return None if logits is None or parts is None else (parts, logits)
