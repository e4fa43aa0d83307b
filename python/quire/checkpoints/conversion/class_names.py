"""Find the transformers class that a checkpoint is read as, from its config.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ...errors import LoadError
from ...models.registry import checkpoint_classes
from ..reading.reference import classes_of

__all__ = ["class_of"]

# Endings of class names for models without a head or with more heads, and the endings of the classes whose tensors they
# share.
_WITH_HEAD = {"Model": ("ForCausalLM", "ForConditionalGeneration"), "ForPreTraining": ("ForMaskedLM",)}
_BEST = ("ForCausalLM", "ForConditionalGeneration", "ForMaskedLM", "Model")


def class_of(values: Mapping[str, object]) -> tuple[str, bool]:
    """Return the class, and whether the checkpoint may lack its head.

    This is the first class in ``architectures`` that Quire knows.  If ``architectures`` is absent, ``model_type``
    decides.  Raises LoadError if neither gives a class.  An unknown class is returned as it is.
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
        "[convert] config.json has no class in 'architectures', and no known class has its 'model_type', "
        f"{values.get('model_type')!r}"
    )


def _with_heads(names: Sequence[str], ends: Sequence[str]) -> Iterator[str]:
    """Yield the names with a head in place of those without one, in the order of ``ends``."""
    for name in names:
        for end, others in _WITH_HEAD.items():
            if name.endswith(end):
                yield from (name.removesuffix(end) + other for other in ends if other in others)
