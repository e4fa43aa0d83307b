"""Record what a transformers model computes, call by call, while it runs once on a short text.

Every tensor that depends on the text carries the *origin* of each of its numbers: which recorded value it is a copy of,
and where it lies there.  Calls that only move numbers (views, slices, concatenations) are replayed on the origins, so
that only calls that compute something become values.  Modules whose formula is found by trying it (norms, activations,
mixtures of experts, rotary embeddings) are recorded as one value each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

SHIFT = 40  # an origin is the number of the value, shifted, plus the index of the number in it
_MASK = (1 << SHIFT) - 1
# Calls that only move numbers.
_MOVES = {
    "view", "reshape", "transpose", "permute", "unsqueeze", "squeeze", "flatten", "unflatten", "expand", "repeat",
    "repeat_interleave", "__getitem__", "chunk", "split", "split_with_sizes", "unbind", "cat", "concat", "stack",
    "contiguous", "swapaxes", "swapdims", "movedim", "narrow", "select", "t", "index_select", "view_as", "expand_as",
    "tensor_split", "tile", "broadcast_to", "__get__", "unsafe_chunk", "unsafe_split",
}  # fmt: skip
# Calls that return the same numbers, perhaps in another type.
_COPIES = {
    "to", "float", "type", "type_as", "dropout", "clone", "detach", "double", "half", "bfloat16", "requires_grad_",
    "contiguous", "alias",
}  # fmt: skip
# Calls that can be repeated with NumPy on weights alone.
_OF_WEIGHTS = {
    "mul": "mul", "__mul__": "mul", "__rmul__": "mul", "multiply": "mul", "add": "add", "__add__": "add",
    "__radd__": "add", "abs": "abs", "square": "square", "exp": "exp", "neg": "neg", "sigmoid": "sigmoid",
    "tanh": "tanh", "softplus": "softplus", "div": "div", "__truediv__": "div", "sub": "sub", "__sub__": "sub",
}  # fmt: skip

Expression = Any  # the name of a weight, a number, or a list: an operation and its operands


@dataclass
class Value:
    """A recorded result: what computed it, from what."""

    number: int
    call: str  # the function's name, or norm, elementwise, experts, rotary, attend, text
    result: torch.Tensor
    where: str  # the path of the module
    args: tuple[Any, ...] = ()
    named: dict[str, Any] = field(default_factory=dict)
    function: Callable[..., Any] | None = None
    module: Any = None


@dataclass(frozen=True)
class Traced:
    """A tensor with the origin of each number."""

    tensor: torch.Tensor
    origin: torch.Tensor

    @property
    def numbers(self) -> list[int]:
        """The values that it consists of."""
        return [int(n) for n in torch.unique(self.origin >> SHIFT)]


@dataclass(frozen=True)
class Constant:
    """A tensor computed from weights alone; ``expression`` is None if NumPy cannot repeat it."""

    tensor: torch.Tensor
    expression: Expression | None


def tensors_of(thing: Any) -> Iterator[torch.Tensor]:
    if isinstance(thing, torch.Tensor):
        yield thing
    elif isinstance(thing, (tuple, list)):
        for one in thing:
            yield from tensors_of(one)
    elif isinstance(thing, dict):
        yield from tensors_of(list(thing.values()))


def replaced(thing: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Return nested arguments with each tensor changed."""
    if isinstance(thing, torch.Tensor):
        return change(thing)
    if isinstance(thing, (tuple, list)) and not isinstance(thing, torch.Size):
        return type(thing)(replaced(one, change) for one in thing)
    if isinstance(thing, dict):
        return {name: replaced(one, change) for name, one in thing.items()}
    return thing


