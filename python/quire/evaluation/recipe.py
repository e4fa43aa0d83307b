"""Recipes, a type for each matrix: the least divergence at a size, or the least size at a divergence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import LoadError, RequestError
from ..files.gguf import GGUFReader, Metadata
from ..quantization import MIXES, Importance, Mix, Plan, Planned
from ..quantization.knapsack import Option, cheapest
from ..quantization.run import place_of
from .costs import Costs

if TYPE_CHECKING:
    from .trial import Trial

__all__ = [
    "Recipe",
    "curve",
    "for_divergence",
    "for_size",
    "kept_bytes",
    "measured",
    "plan_of",
    "read_recipe",
    "refined",
]

_KEY = "quire.recipe."
_ROUNDS = 5
# The limit of the factor by which a matrix's cost among the others may differ from its cost alone.
_MOST_FACTOR = 4.0


@dataclass(frozen=True)
class Recipe:
    """A type for each matrix.

    Attributes:
        types: Types by the names of matrices.
        n_bytes: The size of these matrices.
        predicted: The sum of the matrices' single divergences, in nats per token.
        measured: The divergence of the whole model, in nats per token.
    """

    types: Mapping[str, str]
    n_bytes: int
    predicted: float
    measured: float | None = None

    def metadata(self, calibration: str) -> dict[str, tuple[str, object]]:
        """Return keys for the file that document the recipe."""
        made: dict[str, tuple[str, object]] = {
            f"{_KEY}types": ("string[]", [f"{name}={dtype}" for name, dtype in sorted(self.types.items())]),
            f"{_KEY}predicted_divergence": ("f32", self.predicted),
            f"{_KEY}calibration": ("string", calibration),
        }
        if self.measured is not None:
            made[f"{_KEY}divergence"] = ("f32", self.measured)
        return made


def read_recipe(metadata: Metadata) -> Recipe:
    """Return the recipe that a file was made with.  Raises LoadError if it has none."""
    key = f"{_KEY}types"
    if key not in metadata:
        raise LoadError(f"[recipe] the file was not made with a recipe: it has no key {key}")
    pairs = [entry.decode("utf-8", "replace").rpartition("=") for entry in metadata.strings(key)]
    types = {name: dtype for name, _, dtype in pairs}
    divergence = metadata.number(f"{_KEY}divergence", -1.0)
    predicted = metadata.number(f"{_KEY}predicted_divergence", 0.0)
    return Recipe(types, 0, predicted, divergence if divergence >= 0 else None)


def kept_bytes(reader: GGUFReader, costs: Costs) -> int:
    """Return the bytes of the tensors that are kept unchanged."""
    kept = (info for info in reader.tensors if info.name not in costs.options)
    align = reader.alignment
    return sum(-(-reader.tensor_info(info.name).size_bytes // align) * align for info in kept)


def for_size(costs: Costs, n_bytes: int) -> Recipe:
    """Return the recipe with the least divergence in ``n_bytes`` of matrices.  Raises RequestError if none fits."""
    names = list(costs.options)
    return _recipe(names, cheapest([costs.options[name] for name in names], n_bytes))


def _recipe(names: Sequence[str], chosen: Sequence[Option]) -> Recipe:
    types = {name: option.name for name, option in zip(names, chosen, strict=True)}
    return Recipe(types, sum(one.n_bytes for one in chosen), sum(one.cost for one in chosen))


def for_divergence(costs: Costs, most: float) -> Recipe:
    """Return the smallest recipe with a predicted divergence of at most ``most``.  Raises RequestError if none has."""
    low = sum(min(option.n_bytes for option in options) for options in costs.options.values())
    high = sum(max(option.n_bytes for option in options) for options in costs.options.values())
    best = for_size(costs, high)
    if best.predicted > most:
        raise RequestError(f"[recipe] a divergence of {most:.3g} is out of reach: the least is {best.predicted:.3g}")
    while high - low > max(1024, high >> 12):
        middle = (low + high) // 2
        found = for_size(costs, middle)
        if found.predicted <= most:
            best, high = found, middle
        else:
            low = middle
    return best


def measured(trial: Trial, recipe: Recipe, importance: Importance) -> Recipe:
    """Return the recipe with its measured divergence; the trial is restored afterwards."""
    for name, dtype in recipe.types.items():
        trial.set(name, trial.values(name, dtype, importance))
    found = trial.divergence()
    for name in recipe.types:
        trial.set(name, trial.values(name, "f32", None))
    return Recipe(recipe.types, recipe.n_bytes, recipe.predicted, found)


def refined(
    trial: Trial, costs: Costs, recipe: Recipe, importance: Importance, groups: Sequence[Sequence[str]]
) -> Costs:
    """Return costs corrected by the cost of each group among the others, as measured for ``recipe``.

    If many matrices are quantized coarsely, their errors may add up or cancel.
    """
    values = {name: trial.values(name, dtype, importance) for name, dtype in recipe.types.items()}
    for name, value in values.items():
        trial.set(name, value)
    whole = trial.divergence()
    factors: dict[str, float] = {}
    for names in groups:
        for name in names:
            trial.set(name, trial.values(name, "f32", None))
        saved = whole - trial.divergence()
        for name in names:
            trial.set(name, values[name])
        alone = sum(_cost(costs, name, recipe.types[name]) for name in names)
        if alone > 0:
            factor = min(_MOST_FACTOR, max(1 / _MOST_FACTOR, saved / alone))
            factors |= dict.fromkeys(names, factor)
    for name in values:
        trial.set(name, trial.values(name, "f32", None))
    return costs.scaled(factors)


def _cost(costs: Costs, name: str, dtype: str) -> float:
    return next(option.cost for option in costs.options[name] if option.name == dtype)


def plan_of(reader: GGUFReader, types: Mapping[str, str]) -> Plan:
    """Return the plan for a file with a recipe.

    Raises:
        RequestError: A matrix does not exist or is never quantized, or a type does not fit its rows.
        UnsupportedError: A type is unknown.
    """
    from .._native.core import DType
    from .._native.quant import can_quantize
    from ..quantization.choice import exactly
    from ..quantization.roles import is_quantizable

    known = {info.name for info in reader.tensors}
    if missing := [name for name in types if name not in known]:
        raise RequestError(f"[recipe] the recipe is for another model: this one has no tensor '{missing[0]}'")
    planned = []
    architecture = reader.metadata.text("general.architecture")
    for info in sorted(reader.tensors, key=lambda info: place_of(info.name)):
        source = str(info.dtype)
        dtype = types.get(info.name, source)
        if info.name in types and not (
            can_quantize(DType(dtype)) and is_quantizable(info.name, info.shape, architecture)
        ):
            raise RequestError(f"[recipe] '{info.name}' cannot be {dtype}")
        planned.append(Planned(info.name, info.shape, source, exactly(info.name, dtype, info.shape[-1]), info.part))
    return Plan(_mix_of(planned, types), tuple(planned))


def _mix_of(planned: Sequence[Planned], types: Mapping[str, str]) -> Mix:
    """Return the mix whose number the file gets: one of the type with the most bytes."""
    counts: Counter[str] = Counter()
    for tensor in planned:
        if tensor.name in types:
            counts[tensor.dtype] += tensor.n_bytes
    dtype = counts.most_common(1)[0][0] if counts else "f32"
    return next((mix for mix in MIXES.values() if mix.dtype == dtype), MIXES["F32"])


def curve(costs: Costs, n_points: int = 24) -> list[Recipe]:
    """Return recipes from the smallest size to the largest useful one."""
    least = sum(min(option.n_bytes for option in options) for options in costs.options.values())
    most = sum(max(option.n_bytes for option in options) for options in costs.options.values())
    sizes = [least + (most - least) * i // (n_points - 1) for i in range(n_points)]
    return [for_size(costs, size) for size in sizes]
