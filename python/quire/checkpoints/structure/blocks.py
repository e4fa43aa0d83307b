"""The operations of a description, and the walk back through recorded values that writes them."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ...errors import UnsupportedError
from .observed import Observation
from .recorder import SHIFT, Expression, Traced, Value

VERSION = 1
ADD = {"add", "__add__", "__radd__", "add_", "__iadd__"}
SUB = {"sub", "__sub__", "sub_", "__isub__", "subtract"}
RSUB = {"rsub", "__rsub__"}
MUL = {"mul", "__mul__", "__rmul__", "mul_", "__imul__", "multiply"}
DIV = {"div", "__truediv__", "div_", "true_divide", "__itruediv__", "divide"}
TURNS = ADD | SUB | MUL | {"neg", "stack", "cat"}  # rotations are made of these
KNOWN_NAMES = {
    "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output", "gate_proj": "ffn_gate",
    "up_proj": "ffn_up", "down_proj": "ffn_down",
}  # fmt: skip


@dataclass
class Source:
    """A tensor of the file: the weight, and which of its rows (see ``pattern_of``); whether it is stored transposed."""

    name: str
    rows: dict[str, int] | None = None
    transposed: bool = False
    half: int | None = None  # 0, 1: the first or second half of each expert's rows
    flat: bool = False  # one row, as a vector


def canonical(tensor: torch.Tensor, n: int) -> torch.Tensor | None:
    """Return a tensor as ``[tokens, numbers]``; None if it has no dimension of the text's length."""
    axes = [i for i, size in enumerate(tensor.shape) if size == n]
    if not axes:
        return None
    return tensor.movedim(axes[0], 0).reshape(n, -1)


def pattern_of(rows: Sequence[int], total: int) -> dict[str, int] | None:
    """Return the pattern of a choice of rows: the same stretch of each of ``groups`` equal groups of rows."""
    ends = [i + 1 for i in range(len(rows) - 1) if rows[i + 1] != rows[i] + 1] + [len(rows)]
    size = ends[0]
    if any(end != (i + 1) * size for i, end in enumerate(ends)):
        return None
    if len(ends) == 1:
        return {"groups": 1, "size": total, "begin": rows[0], "end": rows[0] + size}
    period = rows[size] - rows[0]
    groups = len(ends)
    regular = all(rows[g * size] == rows[0] + g * period for g in range(groups))
    if not regular or groups * period != total or rows[0] + size > period:
        return None
    return {"groups": groups, "size": period, "begin": rows[0], "end": rows[0] + size}


@dataclass
class Block:
    """The operations of one layer, or of what comes before or after all layers."""

    base: int  # the value that it starts with
    ops: list[dict[str, Any]] = field(default_factory=list)
    found: dict[Any, int] = field(default_factory=dict)
    sources: dict[str, Source] = field(default_factory=dict)
    where: str = ""


