"""Choosing the type of each tensor in a mix.

Similar exceptions of several mixes are in tables.  ``early``, ``late`` and ``deep`` describe the position of a layer:
errors in the first and last layers cost more than those in between.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .._native.core import DType
from ..errors import LoadError, RequestError
from ..files.gguf import Metadata
from .mixes import Mix
from .roles import Role, role_of

__all__ = ["Chooser", "ModelFacts", "exactly", "fallback", "needs_importance"]

_FEW_BITS = ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "IQ1_S", "IQ1_M")
_TERNARY = ("TQ1_0", "TQ2_0", "Q2_0")

# The type of the embedding if it is not the head's matrix, too.
_EMBEDDING = {
    **dict.fromkeys(("IQ2_XXS", "IQ2_XS", "IQ1_S", "IQ1_M"), "q2_k"),
    **dict.fromkeys(("IQ2_S", "IQ2_M", "IQ3_XXS"), "iq3_s"),
    **dict.fromkeys(_TERNARY, "q4_k"),
}
_ATTENTION_OUT = {"Q2_K": "q3_k", "IQ3_XXS": "iq3_s", "Q3_K_M": "q4_k", "Q3_K_L": "q5_k", "IQ3_M": "q4_k"}
# With eight experts, attention is a small part of the file and gets more bits.
_ATTENTION_OUT_OF_EIGHT = (
    "Q2_K", "IQ3_XS", "IQ3_XXS", "Q3_K_S", "Q3_K_M", "IQ4_NL", "Q4_K_S", "Q4_K_M", "IQ3_S", "IQ3_M", "IQ4_XS",
)  # fmt: skip
_QUERY = {"IQ3_XS": "iq3_xxs", "IQ3_XXS": "iq2_s"}

_FALLBACKS = {
    **dict.fromkeys(("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_xs"), "iq4_nl"),
    **dict.fromkeys(("q2_0", "q2_k", "q3_k", "tq1_0", "tq2_0"), "q4_0"),
    "q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0",
}  # fmt: skip
_NEED_IMPORTANCE = ("iq3_xxs", "iq2_xxs", "iq2_xs", "iq2_s", "iq1_m", "iq1_s")
# The number of layers of 70B models, in which attn_v is an eighth of attn_q.
_LAYERS_OF_70B = {"llama": 80, "qwen2": 80, "deci": 80, "olmo": 80, "jais2": 68}


@dataclass(frozen=True)
class ModelFacts:
    """Properties of a model that the choice depends on; ``n_group`` is query heads per kv head in the first layer."""

    architecture: str
    n_layer: int
    n_expert: int
    n_group: int
    n_head: int

    @classmethod
    def of(cls, metadata: Metadata) -> ModelFacts:
        """Read them from a file's keys.  Raises LoadError if one is missing or invalid."""
        architecture = metadata.text("general.architecture")
        if architecture == "clip":  # llama.cpp reads no numbers of encoders, so that all their layers count as late
            return cls(architecture, n_layer=0, n_expert=0, n_group=0, n_head=0)
        n_head = _first(metadata, f"{architecture}.attention.head_count", 0)
        n_kv_head = _first(metadata, f"{architecture}.attention.head_count_kv", n_head)
        return cls(
            architecture=architecture,
            n_layer=metadata.integer(f"{architecture}.block_count"),
            n_expert=metadata.integer(f"{architecture}.expert_count", 0),
            n_group=n_head // n_kv_head if n_kv_head else 0,
            n_head=n_head,
        )

    @property
    def is_70b(self) -> bool:
        grouped = self.architecture != "llama" or self.n_group != 1
        return grouped and self.n_layer == _LAYERS_OF_70B.get(self.architecture)


def _first(metadata: Metadata, key: str, otherwise: int) -> int:
    """Return a number, or the first of an array with a number per layer."""
    if key in metadata and metadata.type_of(key).endswith("[]"):
        return int(metadata.array(key)[0])
    return metadata.integer(key, otherwise)


