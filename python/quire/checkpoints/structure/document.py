"""The description of a transformers class, as JSON: how it computes, and how its checkpoints name tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

REVISION = 2  # part of the cache's key: increase it when descriptions change
Json = Mapping[str, Any]


@dataclass(frozen=True)
class Document:
    """A described class.

    Attributes:
        kind: The class's name.
        program: See ``models/described.py``.
        sources: Where each tensor of the file comes from (``describing.Source``).
        forms: How checkpoints store weights, by their template (``naming.Form``).
        aliases: Other names of the same weights.
        unused: Templates of weights that the class does not use.
        ignored: Regular expressions of tensors that the class ignores.
        sizes: The sizes of the model: n_layer, dim, n_ctx, n_vocab.
        difference: The largest difference of logits from the class's own, relative to the largest logit.
    """

    kind: str
    program: Json
    sources: Mapping[str, Json]
    forms: Mapping[str, list[Json]]
    aliases: Mapping[str, list[str]]
    unused: list[str]
    ignored: list[str]
    sizes: Mapping[str, int]
    difference: float = field(default=0.0, compare=False)

    def as_json(self) -> Json:
        return asdict(self)