class Walker(ABC):
    """Walks back from the results of a recorded model to its text.

    ``explain`` emits what computes a tensor, and returns its reference; subclasses know the calls.
    """

    def __init__(self, seen: Observation) -> None:
        self.seen, self.recorder, self.n = seen, seen.recorder, seen.n_tokens
        self.values = seen.recorder.values
        self.weights: dict[str, torch.Tensor] = dict(seen.model.named_parameters(remove_duplicate=False))
        self.weights |= dict(seen.model.named_buffers())
        self.rotations: list[dict[str, Any]] = []
        self.block = Block(0)
        self.tables = self.read_tables()

    # Values

    def refuse(self, what: str, value: Value | None = None) -> UnsupportedError:
        path = value.where if value is not None else ""
        at = f" ({path})" if path else ""
        return UnsupportedError(f"[fallback] unsupported {what} of {self.block.where}{at}")

    def emit(self, key: Any, **op: Any) -> int:
        self.block.ops.append(op)
        self.block.found[key] = len(self.block.ops)
        return len(self.block.ops)

    def columns(self, traced: Traced) -> tuple[Value, list[int]] | None:
        """Return the value that a tensor consists of, and its columns; None if there are several."""
        numbers = traced.numbers
        if len(numbers) != 1:
            return None
        value = self.values[numbers[0]]
        origin = canonical(traced.origin, self.n)
        order = canonical(torch.arange(value.result.numel()).reshape(value.result.shape), self.n)
        if origin is None or order is None:
            return None
        n_columns = order.shape[1]
        column = torch.empty(value.result.numel(), dtype=torch.int64)
        column[order.reshape(-1)] = torch.arange(n_columns).repeat(self.n)
        row = torch.empty_like(column)
        row[order.reshape(-1)] = torch.arange(self.n).repeat_interleave(n_columns)
        index = origin & ((1 << SHIFT) - 1)
        columns = column[index]
        if not torch.equal(row[index], torch.arange(self.n)[:, None].expand_as(index)):
            return None
        if not torch.equal(columns, columns[:1].expand_as(columns)):
            return None
        return value, [int(one) for one in columns[0]]

    def width(self, value: Value) -> int:
        return int(value.result.numel()) // self.n

    def explain(self, traced: Traced) -> int:
        """Emit what computes a tensor; return its reference."""
        found = self.columns(traced)
        if found is None:
            turned = self.turned(traced)
            if turned is not None:
                return turned
            value = self.values[max(traced.numbers)]
            raise self.refuse("joining of values", value)
        value, columns = found
        total = self.width(value)
        if columns == list(range(total)):
            return self.explain_value(value)
        key = (value.number, tuple(columns))
        if key in self.block.found:
            return self.block.found[key]
        pattern = pattern_of(columns, total)
        if value.number > self.block.base and pattern is not None and (linear := self.linear_of(value)) is not None:
            return self.linear(key, linear, self._scaled(pattern, total))
        if pattern is None or pattern["groups"] != 1:
            raise self.refuse("order of numbers", value)
        return self.emit(key, op="slice", x=self.explain_value(value), **self._scaled(pattern, total))

    def _scaled(self, pattern: dict[str, int], total: int) -> dict[str, int]:
        """Return a stretch as one of several equal parts where it is one, as MLPs are narrower here."""
        n = pattern["end"] - pattern["begin"]
        if pattern["groups"] == 1 and total % n == 0 and pattern["begin"] % n == 0:
            return {"part": pattern["begin"] // n, "parts": total // n}
        return pattern

    def explain_value(self, value: Value) -> int:
        if value.number == self.block.base:
            return 0
        if value.number in self.block.found:
            return self.block.found[value.number]
        if value.number < self.block.base:
            raise self.refuse(f"use of an earlier layer's value ({value.call})", value)
        return self._explained(value)

    def _all_of(self, value: Value) -> Traced:
        origin = torch.arange(value.result.numel()).reshape(value.result.shape) + (value.number << SHIFT)
        return Traced(value.result, origin)

    @abstractmethod
    def read_tables(self) -> list[tuple[tuple[float, ...], float]]:
        """Return the frequencies of every rotary embedding, with the factor of cosines and sines."""

    @abstractmethod
    def _explained(self, value: Value) -> int:
        """Emit what computes a value from this block."""

    @abstractmethod
    def turned(self, traced: Traced) -> int | None:
        """Emit a rotation by positions; None if the tensor is none."""

    @abstractmethod
    def linear_of(self, value: Value) -> tuple[Traced, Source, str | None] | None:
        """Return the input, matrix and bias of a product; None if the value is none."""

    @abstractmethod
    def linear(self, key: Any, parts: tuple[Traced, Source, str | None], rows: dict[str, int] | None) -> int:
        """Emit a product with some rows of a matrix."""

    # Weights

    def name_of(self, weight: str) -> str:
        """Return a weight's name in the file."""
        layer = re.search(r"\.(\d+)\.", weight)
        if self.block.where.startswith("layer") and layer is not None:
            path = weight[layer.end() :].split(".")
        else:
            path = weight.split(".")
        suffix = path[-1] if path[-1] in ("weight", "bias") else "weight"
        parts = path[:-1] if path[-1] in ("weight", "bias") else path
        last = parts[-1] if parts else "weights"
        attends = any("attn" in part or "attention" in part for part in parts)
        if last in KNOWN_NAMES and (attends or last in ("gate_proj", "up_proj", "down_proj")) and len(parts) == 2:
            name = "attn_gate" if attends and last == "gate_proj" else KNOWN_NAMES[last]
        else:
            name = "_".join(part for part in parts if part not in ("model", "transformer"))[-40:].lstrip("_")
        return f"{name}.{suffix}"

    def take(self, source: Source, name: str | None = None) -> str:
        """Return the name in the file of (a part of) a weight."""
        base = name or self.name_of(source.name)
        if source.rows and name is None:
            part = "_".join(str(source.rows[key]) for key in ("part", "begin") if key in source.rows)
            head, _, suffix = base.rpartition(".")
            base = f"{head}_{part}.{suffix}"
        head, _, suffix = base.rpartition(".")
        for i in range(99):
            full = base if not i else f"{head}_{i}.{suffix}"
            if self.block.sources.setdefault(full, source) == source:
                return full
        raise AssertionError(base)

    def expression(self, expression: Expression, value: Value) -> Expression:
        """Return an expression with the file's names, or a name."""
        if expression is None:
            raise self.refuse("computed weight", value)
        if isinstance(expression, str):
            return self.take(Source(expression))
        if isinstance(expression, list):
            return [expression[0], *(self.expression(one, value) for one in expression[1:])]
        return float(expression)
