"""Where in a model's file the modules lie that an adapter of PEFT changes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from ...errors import LoadError, UnsupportedError
from ...files.gguf import GGUFReader, Metadata
from ...models import checkpoints_of
from ..mapping import Change, Checkpoint, Fields, Source
from ..mapping.pictures import HOMES
from .low_rank import Effect, effect_of
from .made_reader import MadeReader

__all__ = ["Place", "places_of"]

_WEIGHT = ".weight"
# The field that a key stands for, also where a function finds it for files.
_SAME_EVERYWHERE = {"attention.head_count_kv": "num_key_value_heads"}
# Fields with two names, of which a configuration has one.
_OTHER_NAMES = {"n_head": "num_attention_heads"}
_Table = Mapping[str, Source]
_Found = dict[str, list[tuple[str, Source]]]  # by module: matrices of the file, and what they are made of


@dataclass(frozen=True, eq=False)
class Place:
    """A matrix of the file, the module that it is made of, and what is done to that; None: it is taken as it is."""

    target: str
    module: str
    effect: Effect | None

    def equals(self, other: Place) -> bool:
        if (self.target, self.module) != (other.target, other.module):
            return False
        if self.effect is None or other.effect is None:
            return self.effect is other.effect
        return self.effect.equals(other.effect)


def places_of(shapes: Mapping[str, tuple[int, int]], base: GGUFReader) -> list[Place]:
    """Every matrix of ``base`` that modules with these shapes ``[out, in]`` become a part of.

    Names go through the tables that checkpoints of the architecture are converted by.  Raises UnsupportedError for
    modules that are no matrices of the file, and for what a product of thin matrices cannot follow.
    """
    found: list[list[Place]] = []
    refusals: list[tuple[int, str]] = []  # modules without a place, and what is said then
    for config, tables in _conversions(base):
        for table in tables:
            modules = _modules(table, shapes)
            if refusal := _refusal(modules, shapes, base):
                refusals.append(refusal)
                continue
            found.append(_places(modules, shapes, config))
            break
    if not found:
        _, text = min(refusals, default=(0, "[adapter] the model's architecture must have checkpoints but has none"))
        raise UnsupportedError(text)
    for others in found[1:]:
        if not all(mine.equals(theirs) for mine, theirs in zip(found[0], others, strict=True)):
            raise UnsupportedError(
                "[adapter] the model must be a checkpoint's folder for an adapter of PEFT, as files of its architecture"
                " come from checkpoints that differ in these matrices, but is a file"
            )
    return found[0]


def _conversions(base: GGUFReader) -> Iterator[tuple[Fields, list[_Table]]]:
    """How the model was converted, or may have been: configurations, and tables of names that may be the adapter's."""
    if isinstance(base, MadeReader) and (origin := base.origin) is not None:
        # What became of this very checkpoint, where a class does more than its table says.
        made = {target.name: Source(target.sources, target.change) for target in origin.targets if not target.stacked}
        yield origin.config, [*_tables(origin.mapping), made]
        return
    for mapping in checkpoints_of(base.metadata.text("general.architecture")):
        yield _FieldsOfFile(mapping, base.metadata), _tables(mapping)


class _FieldsOfFile(Fields):
    """As much of config.json as the keys of a file hold as it was; UnsupportedError naming what else is asked for."""

    def __init__(self, mapping: Checkpoint, metadata: Metadata) -> None:
        arch, values = metadata.text("general.architecture"), dict[str, object]()
        fields = {name: key.field for name, key in mapping.keys.items() if key.field} | _SAME_EVERYWHERE
        for name, field in fields.items():
            if f"{arch}.{name}" in metadata:
                values.setdefault(field, metadata[f"{arch}.{name}"])
        super().__init__("the model's file", values, "adapter")
        self._known = {key.field for key in mapping.keys.values()}

    def has(self, name: str) -> bool:
        """Whether the field is there; False as well for another name of one that is."""
        if super().has(name):
            return True
        if name not in self._known and not super().has(_OTHER_NAMES.get(name, name)):
            raise _unknown(name)
        return False

    def value(self, name: str) -> object:
        if not self.has(name):
            raise _unknown(name)
        return super().value(name)


