"""Heads of EAGLE-3 as checkpoints have them: which configurations are such, and in what words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import LoadError, UnsupportedError
from ..reading.fields import Fields
from .checkpoint import Checkpoint
from .tensors import Source, Target

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from typing import Any, Protocol

    import numpy as np
    import numpy.typing as npt

    from .rope import Entry

    class Stored(Protocol):
        def whole_numbers(self, name: str) -> npt.NDArray[np.int64]: ...


__all__ = ["HeadCheckpoint", "flattened", "head_class", "speaks_of_eagle"]

# Classes of llama's kind, as SpecForge and SGLang, vLLM and speculators call them.
CLASSES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Speculator", "Eagle3DraftModel")
_OF_LAYER = ("midlayer.", "layers.0.", "model.layers.0.", "model.midlayer.")
_INNER = "transformer_layer_config"
_NOT_HEADS = ("ForConditionalGeneration", "ChatModel")  # models of pictures, some of which are called Eagle, too


def flattened(values: Mapping[str, object]) -> Mapping[str, object]:
    """A configuration of speculators, which has the layer's fields in an object of their own; others as they are."""
    inner = values.get(_INNER)
    if not isinstance(inner, dict):
        return values
    return {**inner, **{name: value for name, value in values.items() if name != _INNER}}


def speaks_of_eagle(values: Mapping[str, object]) -> bool:
    """Whether a configuration is that of a head that EAGLE has, of whatever version and class."""
    names = values.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    is_other = name.endswith(_NOT_HEADS)
    return ("eagle" in name.lower() and not is_other) or "draft_vocab_size" in values or "eagle_config" in values


def head_class(values: Mapping[str, object]) -> str | None:
    """The class by which such a configuration is read; None for models.  UnsupportedError for heads of other kinds."""
    if not speaks_of_eagle(values):
        return None
    names = values.get("architectures")
    name = names[0] if isinstance(names, list) and len(names) == 1 else None
    # Some heads name their model's class; the smaller vocabulary tells what they are.
    if name in CLASSES or (name == "LlamaForCausalLM" and "draft_vocab_size" in values):
        return CLASSES[0]
    raise UnsupportedError(
        f"[draft] a head must be one of EAGLE-3 of llama's kind ({', '.join(CLASSES)}) but is {names!r:.80}"
    )


@dataclass(frozen=True)
class HeadCheckpoint(Checkpoint):
    """A head's checkpoint, which has neither a vocabulary nor, mostly, an embedding of its own."""

    def targets(self, config: Fields, entries: Iterable[Entry], there: Collection[str]) -> list[Target]:
        if not any(f"{layer}hidden_norm.weight" in there for layer in _OF_LAYER):
            raise UnsupportedError(
                "[draft] the head must be one of EAGLE-3, with 'midlayer.hidden_norm.weight', but has no such tensor, "
                "as heads of EAGLE-1 and 2 have not"
            )
        stored: Any = there
        targets = super().targets(config, entries, there)
        n_vocab = config.integer("vocab_size")
        n_known = config.integer("draft_vocab_size", n_vocab)
        if self.is_tied(config) and ("lm_head.weight" not in there or n_known == n_vocab):
            raise UnsupportedError("[draft] 'tie_word_embeddings' of the head must be false but is true")
        if "d2t" in there:
            targets.append(Target("d2t", ("d2t",), made=_tokens(stored, n_known, n_vocab)))
        elif n_known != n_vocab:
            raise LoadError(f"[draft] the head must hold 'd2t' as it knows {n_known} of {n_vocab} tokens but does not")
        return targets

    def _named_as(self, there: Collection[str]) -> Mapping[str, str | Source]:
        """The table with the names that this checkpoint has."""
        layer = next((each for each in _OF_LAYER if f"{each}hidden_norm.weight" in there), _OF_LAYER[0])

        def named(name: str) -> str:
            if name.startswith(_OF_LAYER[0]):
                return layer + name.removeprefix(_OF_LAYER[0])
            return f"model.{name}" if f"model.{name}.weight" in there else name

        table = {target: Source.of(entry) for target, entry in self.tensors.items()}
        return {
            target: Source(tuple(map(named, source.names)), source.change, source.packing)
            for target, source in table.items()
        }


def _tokens(stored: Stored, n_known: int, n_vocab: int) -> npt.NDArray[np.int64]:
    """The model's token of each one that a head knows.  Checkpoints have what is to be added to its number."""
    import numpy as np

    more = stored.whole_numbers("d2t")
    if more.shape != (n_known,):
        raise LoadError(f"[draft] 'd2t' must have {n_known} numbers but has {list(more.shape)}")
    tokens: npt.NDArray[np.int64] = more + np.arange(n_known)
    if "t2d" in stored:  # type: ignore[operator]
        is_known = stored.whole_numbers("t2d")
        if is_known.shape != (n_vocab,) or not np.array_equal(np.flatnonzero(is_known), np.sort(tokens)):
            raise LoadError("[draft] 't2d' must tell the tokens that 'd2t' leads to but does not")
    return tokens
