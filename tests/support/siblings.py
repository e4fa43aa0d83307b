"""Models that transformers does not have, as others that it has: the same mathematics, other names and fused tensors.

Weights are made by the names of transformers' class; ``published`` turns them into the checkpoint that the model's own
authors publish, and ``config`` translates its configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Config = Mapping[str, object]
Tensors = dict[str, Array]


def nothing_more(config: Config, n: int) -> dict[str, Array]:
    return {}


@dataclass(frozen=True)
class Sibling:
    kind: str  # the class of transformers
    config: Callable[[Config], dict[str, object]]  # its configuration, from the published one
    published: Callable[[Config, Tensors], Tensors]
    inputs: Callable[[Config, int], dict[str, Array]] = nothing_more  # of its forward pass, for so many tokens


def number(config: Config, name: str) -> int:
    value = config[name]
    assert isinstance(value, int)
    return value


def renamed(names: Mapping[str, str]) -> Callable[[Config, Tensors], Tensors]:
    """Parts of names replaced, in order."""

    def published(config: Config, tensors: Tensors) -> Tensors:
        out = {}
        for name, values in tensors.items():
            for part, other in names.items():
                name = name.replace(part, other)
            out[name] = values
        return out

    return published


def fused(tensors: Tensors, parts: tuple[str, ...], whole: str) -> Tensors:
    """Tensors whose names differ in a part, one below the other."""
    out = dict(tensors)
    for name in tensors:
        if parts[0] in name:
            pieces = [out.pop(name.replace(parts[0], part)) for part in parts]
            out[name.replace(parts[0], whole)] = np.concatenate(pieces)
    return out


def llama_config(config: Config) -> dict[str, object]:
    return {**config, "model_type": "llama"}


SIBLINGS = {
    "XverseForCausalLM": Sibling("LlamaForCausalLM", llama_config, renamed({})),
}
