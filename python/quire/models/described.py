"""Models that the file describes as a list of operations, for transformers' classes that have no file of their own.

``quire.checkpoints.structure`` writes the description, from what such a class computes.  It is the JSON text
``described.program``: operations before the layers (``input``), of each kind of layer (``kinds``), the kind of each
layer (``layers``), and what follows (``output``).  Operations refer to values of their block by number: 0 is the
block's input, n the result of its n-th operation.  A weight is a name or a list: a function and its operands.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from .._native import graph
from ..errors import CapacityError, LoadError, QuireError, UnsupportedError
from ..nn import (
    CacheSpec,
    Embedding,
    Keys,
    LayerNorm,
    Linear,
    MoeSpec,
    RMSNorm,
    RopeSpec,
    Step,
    Tensor,
    Weight,
    Weights,
    select_rows,
)
from .base import MAX_DIM, MAX_HEAD_DIM, MAX_HEADS, Config

if TYPE_CHECKING:
    from .._native.graph import Activation

GENERIC = ("described",)  # no architecture of its own
VERSION = 1
MAX_OPERATIONS = 4096  # in a block
MAX_COMPUTED = 1 << 27  # numbers of all weights that expressions compute
MAX_DEPTH = 64  # levels of an expression

Op = Mapping[str, Any]
Values = list[Tensor]
Run = Callable[[Values, Step], Tensor]
_VECTORS: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "abs": np.abs, "square": np.square,
    "exp": np.exp, "neg": np.negative, "tanh": np.tanh, "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "softplus": lambda x: np.logaddexp(0, x), "tile": lambda x, n: np.tile(x.reshape(-1), int(n)),
    "repeat": lambda x, n: np.repeat(x.reshape(-1), int(n)),
}  # fmt: skip
_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "relu_squared": graph.relu_squared, "quick_gelu": graph.quick_gelu, "sigmoid": graph.sigmoid, "tanh": graph.tanh,
    "softplus": graph.softplus, "exp": graph.exp, "negate": graph.negate,
}  # fmt: skip
GATES = ("silu", "gelu", "gelu_tanh", "relu")
# The values that each operation reads.
OPERATIONS: dict[str, tuple[str, ...]] = {
    "same": ("x",), "embed": (), "positions": (), "linear": ("x",), "slice": ("x",), "norm": ("x",), "unary": ("x",),
    "glu": ("gate", "up"), "clamp": ("x",), "add": ("a", "b"), "mul": ("a", "b"), "scale": ("x",),
    "add_weight": ("x",), "mul_weight": ("x",), "rope": ("x",), "attend": ("q", "k", "v"), "moe": ("x", "scores"),
}  # fmt: skip
# Errors of operations whose fields do not fit together.
_MALFORMED = (ValueError, KeyError, TypeError, IndexError, AttributeError, ArithmeticError, AssertionError,
              RecursionError, MemoryError)  # fmt: skip


@dataclass(frozen=True)
class DescribedConfig(Config):
    width: int  # the widest rows'

    @property
    def widest(self) -> int:
        return self.width


def heads(x: Tensor, dim: int) -> Tensor:
    """Return rows as heads of ``dim`` numbers."""
    if len(x.shape) == 3 and x.shape[2] == dim:
        return x
    return flat(x).heads(width(x) // dim)


def width(x: Tensor) -> int:
    """Return how many numbers a row has."""
    return math.prod(int(size) for size in x.shape[1:])


def flat(x: Tensor) -> Tensor:
    return x.merge_heads() if len(x.shape) == 3 else x


class Block:
    """The operations of one block, with its weights."""

    def __init__(self, ops: Sequence[Op], weights: Weights, model: Described, layer: int) -> None:
        self.ops, self.weights, self.model, self.layer = ops, weights, model, layer
        self.runs = [self._made(op, i) for i, op in enumerate(ops)]

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        values = [x]
        for run in self.runs:
            values.append(run(values, step))
        return flat(values[-1])

    def _made(self, op: Op, i: int) -> Run:
        name = op["op"]
        if not isinstance(name, str) or name not in OPERATIONS:
            raise UnsupportedError(f"[described] unknown operation {name!r:.50}")
        for field in OPERATIONS[name]:
            if type(op[field]) is not int or not 0 <= op[field] <= i:
                raise LoadError(f"[described] '{field}' of operation {i + 1} is {op[field]!r:.50}: expected 0 to {i}")
        return cast("Run", getattr(self, f"_{name}")(op))

    # Weights

    def vector(self, weight: Any) -> Weight:
        """Return a weight, computed if it is an expression."""
        if isinstance(weight, str):
            return self.weights.tensor(weight, self.weights.shape(weight), vector=True)
        values = np.asarray(self._numbers(weight), np.float32).reshape(-1)
        return self.weights.computed(f"computed.{len(self.model.computed)}", self.model.count(values))

    def _numbers(self, weight: Any, depth: int = 0) -> Any:
        if isinstance(weight, str):
            key = (self.layer, weight)
            if key not in self.model.read:
                self.model.read[key] = self.weights.numbers(weight, self.weights.shape(weight))
            return self.model.read[key]
        if isinstance(weight, (int, float)):
            return np.float32(weight)
        if depth >= MAX_DEPTH:
            raise LoadError(f"[described] an expression is nested too deeply: expected at most {MAX_DEPTH} levels")
        operands = [self._numbers(one, depth + 1) for one in weight[1:]]
        size = math.prod(np.broadcast_shapes(*(np.shape(one) for one in operands)))
        self.model.reserve(size * int(operands[1]) if weight[0] in ("tile", "repeat") else size)
        with np.errstate(all="ignore"):
            return _VECTORS[weight[0]](*operands)

    def matrix(self, name: str, bias: str | None) -> Linear:
        known = self.model.embeddings.get(name) if self.layer < 0 else None
        if known is not None:
            return Linear(known.weight, None if bias is None else self.vector(bias))
        n_out, n_in = self.weights.shape(name)
        return self.weights.linear(name.removesuffix(".weight"), n_in, n_out, bias=bias is not None)

    # Operations

    def _same(self, op: Op) -> Run:
        return lambda values, step: values[op["x"]]

    def _embed(self, op: Op) -> Run:
        name = op["w"]
        shape = self.weights.shape(name)
        if shape[0] < self.model.config.n_vocab:
            raise LoadError(f"[described] '{name}' has {shape[0]} rows: expected {self.model.config.n_vocab}")
        table = Embedding(self.weights.tensor(name, shape))
        self.model.embeddings[name] = table
        return lambda values, step: table(step.tokens)

    def _positions(self, op: Op) -> Run:
        n, dim = self.weights.shape(op["w"])
        table = Embedding(self.weights.tensor(op["w"], (n, dim)))

        def run(values: Values, step: Step) -> Tensor:
            if step.n_ctx > n:
                raise CapacityError(f"[described] n_ctx {step.n_ctx} is too large: the model has {n} positions")
            return table(step.positions)

        return run

    def _linear(self, op: Op) -> Run:
        linear = self.matrix(op["w"], op.get("b"))
        return lambda values, step: linear(flat(values[op["x"]]))

    def _slice(self, op: Op) -> Run:
        def run(values: Values, step: Step) -> Tensor:
            x = flat(values[op["x"]])
            n = x.shape[1]
            assert isinstance(n, int)
            if "part" in op:
                return graph.slice(x, 0, op["part"] * n // op["parts"], (op["part"] + 1) * n // op["parts"])
            if op["size"] != n:
                raise LoadError(f"[described] a slice of {n} numbers: expected {op['size']}")
            return graph.slice(x, 0, op["begin"], op["end"])

        return run

    def _norm(self, op: Op) -> Run:
        weight = self.vector(op["w"]) if "w" in op else None
        bias = self.vector(op["b"]) if "b" in op else None
        eps, kind, n_head = float(op["eps"]), op["kind"], int(op["heads"])

        def run(values: Values, step: Step) -> Tensor:
            x = values[op["x"]]
            x = heads(x, width(x) // n_head) if n_head != 1 else flat(x)
            if kind == "layer":
                return LayerNorm(weight, bias, eps)(x)
            if kind == "unit":
                y = graph.l2_norm(x, eps)
                y = y if weight is None else graph.multiply_weight(y, weight)
            else:
                y = graph.rms_norm(x, None, eps) if weight is None else RMSNorm(weight, eps)(x)
            return y if bias is None else graph.add_weight(y, bias)

        return run

    def _unary(self, op: Op) -> Run:
        name = op["f"]
        if name in GATES:
            return lambda values, step: graph.activate(values[op["x"]], name)
        return lambda values, step: _UNARY[name](values[op["x"]])

    def _glu(self, op: Op) -> Run:
        return lambda values, step: graph.glu(flat(values[op["gate"]]), flat(values[op["up"]]), op["f"])

    def _clamp(self, op: Op) -> Run:
        return lambda values, step: graph.clamp(values[op["x"]], float(op["low"]), float(op["high"]))

    def _add(self, op: Op) -> Run:
        return lambda values, step: flat(values[op["a"]]) + flat(values[op["b"]])

    def _mul(self, op: Op) -> Run:
        def run(values: Values, step: Step) -> Tensor:
            a, b = flat(values[op["a"]]), flat(values[op["b"]])
            return a * b if a.shape == b.shape else graph.multiply_broadcast(a, b)

        return run

    def _scale(self, op: Op) -> Run:
        return lambda values, step: values[op["x"]] * float(op["by"])

    def _add_weight(self, op: Op) -> Run:
        weight = self.vector(op["w"])
        return lambda values, step: graph.add_weight(flat(values[op["x"]]), weight)

    def _mul_weight(self, op: Op) -> Run:
        weight = self.vector(op["w"])
        return lambda values, step: graph.multiply_weight(flat(values[op["x"]]), weight)

    def _rope(self, op: Op) -> Run:
        spec, dim = self.model.rotations[op["rotation"]], int(op["dim"])
        n_dims = self.model.rotated[op["rotation"]]

        def run(values: Values, step: Step) -> Tensor:
            x = heads(values[op["x"]], dim)
            if not op["at_end"]:
                return graph.rope(x, step.positions, spec)
            rest = graph.slice(x, 0, 0, dim - n_dims)
            return graph.concat(rest, graph.rope(graph.slice(x, 0, dim - n_dims, dim), step.positions, spec), 0)

        return run

    def _attend(self, op: Op) -> Run:
        sinks = self.vector(op["sinks"]) if "sinks" in op else None

        def run(values: Values, step: Step) -> Tensor:
            q, k = (heads(values[op[one]], op["head_dim"]) for one in "qk")
            v = heads(values[op["v"]], op["v_head_dim"])
            cap = float(op.get("cap", 0.0))
            return step.attend(self.layer, q, k, v, scale=float(op["scale"]), soft_cap=cap, sinks=sinks)

        return run

    def _moe(self, op: Op) -> Run:
        shapes = self.weights.shape(op["down"])
        n, dim, ffn_dim = shapes
        if "gate_up" in op:
            gate, up = self.weights.gates_and_ups(n, ffn_dim, dim)
        else:
            gate, up = (self.weights.tensor(f"ffn_{part}_exps.weight", (n, ffn_dim, dim)) for part in ("gate", "up"))
        down = self.weights.tensor(op["down"], (n, dim, ffn_dim))
        bias = self.vector(op["bias"]) if "bias" in op else None
        activation: Activation = op["f"]
        spec = MoeSpec(
            n_used=op["n_used"], activation=activation, gating=op["gating"], normalize=op["normalize"],
            scale=op["scale"], n_group=op["n_group"], n_group_used=op["n_group_used"], group_score=op["group_score"],
        )  # fmt: skip

        def run(values: Values, step: Step) -> Tensor:
            return graph.moe(
                flat(values[op["x"]]), flat(values[op["scores"]]), gate, up, down, spec, selection_bias=bias
            )

        return run


class Described:
    """A decoder whose forward pass is data."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        try:
            program: dict[str, Any] = json.loads(keys.text("program"))
            self._build(keys, weights, n_vocab, program)
        except QuireError:
            raise
        except _MALFORMED as error:
            raise LoadError(f"[described] '{keys.full('program')}' is malformed: {error!r:.200}") from None

    def _build(self, keys: Keys, weights: Weights, n_vocab: int, program: dict[str, Any]) -> None:
        keys.only("version", VERSION)
        if program["version"] != VERSION:
            raise UnsupportedError(f"[described] unsupported version {program['version']}: expected {VERSION}")
        base = Config.read(keys, n_vocab)
        kinds = [program["kinds"][i] for i in program["layers"]]
        if len(kinds) != base.n_layer:
            raise LoadError(f"[described] {len(kinds)} layers are described: expected {base.n_layer}")
        if max(map(len, [program["input"], program["output"], *program["kinds"]])) > MAX_OPERATIONS:
            raise LoadError(f"[described] too many operations: expected at most {MAX_OPERATIONS}")
        self.config = DescribedConfig(**vars(base), width=keys.integer("width", base.dim, low=1, high=MAX_DIM))
        self.embeddings: dict[str, Embedding] = {}
        self.read: dict[tuple[int, str], Any] = {}
        self.computed: list[int] = []
        self.n_computed = 0
        self.specs = [_cache_of(ops) for ops in kinds]
        self.rotated = [int(spec["n_dims"]) for spec in program["rotations"]]
        self.rotations = [_rotation(spec, i, weights) for i, spec in enumerate(program["rotations"])]
        self.input = Block(program["input"], weights, self, -1)
        self.blocks = [
            Block(ops, block, self, i)
            for i, (ops, block) in enumerate(zip(kinds, weights.blocks(base.n_layer), strict=True))
        ]
        self.output = Block(program["output"], weights, self, -1)

    def reserve(self, size: int) -> None:
        """Count the numbers of a result before it is made."""
        self.n_computed += size
        if size < 0 or self.n_computed > MAX_COMPUTED:
            raise LoadError(f"[described] computed weights are too large: expected at most {MAX_COMPUTED} numbers")

    def count(self, values: Any) -> Any:
        """Number a computed weight."""
        self.computed.append(values.size)
        return values

    def cache(self) -> list[CacheSpec]:
        return list(self.specs)

    def __call__(self, step: Step) -> Tensor:
        try:
            return self._run(step)
        except QuireError:
            raise
        except _MALFORMED as error:
            raise LoadError(f"[described] the operations do not fit together: {error!r:.200}") from None

    def _run(self, step: Step) -> Tensor:
        x = self.input(step.tokens, step) if self.input.runs else step.tokens
        x = step.run_layers(self.blocks, step.with_media(x))
        return self.output(select_rows(x, step.logit_rows), step)


MODEL = Described


def _cache_of(ops: Sequence[Op]) -> CacheSpec:
    attends = [op for op in ops if op["op"] == "attend"]
    if not attends:
        return CacheSpec()
    (op,) = attends
    for name, most in (("n_head", MAX_HEADS), ("n_kv_head", MAX_HEADS), ("head_dim", MAX_HEAD_DIM),
                       ("v_head_dim", MAX_HEAD_DIM)):  # fmt: skip
        if not 0 < int(op[name]) <= most:
            raise LoadError(f"[described] {name} {op[name]} is out of range: expected 1 to {most}")
    return CacheSpec(
        n_kv_head=op["n_kv_head"], head_dim=op["head_dim"], v_head_dim=op["v_head_dim"], window=op["window"]
    )


def _rotation(spec: Mapping[str, Any], i: int, weights: Weights) -> RopeSpec:
    factors = None
    if spec["factors"] is not None:
        values = np.asarray(spec["factors"], np.float32)
        factors = weights.computed(f"rope_factors.{i}", values)
    return RopeSpec(
        n_dims=spec["n_dims"], layout=spec["layout"], freq_base=float(spec["base"]), attn_factor=float(spec["factor"]),
        factors=factors,
    )  # fmt: skip
