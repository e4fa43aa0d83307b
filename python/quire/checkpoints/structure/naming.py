"""How checkpoints of a transformers class name its weights, which may be stacked or renamed when it loads them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

_LAYER = re.compile(r"\.(\d+)\.")


@dataclass(frozen=True)
class Form:
    """How a checkpoint stores a weight, or a half of it: a name with ``{i}`` for the layer and ``{e}`` for experts."""

    name: str
    half: int | None = None
    transposed: bool = False


def template(name: str) -> str:
    """Return a weight's name with ``{i}`` for the number of its layer."""
    return _LAYER.sub(".{i}.", name, count=1)


def stored_state(model: Any) -> Mapping[str, torch.Tensor]:
    """Return the model's tensors as transformers would save them."""
    from transformers.core_model_loading import revert_weight_conversion

    state = dict(model.state_dict())
    with torch.no_grad():
        found: Mapping[str, torch.Tensor] = revert_weight_conversion(model, state)
    return found


def _key(tensor: torch.Tensor) -> tuple[Any, ...]:
    flat = tensor.reshape(-1)
    picked = flat[:: max(1, flat.numel() // 7)]
    return (tuple(tensor.shape), *picked[:8].tolist())


def _pieces(name: str, weight: torch.Tensor) -> Iterator[tuple[torch.Tensor, str, Form]]:
    """Yield a weight and its parts, with the weight's name and the form that the part is."""
    for transposed in (False, True):
        whole = weight.transpose(-1, -2) if transposed and weight.dim() > 1 else weight
        if transposed and weight.dim() < 2:
            return
        yield whole, name, Form("", None, transposed)
        if weight.dim() != 3:
            continue
        for e in range(min(2, weight.shape[0])):
            one = whole[e]
            yield one, name, Form(f"{{e}}{e}", None, transposed)
            rows = one.shape[0] // 2
            for half in (0, 1):
                yield one[half * rows : (half + 1) * rows], name, Form(f"{{e}}{e}", half, transposed)
        for half in (0, 1):
            rows = whole.shape[1] // 2
            yield whole[:, half * rows : (half + 1) * rows], name, Form("", half, transposed)


def forms_of(model: Any, stored: Mapping[str, torch.Tensor]) -> dict[str, list[Form]]:
    """Return how checkpoints store each weight whose name or shape differs there, by its template."""
    own = dict(model.state_dict())
    left = {name: one for name, one in own.items() if name not in stored or stored[name].shape != one.shape}
    index: dict[tuple[Any, ...], tuple[str, Form]] = {}
    for name, weight in left.items():
        for piece, owner, form in _pieces(name, weight):
            index.setdefault(_key(piece), (owner, form))
    found: dict[str, list[Form]] = {}
    for name, tensor in stored.items():
        if name in own and own[name].shape == tensor.shape:
            continue
        known = index.get(_key(tensor))
        if known is None:
            continue
        owner, form = known
        path = template(name)
        if form.name:
            number = form.name.removeprefix("{e}")
            path = re.sub(rf"\.{number}(?=\.)(?!.*\.{number}\.)", ".{e}", path, count=1)
        made = Form(path, form.half, form.transposed)
        forms = found.setdefault(template(owner), [])
        if made not in forms and (not form.name or "{e}" in path):
            forms.append(made)
    return found
