"""Find the matrices of a model file that belong to the modules of a PEFT adapter."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from ...errors import LoadError, UnsupportedError
from ...files.gguf import GGUFReader, Metadata
from ...models import checkpoints_of
from ...nn.adapter import HEAD, TABLE
from ..mapping import Array, Change, Checkpoint, Fields, Source
from ..mapping.pictures import HOMES
from .low_rank import Effect, effect_of
from .made_reader import MadeReader

__all__ = ["Place", "expert_names", "places_of", "wholes_of"]

_WEIGHT = ".weight"
# Keys and the configuration fields that they stand for, even if a function computes the key's value.
_SAME_EVERYWHERE = {"attention.head_count_kv": "num_key_value_heads"}
# Fields with two names, of which a configuration has only one.
_OTHER_NAMES = {"n_head": "num_attention_heads"}
_Table = Mapping[str, Source]
_Found = dict[str, list[tuple[str, Source]]]  # by module: matrices of the file, with their sources


@dataclass(frozen=True, eq=False)
class Place:
    """A matrix of the file, the module it comes from, and the change between them (None if there is none)."""

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
    """Return the matrices of ``base`` that contain modules with these shapes, ``[out, in]``.

    Names are found with the tables that convert checkpoints of the architecture.  Raises UnsupportedError for a module
    without a matrix in the file, and for a change that cannot be applied to a low-rank product.
    """
    found: list[list[Place]] = []
    refusals: list[tuple[int, str]] = []  # the number of modules without a place, and the error message
    for config, tables in _conversions(base):
        for table in tables:
            modules = _modules(table, shapes)
            if refusal := _refusal(modules, shapes, base):
                refusals.append(refusal)
                continue
            found.append(_places(modules, shapes, config))
            break
    if not found:
        _, text = min(refusals, default=(0, "[adapter] no checkpoint format is known for the model's architecture"))
        raise UnsupportedError(text)
    for others in found[1:]:
        if not all(mine.equals(theirs) for mine, theirs in zip(found[0], others, strict=True)):
            raise UnsupportedError(
                "[adapter] the model is a file, and checkpoints of its architecture differ in the adapted matrices:"
                " open the checkpoint folder instead to use a PEFT adapter"
            )
    return found[0]


def wholes_of(tensors: Mapping[str, Array], base: GGUFReader) -> dict[str, Array]:
    """Return whole tensors of a checkpoint as those of ``base`` that they become, converted.

    Raises UnsupportedError for a tensor without a counterpart of its own, and LoadError for one of another shape.
    """
    if not tensors:
        return {}
    found: list[dict[str, Array]] = []
    left: list[str] = []
    for config, tables in _conversions(base):
        for table in tables:
            made, missing = _converted(tensors, table, config, base)
            if missing:
                left = missing if not left or len(missing) < len(left) else left
                continue
            found.append(made)
            break
    if not found:
        names = ", ".join(left[:5]) + (", ..." if left[5:] else "")
        raise UnsupportedError(
            f"[adapter] no tensors of their own in the model for {len(left)} of the adapter's: {names}"
        )
    for other in found[1:]:
        if other.keys() != found[0].keys() or any((other[name] != found[0][name]).any() for name in other):
            raise UnsupportedError(
                "[adapter] the model is a file, and checkpoints of its architecture differ in the replaced tensors:"
                " open the checkpoint folder instead to use a PEFT adapter"
            )
    return found[0]


def _converted(
    tensors: Mapping[str, Array], table: _Table, config: Fields, base: GGUFReader
) -> tuple[dict[str, Array], list[str]]:
    """Return the tensors under their new names, and the names of those that the table lacks."""
    import numpy as np

    numbers = {
        part for name in tensors for part in name.split(".") if part.isascii() and part.isdecimal() and len(part) < 10
    }
    made, used = dict[str, Array](), set[str]()
    for target, source in table.items():
        if len(source.names) != 1 or source.multiplied:
            continue
        for layer in sorted(numbers, key=int) if "{i}" in target else [""]:
            given, become = source.names[0].replace("{i}", layer), target.replace("{i}", layer)
            for end in ("", _WEIGHT, ".bias"):
                name, place = given + end, become + end
                if name not in tensors or (place not in base and not (place == HEAD and TABLE in base)):
                    continue
                values = tensors[name]
                values = values if source.change is None else np.asarray(source.change(values, config), np.float32)
                shape = tuple(base.tensor_info(place if place in base else TABLE).shape)
                if values.shape != shape:
                    raise LoadError(f"[adapter] '{name}' has shape {list(values.shape)}: expected {list(shape)}")
                made[place] = values
                used.add(name)
    return made, sorted(set(tensors) - used)


def expert_names(base: GGUFReader) -> dict[str, str]:
    """Return the names of matrices of single experts, with ``{e}`` and perhaps ``{i}``, and the file's tensors."""
    return {
        source.names[0].removesuffix(_WEIGHT): target.removesuffix(_WEIGHT) + _WEIGHT
        for _, tables in _conversions(base)
        for table in tables
        for target, source in table.items()
        if len(source.names) == 1 and "{e}" in source.names[0] and source.change is None
    }