class _Depth(NamedTuple):
    """The position of a tensor among those of its role."""

    i: int
    n: int

    @property
    def early(self) -> bool:
        return self.i < self.n // 8

    @property
    def late(self) -> bool:
        return self.i >= 7 * self.n // 8

    @property
    def deserves_more(self) -> bool:
        """True in the first and last eighth, and for every third layer in between."""
        return self.early or self.late or (self.i - self.n // 8) % 3 == 2


@dataclass
class Chooser:
    """Chooses types for tensors, which must come in the order of layers, then names, because positions are counted."""

    mix: Mix
    model: ModelFacts
    names: Sequence[str]
    has_importance: bool = False
    output_dtype: str | None = None
    embedding_dtype: str | None = None
    _seen: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        roles = [role_of(name) for name in self.names]
        self._tied = Role.OUTPUT not in roles
        self._n_values = sum(role.is_value for role in roles)

    def choose(self, name: str, shape: Sequence[int]) -> str:
        """Return the type of a tensor, before ``fallback``."""
        role, mix = role_of(name), self.mix.name
        if role is Role.OUTPUT or (self._tied and role is Role.EMBEDDING):
            return self._head(shape)
        if mix == "MXFP4_MOE":
            return self._mxfp4(role, shape)
        if role is Role.EMBEDDING:
            return self.embedding_dtype or _EMBEDDING.get(mix, self.mix.dtype)
        chosen = self._few_bits(role) if mix in _FEW_BITS else self._usual(role, name)
        return chosen or self.mix.dtype

    def _head(self, shape: Sequence[int]) -> str:
        if self.output_dtype is not None:
            return self.output_dtype
        mix, dtype = self.mix.name, self.mix.dtype
        if mix == "MXFP4_MOE" or self._is_falcon or shape[-1] % DType(dtype).block_size:
            return "q8_0"
        if mix in _FEW_BITS or mix == "IQ3_XXS":
            return "q5_k"
        return dtype if dtype == "q8_0" else "q6_k"

    def _mxfp4(self, role: Role, shape: Sequence[int]) -> str:
        is_expert = len(shape) > 2 and shape[-3] > 1
        if self.model.architecture == "bailingmoe3" and role not in (Role.UP, Role.GATE, Role.DOWN):
            is_expert = False
        return "mxfp4" if is_expert else "q8_0"

    @property
    def _is_falcon(self) -> bool:
        return self.model.architecture == "falcon"

    def _count(self, what: str) -> int:
        i = self._seen[what]
        self._seen[what] += 1
        return i

    def _few_bits(self, role: Role) -> str | None:
        mix, n_expert = self.mix.name, self.model.n_expert
        better = "iq3_s" if mix in ("IQ2_S", "IQ2_M") else "q2_k"
        if role.is_value:
            return "q4_k" if self.model.n_group >= 4 or n_expert >= 4 else better
        if role is Role.K and n_expert == 8:
            return "q4_k"
        if role is Role.DOWN:
            return better if self._count("down") < self.model.n_layer // 8 else None
        if role is Role.ATTENTION_OUT:
            if n_expert == 8:
                return "q5_k"
            return {"q2_k": "iq2_xxs" if mix in ("IQ1_S", "IQ1_M") else None, "iq3_s": "iq3_s"}[better]
        return None

    def _usual(self, role: Role, name: str) -> str | None:
        if role.is_value:
            return self._value()
        if role is Role.DOWN:
            return self._down(self._depth("down", name))
        if role is Role.ATTENTION_OUT:
            return self._attention_out()
        if role in (Role.GATE, Role.UP):
            depth = self._depth(role.value, name)
            return "iq3_xxs" if self.mix.name == "IQ3_XS" and not depth.early and not depth.late else None
        if role is Role.K and self.model.n_expert == 8:
            return "q8_0"
        return _QUERY.get(self.mix.name) if role in (Role.Q, Role.K) else None

    def _depth(self, what: str, name: str) -> _Depth:
        """Return a tensor's position; with experts, tensors are not in layer order, so it is read from the name."""
        i, n = self._count(what), self.model.n_layer
        if self.model.n_expert > 1:
            found = re.match(r"blk\.(\d+)\.", name)
            if found is None or int(found[1]) >= n:
                raise LoadError(f"[quantize] '{name}' does not belong to one of the model's {n} layers")
            i = int(found[1])
        return _Depth(i, n)

    def _value(self) -> str | None:
        mix, chosen = self.mix.name, self.mix.dtype
        depth = _Depth(self._count("value"), self._n_values)
        grouped = self.model.n_group >= 4
        if mix == "Q2_K":
            chosen = "q4_k" if grouped else "q3_k"
        elif mix == "IQ3_XXS":
            chosen = "q4_k" if grouped else "iq3_xxs" if self.has_importance else "iq3_s"
        elif mix == "IQ3_M" or (grouped and mix in ("Q2_K_S", "IQ3_XS", "IQ3_S")):
            chosen = "q4_k"
        elif mix == "Q3_K_M":
            chosen = "q5_k" if depth.i < 2 else "q4_k"
        elif mix == "Q3_K_L" or (grouped and mix in ("IQ4_NL", "IQ4_XS")) or (mix == "Q4_K_S" and depth.i < 4):
            chosen = "q5_k"
        elif mix in ("Q4_K_M", "Q5_K_M") and depth.deserves_more:
            chosen = "q6_k"
        if self.model.is_70b and chosen in ("q3_k", "q4_k"):
            chosen = "q5_k"
        return "q8_0" if self.model.n_expert == 8 else chosen

    def _down(self, depth: _Depth) -> str | None:
        more, first = depth.deserves_more, depth.i < depth.n // 16
        early_unguided = depth.early and not self.has_importance
        early_guided = depth.early and self.has_importance
        choices = {
            "Q2_K": "q3_k",
            "Q2_K_S": "q4_k" if depth.early else None,
            "IQ3_XXS": "q4_k" if early_unguided else None if self.has_importance else "q3_k",
            "Q3_K_M": "q5_k" if first else "q4_k",
            "IQ3_M": "q4_k" if depth.early or (self.model.n_expert == 8 and more) else None,
            "Q3_K_L": "q5_k",
            "Q4_K_M": "q6_k" if more else None,
            "IQ4_NL": "q5_k" if early_unguided else None,
            "IQ4_XS": "q5_k" if early_unguided else None,
            "Q5_K_M": "q6_k" if more else None,
            "Q4_K_S": "q5_k" if depth.early else None,
            # With importance, types of four and five bits without a minimum damage the first layers.
            "Q4_0": "q4_1" if early_guided else None,
            "Q5_0": "q5_1" if early_guided else None,
        }
        if self._is_falcon:
            choices |= {
                "Q3_K_M": "q5_k" if first else "q4_k" if more else "q3_k",
                "Q3_K_L": "q4_k",
                "Q4_K_M": "q6_k" if first else "q5_k" if more else "q4_k",
                "Q4_K_S": None,
            }
        return choices.get(self.mix.name)

    def _attention_out(self) -> str | None:
        mix = self.mix.name
        if self._is_falcon:
            return "q4_k" if mix == "Q3_K_L" else None
        if self.model.n_expert == 8:
            return "q5_k" if mix in _ATTENTION_OUT_OF_EIGHT else None
        return _ATTENTION_OUT.get(mix)


def fallback(name: str, dtype: str, n_columns: int) -> str:
    """Return ``dtype``, or the type that replaces it if rows are not whole blocks.

    Raises:
        RequestError: No type fits.
    """
    block = DType(dtype).block_size
    if n_columns % block == 0:
        return dtype
    if dtype not in _FALLBACKS and block > 32:
        raise _no_whole_blocks(name, dtype, n_columns)
    other = _FALLBACKS.get(dtype, dtype)
    return other if n_columns % DType(other).block_size == 0 else "f16"


def exactly(name: str, dtype: str, n_columns: int) -> str:
    """Return ``dtype``, which the user chose for this tensor.  Raises RequestError if rows are not whole blocks."""
    if n_columns % DType(dtype).block_size:
        raise _no_whole_blocks(name, dtype, n_columns)
    return dtype


def _no_whole_blocks(name: str, dtype: str, n_columns: int) -> RequestError:
    return RequestError(f"[quantize] '{name}' cannot be {dtype}: its rows of {n_columns} columns are not whole blocks")


def needs_importance(name: str, dtype: str, mix: Mix) -> bool:
    """Return True if a tensor with so few bits is useless without an importance matrix."""
    if role_of(name) in (Role.EMBEDDING, Role.OUTPUT):
        return False
    return dtype in _NEED_IMPORTANCE or (dtype == "q2_k" and mix.name == "Q2_K_S")
