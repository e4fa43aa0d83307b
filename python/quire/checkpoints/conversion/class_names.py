"""Which of transformers' classes a checkpoint folder is read as, by its config.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ...errors import LoadError
from ...models.registry import checkpoint_classes
from ..reading.reference import classes_of

__all__ = ["class_of"]

# A model without its head, and before other heads were left out, has the tensors of these classes, or some of them.
_WITH_HEAD = {"Model": ("ForCausalLM", "ForConditionalGeneration"), "ForPreTraining": ("ForMaskedLM",)}
_BEST = ("ForCausalLM", "ForConditionalGeneration", "ForMaskedLM", "Model")


def class_of(values: Mapping[str, object]) -> tuple[str, bool]:
    """Return the class, and whether the checkpoint may lack its head.

    The first one of ``architectures`` that Quire knows counts; without any, ``model_type`` tells.  Raises LoadError
    where neither is there.  A class that nobody knows is returned as it is.
    """
    listed = values.get("architectures")
    names = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    known = {name.lower(): name for name in checkpoint_classes()}
    if found := next((known[name.lower()] for name in names if name.lower() in known), None):
        return found, False
    ends = sorted(_BEST, key=lambda end: end != "ForConditionalGeneration") if "text_config" in values else _BEST
    if found := next((name for name in _with_heads(names, ends) if name in known.values()), None):
        return found, True
    if names:
        return names[0], False
    kinds = [name for name in classes_of(str(values.get("model_type"))) if name in known.values()]
    ranked = (kind for end in ends for kind in kinds if kind.endswith(end))
    if found := next(ranked, None):
        return found, True
    raise LoadError(
        "[convert] config.json has no class in 'architectures', and its 'model_type' "
        f"{values.get('model_type')!r} is not one of a known class"
    )


def _with_heads(names: Sequence[str], ends: Sequence[str]) -> Iterator[str]:
    """Classes with a head; ``ends`` says which ones come first."""
    for name in names:
        for end, others in _WITH_HEAD.items():
            if name.endswith(end):
                yield from (name.removesuffix(end) + other for other in ends if other in others)