def _conversions(base: GGUFReader) -> Iterator[tuple[Fields, list[_Table]]]:
    """Yield the ways in which the model was or may have been converted.

    Each is a configuration, and tables with the names that the adapter may use.
    """
    if isinstance(base, MadeReader) and (origin := base.origin) is not None:
        # The conversion of this very checkpoint, as a class may do more than its table says.
        made = {target.name: Source(target.sources, target.change) for target in origin.targets if not target.stacked}
        yield origin.config, [*_tables(origin.mapping), made]
        return
    for mapping in checkpoints_of(base.metadata.text("general.architecture")):
        yield _FieldsOfFile(mapping, base.metadata), _tables(mapping)


class _FieldsOfFile(Fields):
    """The fields of config.json that a file's keys preserve; UnsupportedError naming any other that is read."""

    def __init__(self, mapping: Checkpoint, metadata: Metadata) -> None:
        arch, values = metadata.text("general.architecture"), dict[str, object]()
        fields = {name: key.field for name, key in mapping.keys.items() if key.field} | _SAME_EVERYWHERE
        for name, field in fields.items():
            if f"{arch}.{name}" in metadata:
                values.setdefault(field, metadata[f"{arch}.{name}"])
        super().__init__("the model's file", values, "adapter")
        self._known = {key.field for key in mapping.keys.values()}

    def has(self, name: str) -> bool:
        """Return whether the field is there.  Also False if only its other name is there."""
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
        f"[adapter] a PEFT adapter needs '{name}' of the checkpoint's config.json, which a GGUF file does not contain:"
        " open the checkpoint folder instead"
    )


def _tables(mapping: Checkpoint) -> list[_Table]:
    """Return the class's table of names, and its variants for checkpoints without a head and of larger models."""
    own = {target: Source.of(entry) for target, entry in mapping.tensors.items()}
    homes = dict.fromkeys((*mapping.homes, *HOMES))
    return [
        own,
        {target: source.without(mapping.base) for target, source in own.items()},
        *({target: source.moved(old, new) for target, source in own.items()} for old, new in homes),
    ]


def _modules(table: _Table, modules: Collection[str]) -> _Found:
    """Return the file's matrices that are made from each module in the table.  Experts are left out."""
    numbers = {
        part
        for module in modules
        for part in module.split(".")
        if part.isascii() and part.isdecimal() and len(part) < 10
    }
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
    """Return the number of modules without a place in the file, and the error message; None if all have one."""
    left = sorted(set(modules) - set(found))
    if left:
        arch, names = base.metadata.text("general.architecture"), ", ".join(left[:5]) + (", ..." if left[5:] else "")
        return len(left), (
            f"[adapter] {len(left)} of the adapter's modules have no matrix of their own in architecture '{arch}':"
            f" {names} (norms are not supported)"
        )
    for module, matrices in found.items():
        for target, source in matrices:
            if target not in base and not (target == HEAD and TABLE in base):
                return 0, f"[adapter] '{target}', which '{module}' becomes, is missing in the model"
            if len(source.names) > 1:
                return 0, f"[adapter] '{module}' is not a matrix of its own in files: '{target}' joins several modules"
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
                        f"[adapter] unsupported module '{module}': its conversion to '{target}' does more than select"
                        " and order rows and columns"
                    )
            places.append(Place(target, module, effect))
    targets = [place.target for place in places]
    if len(set(targets)) != len(targets):
        raise LoadError(f"[adapter] several modules are adapted for one matrix: {sorted(targets)!s:.200}")
    return places


def _effect(change: Change, shape: tuple[int, int], config: Fields) -> Effect | None:
    """Return the effect for a layer that stores its matrix as ``[out, in]`` or as ``[in, out]``."""
    for stored, turns in ((shape, False), (shape[::-1], True)):
        effect = effect_of(change, stored, config)
        if effect is not None and effect.turns == turns:
            return effect
    return None