def _unknown(name: str) -> UnsupportedError:
    return UnsupportedError(
        f"[adapter] '{name}' of the checkpoint's config.json must be known for an adapter of PEFT but a GGUF file does"
        " not tell it: open the checkpoint's folder instead"
    )


def _tables(mapping: Checkpoint) -> list[_Table]:
    """A table of names, and what checkpoints of the model without its head, or of a larger one, make of them."""
    own = {target: Source.of(entry) for target, entry in mapping.tensors.items()}
    homes = dict.fromkeys((*mapping.homes, *HOMES))
    return [
        own,
        {target: source.without(mapping.base) for target, source in own.items()},
        *({target: source.moved(old, new) for target, source in own.items()} for old, new in homes),
    ]


def _modules(table: _Table, modules: Collection[str]) -> _Found:
    """Of each module that a table knows: what matrices of the file are made of it.  Experts are not looked for."""
    numbers = {part for module in modules for part in module.split(".") if part.isascii() and part.isdecimal()}
    found: _Found = {}
    for target, source in table.items():
        for layer in sorted(numbers, key=int) if "{i}" in target else [""]:
            for name in source.names:
                module = name.replace("{i}", layer).removesuffix(_WEIGHT)
                if module in modules:
                    matrix = target.replace("{i}", layer).removesuffix(_WEIGHT) + _WEIGHT
                    found.setdefault(module, []).append((matrix, source))
    return found


def _refusal(found: _Found, modules: Collection[str], base: GGUFReader) -> tuple[int, str] | None:
    """How many modules have no place in the file, and what is to be said of them."""
    left = sorted(set(modules) - set(found))
    if left:
        arch, names = base.metadata.text("general.architecture"), ", ".join(left[:5]) + (", ..." if left[5:] else "")
        return len(left), (
            f"[adapter] every module must be one that architecture '{arch}' has a matrix of its own for (no embedding,"
            f" norm or expert) but {len(left)} are not: {names}"
        )
    for module, matrices in found.items():
        for target, source in matrices:
            if target not in base:
                return 0, f"[adapter] the model must have '{target}' as '{module}' is adapted but has not"
            if len(source.names) > 1:
                return 0, f"[adapter] '{module}' must be a matrix by itself in files but '{target}' joins several"
    return None


def _places(found: _Found, shapes: Mapping[str, tuple[int, int]], config: Fields) -> list[Place]:
    places, effects = [], dict[tuple[Change, tuple[int, int]], Effect | None]()
    for module, matrices in sorted(found.items()):
        for target, source in sorted(matrices, key=lambda each: each[0]):
            effect = None
            if source.change is not None:
                key = (source.change, shapes[module])
                if key not in effects:
                    effects[key] = _effect(*key, config)
                effect = effects[key]
                if effect is None:
                    raise UnsupportedError(
                        f"[adapter] '{module}' must be a matrix whose rows and columns are only chosen and put in order"
                        f" for '{target}' but more is done to it"
                    )
            places.append(Place(target, module, effect))
    targets = [place.target for place in places]
    if len(set(targets)) != len(targets):
        raise LoadError(
            f"[adapter] one module must be adapted for each matrix but {sorted(targets)!s:.200} has several"
        )
    return places


def _effect(change: Change, shape: tuple[int, int], config: Fields) -> Effect | None:
    """Of layers that store their matrix as it is, or as ``[in, out]``."""
    for stored, turns in ((shape, False), (shape[::-1], True)):
        effect = effect_of(change, stored, config)
        if effect is not None and effect.turns == turns:
            return effect
    return None
