"""Checkpoints of EAGLE-3 heads: recognize their configurations, and map their tensors."""

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

# Llama-like classes, by their names in SpecForge and SGLang, vLLM and speculators.
CLASSES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Speculator", "Eagle3DraftModel")
_OF_LAYER = ("midlayer.", "layers.0.", "model.layers.0.", "model.midlayer.")
_INNER = "transformer_layer_config"
_NOT_HEADS = ("ForConditionalGeneration", "ChatModel")  # multimodal models, some of which are called Eagle too


def flattened(values: Mapping[str, object]) -> Mapping[str, object]:
    """Flatten a configuration of speculators, which has the layer's fields in a nested object; return others as is."""
    inner = values.get(_INNER)
    if not isinstance(inner, dict):
        return values
    return {**inner, **{name: value for name, value in values.items() if name != _INNER}}


def speaks_of_eagle(values: Mapping[str, object]) -> bool:
    """Return whether a configuration belongs to an EAGLE head, of any version and class."""
    names = values.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    is_other = name.endswith(_NOT_HEADS)
    return ("eagle" in name.lower() and not is_other) or "draft_vocab_size" in values or "eagle_config" in values


def head_class(values: Mapping[str, object]) -> str | None:
    """Return the class that reads a head's configuration, or None for models.

    Raises:
        UnsupportedError: The head is of another kind.
    """
    if not speaks_of_eagle(values):
        return None
    names = values.get("architectures")
    name = names[0] if isinstance(names, list) and len(names) == 1 else None
    # Some heads name their model's class; the field of a smaller vocabulary identifies them.
    if name in CLASSES or (name == "LlamaForCausalLM" and "draft_vocab_size" in values):
        return CLASSES[0]
    raise UnsupportedError(f"[draft] unsupported head {names!r:.80}: expected an EAGLE-3 class ({', '.join(CLASSES)})")


@dataclass(frozen=True)
class HeadCheckpoint(Checkpoint):
    """A head's checkpoint, which has no vocabulary and usually no embedding of its own."""

    def targets(self, config: Fields, entries: Iterable[Entry], there: Collection[str]) -> list[Target]:
        if not any(f"{layer}hidden_norm.weight" in there for layer in _OF_LAYER):
            raise UnsupportedError(
                "[draft] tensor 'midlayer.hidden_norm.weight' is missing: EAGLE-1 and EAGLE-2 heads are unsupported"
            )
        stored: Any = there
        targets = super().targets(config, entries, there)
        n_vocab = config.integer("vocab_size")
        n_known = config.integer("draft_vocab_size", n_vocab)
        if self.is_tied(config) and ("lm_head.weight" not in there or n_known == n_vocab):
            raise UnsupportedError("[draft] unsupported 'tie_word_embeddings' of the head: true")
        if "d2t" in there:
            targets.append(Target("d2t", ("d2t",), made=_tokens(stored, n_known, n_vocab)))
        elif n_known != n_vocab:
            raise LoadError(f"[draft] tensor 'd2t' is missing: the head has {n_known} of the model's {n_vocab} tokens")
        return targets

    def _named_as(self, there: Collection[str]) -> Mapping[str, str | Source]:
        """Return the table with this checkpoint's names."""
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
    """Return the model's token for each of the head's; checkpoints store the difference."""
    import numpy as np

    more = stored.whole_numbers("d2t")
    if more.shape != (n_known,):
        raise LoadError(f"[draft] tensor 'd2t' has shape {list(more.shape)}: expected [{n_known}]")
    tokens: npt.NDArray[np.int64] = more + np.arange(n_known)
    if "t2d" in stored:  # type: ignore[operator]
        is_known = stored.whole_numbers("t2d")
        if is_known.shape != (n_vocab,) or not np.array_equal(np.flatnonzero(is_known), np.sort(tokens)):
            raise LoadError("[draft] tensors 't2d' and 'd2t' contradict each other")
    return tokens
