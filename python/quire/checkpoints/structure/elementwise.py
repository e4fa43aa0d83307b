"""Norms, activations, sums and products of values."""

from __future__ import annotations

from typing import Any

import torch

from .blocks import ADD, DIV, MUL, RSUB, SUB, Source, canonical
from .formulas import GATES, activation_of, floats_of, norm_of
from .products import Products
from .recorder import Constant, Expression, Traced, Value


class Elementwise(Products):
    """Describes what treats rows, or numbers, separately."""

    def _norm(self, value: Value) -> int:
        x = next((one for one in value.args if isinstance(one, Traced)), value.named.get("hidden_states"))
        others = [one for one in value.args if isinstance(one, Traced)]
        if not isinstance(x, Traced) or len(others) > 1:
            raise self.refuse("norm", value)
        if value.module is not None:
            named = dict(value.module.named_parameters(recurse=False))
            paths = [self._path_of(one) for one in named.values()]
            weights = list(named.values())
            known = floats_of(value.module, self.seen.model.config)
            function = value.module
        else:
            constants = [one for one in [*value.args, *value.named.values()] if isinstance(one, Constant)]
            if any(not isinstance(one.expression, str) for one in constants):
                raise self.refuse("norm", value)
            weights, paths = [one.tensor for one in constants], [str(one.expression) for one in constants]
            known = [one for one in [*value.args, *value.named.values()] if isinstance(one, float)]

            def function(probe: torch.Tensor) -> torch.Tensor:
                plain = [one.tensor if isinstance(one, (Traced, Constant)) else one for one in value.args[1:]]
                more = {k: v.tensor if isinstance(v, (Traced, Constant)) else v for k, v in value.named.items()}
                assert value.function is not None
                result: torch.Tensor = value.function(probe, *plain, **more)
                return result

        found = norm_of(function, x.tensor, value.result, weights, known)
        if found is None:
            raise self.refuse("norm", value)
        heads = x.tensor.numel() // self.n // x.tensor.shape[-1]
        op: dict[str, Any] = {"op": "norm", "x": self.explain(x), "kind": found.kind, "eps": found.eps, "heads": heads}
        if found.weight is not None:
            name = self.take(Source(paths[found.weight]))
            op["w"] = ["add", name, found.plus] if found.plus else name
        if found.bias is not None:
            op["b"] = self.take(Source(paths[found.bias]))
        return self.emit(value.number, **op)

    def _path_of(self, weight: torch.Tensor) -> str:
        return next(name for name, one in self.weights.items() if one is weight)

    def _unary(self, value: Value) -> int | None:
        traced = [one for one in [*value.args, *value.named.values()] if isinstance(one, Traced)]
        if len(traced) != 1 or not value.args or value.args[0] is not traced[0]:
            return None
        if value.module is not None:
            function: Any = value.module
        else:
            rest = value.args[1:]
            if any(isinstance(one, (Constant, torch.Tensor)) for one in [*rest, *value.named.values()]):
                return None
            named = {name: one for name, one in value.named.items() if name != "inplace"}

            def function(probe: torch.Tensor) -> Any:
                assert value.function is not None
                return value.function(probe, *rest, **named)

        if value.call in ("clamp", "clamp_", "clip"):
            return self._clamp(value, traced[0])
        name = activation_of(function)
        if name is None:
            return None
        x = self.explain(traced[0])
        if name == "identity":
            self.block.found[value.number] = x
            return x
        return self.emit(value.number, op="unary", x=x, f=name)

    def _clamp(self, value: Value, x: Traced) -> int:
        probe = torch.tensor([-1e30, 1e30])
        assert value.function is not None
        low, high = value.function(probe, *value.args[1:], **value.named).tolist()
        return self.emit(value.number, op="clamp", x=self.explain(x), low=low, high=high)

    # Sums and products

    def _arithmetic(self, value: Value) -> int:
        call, operands = value.call, list(value.args[:2])
        if len(value.args) > 2 or set(value.named) - {"out"} or len(operands) != 2:
            raise self.refuse(f"call {call}", value)
        operands = [self._number(one) for one in operands]
        if call in RSUB:
            operands, call = operands[::-1], "sub"
        a, b = operands
        traced = [isinstance(one, Traced) for one in operands]
        if all(traced):
            return self._of_two(value, call, a, b)
        x, other = (a, b) if traced[0] else (b, a)
        if isinstance(other, float):
            return self._with_number(value, call, x, other, is_left=traced[0])
        if isinstance(other, Constant) and other.expression is None and call in ADD:
            found = self._fixed_embedding(other, value.result.shape)
            if found is not None:
                return self._with_table(value, x, *found)
        if isinstance(other, Constant) and (call in MUL | ADD or (call in SUB | DIV and traced[0])):
            vector = self._vector(value, other)
            op = {"op": "mul_weight" if call in MUL | DIV else "add_weight", "x": self.explain(x)}
            if call in SUB:
                vector = ["neg", vector]
            if call in DIV:
                vector = ["div", 1.0, vector]
            return self.emit(value.number, **op, w=vector)
        raise self.refuse(f"{call} with a tensor that does not come from the weights", value)

    def _number(self, operand: Any) -> Any:
        if isinstance(operand, (int, float)):
            return float(operand)
        if isinstance(operand, torch.Tensor) and operand.numel() == 1:
            return float(operand.item())
        return operand

    def _with_number(self, value: Value, call: str, x: Traced, number: float, *, is_left: bool) -> int:
        if call in MUL or (call in DIV and is_left):
            by = number if call in MUL else 1.0 / number
            return self.emit(value.number, op="scale", x=self.explain(x), by=by)
        if number == 0 and (call in ADD or is_left):
            return self.explain(x)
        raise self.refuse(f"{call} with {number:g}", value)

    def _with_table(self, value: Value, x: Traced, kind: str, found: tuple[str, int]) -> int:
        name, first = found
        if kind == "positions":
            n = self.weights[name].shape[0]
            rows = {"groups": 1, "size": n, "begin": first, "end": n} if first else None
            table = self.take(Source(name, rows), "position_embd.weight")
            ref = self.explain(x)
            return self.emit(value.number, op="add", a=ref, b=self.emit(("table", name), op="positions", w=table))
        rows = {"groups": 1, "size": self.weights[name].shape[0], "begin": first, "end": first + 1}
        vector = self.take(Source(name, rows, flat=True))
        return self.emit(value.number, op="add_weight", x=self.explain(x), w=vector)

    def _vector(self, value: Value, other: Constant) -> Expression:
        """Return the expression of a weight as a vector of the value's columns."""
        expression = self.expression(other.expression, value)
        m = other.tensor.numel()
        shape = value.result.shape
        index = canonical(torch.broadcast_to(torch.arange(m).reshape(other.tensor.shape), shape), self.n)
        if index is None or not torch.equal(index, index[:1].expand_as(index)):
            raise self.refuse("weight for each position", value)
        columns, n = index[0], index.shape[1]
        if torch.equal(columns, torch.arange(n)):
            return expression
        if torch.equal(columns, torch.arange(n) % m):
            return ["tile", expression, n // m]
        if torch.equal(columns, torch.arange(n) // (n // m)):
            return ["repeat", expression, n // m]
        raise self.refuse("order of a weight", value)

    def _of_two(self, value: Value, call: str, a: Traced, b: Traced) -> int:
        shape = value.result.shape
        wide = []
        for one in (a, b):
            found = self.columns(Traced(torch.broadcast_to(one.tensor, shape), torch.broadcast_to(one.origin, shape)))
            wide.append(found is not None and len(set(found[1])) == 1 and len(found[1]) > 1)
        if call in MUL and wide.count(True) == 1:
            a, b = (b, a) if wide[0] else (a, b)
            single = self.columns(b)
            if single is not None and len(single[1]) == 1:
                return self.emit(value.number, op="mul", a=self.explain(a), b=self.explain(b))
        if a.tensor.shape != shape or b.tensor.shape != shape or call in DIV:
            raise self.refuse(f"call {call}", value)
        if call in MUL:
            for one, other in ((a, b), (b, a)):
                if (gate := self._gate(one)) is not None:
                    x, name = gate
                    return self.emit(value.number, op="glu", gate=self.explain(x), up=self.explain(other), f=name)
        left, right = self.explain(a), self.explain(b)
        if call in SUB:
            right = self.emit((value.number, "neg"), op="scale", x=right, by=-1.0)
        return self.emit(value.number, op="mul" if call in MUL else "add", a=left, b=right)

    def _gate(self, traced: Traced) -> tuple[Traced, str] | None:
        """Return the input and name of an activation that gated MLPs have."""
        found = self.columns(traced)
        if found is None or found[1] != list(range(self.width(found[0]))):
            return None
        value = found[0]
        if value.number in self.block.found or value.number <= self.block.base or not value.args:
            return None
        x = value.args[0]
        if not isinstance(x, Traced) or value.call in ADD | MUL | SUB | DIV or x.tensor.shape != value.result.shape:
            return None
        if value.module is not None and value.call == "elementwise":
            name = activation_of(value.module)
        elif value.function is not None and not any(
            isinstance(one, (Traced, Constant, torch.Tensor)) for one in [*value.args[1:], *value.named.values()]
        ):
            rest, named = value.args[1:], {k: v for k, v in value.named.items() if k != "inplace"}
            name = activation_of(lambda probe: value.function(probe, *rest, **named))  # type: ignore[misc]
        else:
            return None
        return (x, name) if name in GATES else None
