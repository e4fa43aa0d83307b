"""The cost of each matrix of a model in each type: bytes, and divergence from the unquantized model.

Quantizing a matrix adds an error to its products.  Its mean square is that of the error of the weights, weighted by the
mean square of their inputs (the importance).  For small errors the divergence is proportional to it, with a factor per
matrix.  A few trials measure the factor: they replace the matrix by its quantized form and compute the divergence over
a text.  Between trials the logarithms are interpolated; beyond them divergence is proportional.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .._native.core import DType
from .._native.quant import needs_importance
from ..errors import RequestError
from ..files.gguf import GGUFReader
from ..quantization import Importance, Planned
from ..quantization.knapsack import Option
from ..quantization.roles import is_quantizable
from .trial import Trial

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]

__all__ = ["CANDIDATES", "Costs", "candidates_of", "groups_of", "interpolated", "measure_costs"]

CANDIDATES = (
    "iq2_xxs", "iq2_xs", "iq2_s", "q2_k", "iq3_xxs", "q3_k", "iq3_s", "iq4_xs", "q4_k", "q5_k", "q6_k", "q8_0",
)  # fmt: skip
"""The types to try if the user names none."""
# The types for rows that their larger blocks do not divide.
_FOR_ODD_ROWS = ("q2_0", "q4_0", "iq4_nl", "q4_1", "q5_0", "q5_1", "q8_0", "f16")
# Trials use the types closest to these bits per weight.
_PROBED_BITS = (3.4, 5.5)
# A matrix with at least this fraction of the weights, such as the embedding of a small model, is tried in every type,
# because its size determines the space for all others.
_HEAVY = 1 / 16
OnTrial = Callable[[int, int, str], None]  # finished trials, all trials, name


def candidates_of(name: str, n_columns: int, types: Sequence[str] | None, importance: Importance) -> list[str]:
    """Return the types that a matrix may get, out of ``types`` or the usual ones."""
    if types is None:
        types = CANDIDATES if n_columns % 256 == 0 else _FOR_ODD_ROWS
    is_measured = name in importance.sums
    return [
        dtype
        for dtype in types
        if n_columns % DType(dtype).block_size == 0 and (is_measured or not needs_importance(DType(dtype)))
    ]


def groups_of(reader: GGUFReader, n_layers_together: int = 1) -> list[list[str]]:
    """Return groups of matrices to try together: single ones, or those of one kind in consecutive layers."""
    import re

    architecture = reader.metadata.text("general.architecture")
    groups: dict[tuple[int, str], list[str]] = {}
    for info in reader.tensors:
        if not is_quantizable(info.name, info.shape, architecture):
            continue
        found = re.match(r"blk\.(\d+)\.(.*)", info.name)
        key = (int(found[1]) // n_layers_together, found[2]) if found else (-1, info.name)
        groups.setdefault(key, []).append(info.name)
    return list(groups.values())


def interpolated(error: float, trials: Sequence[tuple[float, float]]) -> float:
    """Return the divergence at an error, from the (error, divergence) pairs of trials.

    It is linear in the logarithms between two trials, and proportional beyond the first and the last.
    """
    points = sorted((e, d) for e, d in trials if e > 0 and d > 0)
    if error <= 0 or not points:
        return 0.0
    if error <= points[0][0]:
        return points[0][1] * error / points[0][0]
    if error >= points[-1][0]:
        return points[-1][1] * error / points[-1][0]
    for (low, below), (high, above) in itertools.pairwise(points):
        if error <= high:
            part = math.log(error / low) / math.log(high / low) if high > low else 0.0
            return below * float((above / below) ** part)
    raise AssertionError(error)


@dataclass(frozen=True)
class Costs:
    """The options of each matrix; ``trials`` has the errors and divergences measured for each group."""

    options: Mapping[str, Sequence[Option]]
    trials: Mapping[str, Sequence[tuple[float, float]]]

    def scaled(self, factors: Mapping[str, float]) -> Costs:
        """Return costs with those of some matrices multiplied by factors."""
        made = {
            name: [Option(one.name, one.n_bytes, one.cost * factors.get(name, 1.0)) for one in options]
            for name, options in self.options.items()
        }
        return Costs(made, self.trials)


def measure_costs(
    trial: Trial, reader: GGUFReader, groups: Sequence[Sequence[str]], importance: Importance, *,
    types: Sequence[str] | None = None, on_trial: OnTrial | None = None,
    known: Mapping[str, Sequence[tuple[float, float]]] | None = None,
) -> Costs:  # fmt: skip
    """Try every group in a few types, and heavy matrices in all types.

    Args:
        known: Trials of groups, by their first matrix, which are not repeated.

    Raises:
        RequestError: No type fits a matrix.
    """
    options: dict[str, list[Option]] = {}
    trials: dict[str, list[tuple[float, float]]] = {name: list(its) for name, its in (known or {}).items()}
    n_values = {name: math.prod(reader.tensor_info(name).shape) for names in groups for name in names}
    n_trials, done = len(groups) * len(_PROBED_BITS), 0
    for names in groups:
        errors = {name: _errors(trial, reader, name, importance, types) for name in names}
        found = trials.setdefault(names[0], [])
        tries = [{name: _nearest(reader, name, list(errors[name]), bits) for name in names} for bits in _PROBED_BITS]
        if len(names) == 1 and n_values[names[0]] >= _HEAVY * sum(n_values.values()):
            n_trials += len(errors[names[0]]) - len(tries)
            tries = [{names[0]: dtype} for dtype in errors[names[0]]]
        for chosen in tries if not found else ():
            if on_trial is not None:
                on_trial(done, n_trials, names[0])
            done += 1
            error = sum(errors[name][dtype] for name, dtype in chosen.items())
            found.append((error, _tried(trial, chosen, importance)))
        for name in names:
            options[name] = []
            for dtype, error in errors[name].items():
                # The error of the whole group in this type.
                whole = sum(errors[other].get(dtype, error) for other in names)
                cost = interpolated(whole, found) * (error / whole if whole > 0 else 0.0)
                options[name].append(Option(dtype, _n_bytes(reader, name, dtype), cost))
    return Costs(options, trials)


def _n_bytes(reader: GGUFReader, name: str, dtype: str) -> int:
    info = reader.tensor_info(name)
    n_bytes = Planned(name, info.shape, str(info.dtype), dtype).n_bytes
    return -(-n_bytes // reader.alignment) * reader.alignment


def _nearest(reader: GGUFReader, name: str, types: Sequence[str], bits: float) -> str:
    def distance(dtype: str) -> float:
        block = DType(dtype)
        return abs(8 * block.row_bytes(block.block_size) / block.block_size - bits)

    return min(types, key=distance)


def _errors(
    trial: Trial, reader: GGUFReader, name: str, importance: Importance, types: Sequence[str] | None
) -> dict[str, float]:
    """Return the sum of squared errors, weighted by the columns' importance, for each type that a matrix may get."""
    import numpy as np

    info = reader.tensor_info(name)
    found = candidates_of(name, info.shape[-1], types, importance)
    if not found:
        raise RequestError(f"[recipe] the rows of '{name}' are not whole blocks of any of the types to try")
    whole = trial.values(name, "f32", None)
    n_matrix = info.shape[0] if len(info.shape) == 3 else 1
    weights: Floats = np.ones((n_matrix, info.shape[-1]), np.float32)
    if name in importance.sums and importance.sums[name].squares.size == weights.size:
        weights = importance.sums[name].mean().reshape(weights.shape)
    made = {}
    for dtype in found:
        difference = (trial.values(name, dtype, importance) - whole).reshape(n_matrix, -1, info.shape[-1])
        made[dtype] = float(np.einsum("mrc,mrc,mc->", difference, difference, weights, dtype=np.float64))
    return made


def _tried(trial: Trial, chosen: Mapping[str, str], importance: Importance) -> float:
    from contextlib import ExitStack

    with ExitStack() as stack:
        for name, dtype in chosen.items():
            stack.enter_context(trial.changed(name, trial.values(name, dtype, importance)))
        return trial.divergence()