class Recorder(TorchFunctionMode):  # type: ignore[misc]
    """Records the calls of a model's forward pass.

    Attributes:
        values: What was computed, in order; value 0 is the text.
        layers: Input and output of each decoder layer.
    """

    def __init__(self, model: Any, layers: Any, persistent: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.values: list[Value] = []
        self.layers: list[tuple[Traced | None, Traced | None]] = []
        self._traced: dict[int, Traced] = {}
        self._constants: dict[int, Constant] = {}
        self._kept: list[torch.Tensor] = []  # so that no identity is used twice
        self._paused = 0
        self._path = [""]
        self._hooks: list[Any] = []
        self._inputs: dict[int, Any] = {}
        for name, tensor in persistent.items():
            self._constants.setdefault(id(tensor), Constant(tensor, name))
        for path, module in model.named_modules():
            self._watch(path, module)
        for layer in layers:
            self._hooks.append(layer.register_forward_pre_hook(self._enter_layer, with_kwargs=True))
            self._hooks.append(layer.register_forward_hook(self._leave_layer))

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def start(self, ids: torch.Tensor) -> None:
        """Declare the text's tokens."""
        self.add("text", ids, force=True)

    def traced(self, tensor: Any) -> Traced | None:
        return self._traced.get(id(tensor))

    def constant(self, tensor: Any) -> Constant | None:
        return self._constants.get(id(tensor))

    def operand(self, thing: Any) -> Any:
        """Return what is known of an argument."""
        if not isinstance(thing, torch.Tensor):
            return thing
        return self.traced(thing) or self.constant(thing) or thing

    def add(self, call: str, result: torch.Tensor, *, force: bool = False, **more: Any) -> None:
        """Record a value."""
        if not (force or result.dtype.is_floating_point or result.dtype.is_complex):
            return
        number = len(self.values)
        self.values.append(Value(number, call, result.detach().clone(), self._path[-1], **more))
        origin = torch.arange(result.numel()).reshape(result.shape) + (number << SHIFT)
        self._keep(result, origin)

    def _keep(self, tensor: torch.Tensor, origin: torch.Tensor) -> None:
        self._kept.append(tensor)
        self._traced[id(tensor)] = Traced(tensor, origin)

    # Modules

    def _watch(self, path: str, module: Any) -> None:
        kind = kind_of(module)

        def enter(module: Any, args: Any, kwargs: Any) -> None:
            self._path.append(path)
            if kind and not self._paused:
                self._inputs[len(self._path)] = replaced((args, kwargs), self.operand)
            self._paused += bool(kind)

        def leave(module: Any, args: Any, kwargs: Any, output: Any) -> None:
            self._paused -= bool(kind)
            if kind and not self._paused:
                known, named = self._inputs.pop(len(self._path))
                for result in tensors_of(output):
                    self.add(kind, result, args=known, named=named, module=module)
            self._path.pop()

        self._hooks.append(module.register_forward_pre_hook(enter, with_kwargs=True))
        self._hooks.append(module.register_forward_hook(leave, with_kwargs=True))

    def _enter_layer(self, module: Any, args: Any, kwargs: Any) -> None:
        tensor = next(tensors_of((args, kwargs)), None)
        self.layers.append((self.traced(tensor), None))

    def _leave_layer(self, module: Any, args: Any, output: Any) -> None:
        tensor = next(tensors_of(output), None)
        self.layers[-1] = (self.layers[-1][0], self.traced(tensor))

    # Calls

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._paused:
            return func(*args, **kwargs)
        known = replaced((args, kwargs), self.operand)
        output = func(*args, **kwargs)
        if not any(True for _ in tensors_of(output)):
            return output
        self._paused += 1
        try:
            self._record(func, args, kwargs, known, output)
        finally:
            self._paused -= 1
        return output

    def _record(self, func: Any, args: Any, kwargs: Any, known: Any, output: Any) -> None:
        name = func.__name__
        given = list(tensors_of((args, kwargs)))
        traced = [one for one in given if id(one) in self._traced]
        if name in ("expand_as", "view_as") and isinstance(known[0][0], Constant):
            self._kept.append(output)
            self._constants[id(output)] = known[0][0]
        elif traced:
            floats = [one for one in given if one.dtype.is_floating_point or id(one) in self._traced]
            if name in _COPIES and isinstance(output, torch.Tensor) and output.shape == given[0].shape:
                self._keep(output, self._traced[id(given[0])].origin)
                return
            if name in _MOVES and all(id(one) in self._traced for one in floats):
                if name == "view":  # origins may lie in memory otherwise
                    moved: Any = self._origin(args[0]).reshape(output.shape)
                else:
                    moved = func(*replaced(args, self._origin), **replaced(kwargs, self._origin))
                for one, origin in zip(tensors_of(output), tensors_of(moved), strict=True):
                    self._keep(one, origin)
                return
            for result in tensors_of(output):
                self.add(name, result, args=known[0], named=known[1], function=func)
        elif any(id(one) in self._constants for one in given):
            expression = self._expression(name, known, output)
            for result in tensors_of(output):
                self._kept.append(result)
                self._constants[id(result)] = Constant(result, expression)

    def _origin(self, tensor: torch.Tensor) -> torch.Tensor:
        found = self._traced.get(id(tensor))
        return tensor if found is None else found.origin

    def _expression(self, name: str, known: Any, output: Any) -> Expression | None:
        args, named = known
        first = args[0] if args else None
        if isinstance(first, Constant) and isinstance(output, torch.Tensor):
            if name in _COPIES:
                return first.expression
            if name in _MOVES and output.numel() == first.tensor.numel():
                same = torch.equal(output.reshape(-1), first.tensor.reshape(-1))
                if same and not (output.dim() == 2 and output.shape != first.tensor.shape and 1 not in output.shape):
                    return first.expression
            if output.dim() == 2 and output.shape == first.tensor.shape[::-1] and torch.equal(output, first.tensor.T):
                return None if first.expression is None else ["transpose", first.expression]
        if name == "pow" and len(args) == 2 and args[1] == 2:
            name, args = "square", args[:1]
        if name not in _OF_WEIGHTS or named:
            return None
        operands = [one.expression if isinstance(one, Constant) else one for one in args]
        if any(one is None or isinstance(one, (torch.Tensor, Traced)) for one in operands):
            return None
        return [_OF_WEIGHTS[name], *operands]


def kind_of(module: Any) -> str:
    """Return the kind of a module that is recorded as one value; empty: its calls are recorded."""
    if isinstance(module, (torch.nn.Linear, torch.nn.Embedding, torch.nn.Dropout, torch.nn.Identity)):
        return ""
    name = type(module).__name__.lower()
    weights = list(module.parameters(recurse=False))
    if any(weight.dim() == 3 for weight in weights):
        return "experts"
    if any("inv_freq" in name for name, _ in module.named_buffers(recurse=False)):
        return "rotary"
    if any(True for _ in module.children()) or isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)):
        return ""
    if "norm" in name and all(weight.dim() == 1 for weight in weights):
        return "norm"
    return "" if weights else "elementwise"
