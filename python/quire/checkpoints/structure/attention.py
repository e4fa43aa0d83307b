"""Rotary embeddings and attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ...errors import UnsupportedError
from .blocks import TURNS, canonical
from .elementwise import Elementwise
from .formulas import rotation_of
from .recorder import SHIFT, Constant, Traced, Value


class Attention(Elementwise):
    """Describes rotations by positions, and attention."""

    def read_tables(self) -> list[tuple[tuple[float, ...], float]]:
        """Return the frequencies of every rotary embedding, with the factor of cosines and sines."""
        found = []
        for module in self.seen.model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                if not name.endswith("inv_freq") or "original" in name:
                    continue
                prefix = name.removesuffix("inv_freq")
                kind = getattr(module, "rope_type", "default")
                kind = kind.get(prefix.rstrip("_"), "default") if isinstance(kind, dict) else kind
                if kind in ("dynamic", "longrope"):
                    raise UnsupportedError(f"[fallback] unsupported scaling of rotary embeddings: '{kind}'")
                factor = getattr(module, f"{prefix}attention_scaling", getattr(module, "attention_scaling", 1.0))
                table = (tuple(float(one) for one in buffer.double()), float(factor))
                if table not in found:
                    found.append(table)
        return found

    def _angles(self, value: Value) -> bool:
        return self._closure(self._all_of(value))[1]

    def _closure(self, traced: Traced) -> tuple[set[int], bool]:
        """Return the values that a rotation may be made of, and if angles are among them."""
        solid, angles, seen = set[int](), False, set[int]()
        todo = list(traced.numbers)
        while todo:
            number = todo.pop()
            if number in seen:
                continue
            seen.add(number)
            value = self.values[number]
            if value.call == "rotary":
                angles = True
            elif value.call in TURNS and number > self.block.base:
                operands = [one for arg in value.args for one in (arg if isinstance(arg, (list, tuple)) else [arg])]
                if any(isinstance(one, (Constant, torch.Tensor)) for one in operands):
                    solid.add(number)
                    continue
                for one in operands:
                    if isinstance(one, Traced):
                        todo += one.numbers
            else:
                solid.add(number)
        return solid, angles

    def turned(self, traced: Traced) -> int | None:
        """Emit a rotation by positions; None if the tensor is none."""
        solid, has_angles = self._closure(traced)
        if len(solid) != 1 or not has_angles or traced.tensor.dim() < 3:
            return None
        (number,) = solid
        source = self.values[number]
        columns = self._columns_read(traced, number)
        whole = canonical(source.result, self.n)
        y = canonical(traced.tensor, self.n)
        dim = traced.tensor.shape[-1]
        if whole is None or y is None or columns is None or len(columns) != y.shape[1]:
            return None
        x = whole[:, columns].reshape(self.n, -1, dim)
        rotation = rotation_of(x, y.reshape(x.shape), self.tables)
        if rotation is None:
            return None
        index = torch.tensor(columns)
        order = canonical(torch.arange(source.result.numel()).reshape(source.result.shape), self.n)
        assert order is not None
        input_ = Traced(whole[:, index], order[:, index] + (number << SHIFT))
        table = self._rotation(rotation.inv_freq, rotation.factor, rotation.layout, rotation.n_dims)
        key = ("turned", number, tuple(columns), table)
        if key in self.block.found:
            return self.block.found[key]
        return self.emit(key, op="rope", x=self.explain(input_), dim=dim, rotation=table, at_end=rotation.at_end)

    def _columns_read(self, traced: Traced, number: int) -> list[int] | None:
        """Return the columns of a value that a rotation reads, in their order."""
        found, seen, todo = set[int](), set[int](), [traced]
        while todo:
            one = todo.pop()
            for n in one.numbers:
                if n == number:
                    value = self.values[n]
                    order = canonical(torch.arange(value.result.numel()).reshape(value.result.shape), self.n)
                    assert order is not None
                    column = torch.empty(value.result.numel(), dtype=torch.int64)
                    column[order.reshape(-1)] = torch.arange(order.shape[1]).repeat(self.n)
                    picked = one.origin.reshape(-1)
                    picked = picked[(picked >> SHIFT) == n] & ((1 << SHIFT) - 1)
                    found |= {int(c) for c in torch.unique(column[picked])}
                elif n not in seen and self.values[n].call in TURNS:
                    seen.add(n)
                    args = [
                        x for arg in self.values[n].args for x in (arg if isinstance(arg, (list, tuple)) else [arg])
                    ]
                    todo += [x for x in args if isinstance(x, Traced)]
        return sorted(found)

    def _rotation(self, inv_freq: tuple[float, ...], factor: float, layout: str, n_dims: int) -> int:
        """Return the number of a rotation: a base, and divisors of its frequencies where they are no powers of it."""
        config = self.seen.model.config
        bases = [float(v) for v in _numbers_in(vars(config)) if v > 1]
        exponents = torch.arange(len(inv_freq), dtype=torch.float64) * 2 / n_dims
        wanted = torch.tensor(inv_freq, dtype=torch.float64)
        spec: dict[str, Any] = {"n_dims": n_dims, "layout": layout, "factor": factor, "factors": None}
        for base in [*bases, float(wanted[1].item() ** (-n_dims / 2)) if len(inv_freq) > 1 else 10000.0]:
            if float(((base**-exponents - wanted) / wanted).abs().max()) < 1e-5:
                spec["base"] = base
                break
        else:
            spec["base"] = 10000.0
            spec["factors"] = [float(one) for one in 10000.0**-exponents / wanted]
        if spec not in self.rotations:
            self.rotations.append(spec)
        return self.rotations.index(spec)

    def _attend(self, value: Value) -> int:
        q, k, v = value.args
        if any(op["op"] == "attend" for op in self.block.ops) or not self.block.where.startswith("layer"):
            raise self.refuse("second attention", value)
        if not all(isinstance(one, Traced) for one in (q, k, v)):
            raise self.refuse("attention", value)
        n_head, head_dim, v_dim = q.tensor.shape[1], q.tensor.shape[-1], v.tensor.shape[-1]
        k, v = self._distinct(k), self._distinct(v)
        n_kv = k.tensor.shape[1]
        if v.tensor.shape[1] != n_kv or k.tensor.shape[-1] != head_dim:
            raise self.refuse("attention with other heads of values than of keys", value)
        op: dict[str, Any] = {
            "op": "attend", "q": self.explain(q), "k": self.explain(k), "v": self.explain(v), "n_head": n_head,
            "n_kv_head": n_kv, "head_dim": head_dim, "v_head_dim": v_dim, "scale": value.named["scale"],
            "window": self._window(value),
        }  # fmt: skip
        if cap := value.named.get("softcap"):
            op["cap"] = float(cap)
        sinks = value.named.get("s_aux")
        if sinks is not None:
            op["sinks"] = self.expression(getattr(sinks, "expression", None), value)
        return self.emit(value.number, **op)

    def _distinct(self, traced: Traced) -> Traced:
        """Return keys or values without the copies of heads that queries share."""
        origin, h = traced.origin, traced.origin.shape[1]
        for n in range(1, h):
            if h % n == 0:
                first = origin[:, :: h // n]
                if torch.equal(first.repeat_interleave(h // n, dim=1), origin):
                    return Traced(traced.tensor[:, :: h // n], first)
        return traced

    def _window(self, value: Value) -> int:
        mask = value.named["mask"]
        rows = torch.arange(self.n)
        counts = mask.sum(-1)
        n = int(counts[-1])
        expected = (rows[None, :] <= rows[:, None]) & (rows[None, :] > rows[:, None] - n)
        if not torch.equal(mask, expected):
            raise self.refuse("attention mask", value)
        if n == self.n:
            return 0
        for short, real in self.seen.windows.items():
            if abs(n - short) <= 1:
                return real + n - short
        raise self.refuse(f"window of {n} tokens", value)


def _numbers_in(thing: Any) -> list[float]:
    if isinstance(thing, bool):
        return []
    if isinstance(thing, (int, float)):
        return [thing]
    if isinstance(thing, Mapping):
        return [number for one in thing.values() for number in _numbers_in(one)]
    return []
