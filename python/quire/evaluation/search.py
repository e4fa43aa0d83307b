"""Finding a recipe for a model: calibrate, try, choose, and look again."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..engine.loader import open_reader
from ..errors import RequestError
from ..gguf import GGUFReader
from ..quantization import Importance
from .calibration import Calibration
from .costs import Costs, groups_of, measure_costs
from .importance import importance_of, measure_importance
from .recipe import Recipe, for_divergence, for_size, kept_bytes, measured, refined
from .scorer import Scorer
from .trial import Trial, opened_trial

__all__ = ["Found", "Goal", "Search", "importance_over", "search"]

OnStep = Callable[[int, int, str], None]  # steps done, in all, what
_ATTEMPTS = 4


@dataclass(frozen=True)
class Goal:
    """One of: ``n_bytes`` of the tensors, all of them; ``max_kl``, the divergence over the calibration text."""

    n_bytes: int | None = None
    max_kl: float | None = None


@dataclass(frozen=True)
class Search:
    """How it is done: ``n_chunks`` of the text in each trial, ``types`` that are tried (None: the usual ones), layers
    that are tried together, and how often costs are measured again among the others (``n_rounds``)."""

    n_chunks: int = 4
    types: tuple[str, ...] | None = None
    layers_together: int = 1
    n_rounds: int = 1


@dataclass(frozen=True)
class Found:
    """The recipe, and the costs that it was chosen by."""

    recipe: Recipe
    costs: Costs


def importance_over(
    reader: GGUFReader, calibration: Calibration, options: Mapping[str, Any], on_step: OnStep | None = None
) -> Importance:
    """Measured over the whole calibration text, of the head, too."""
    rows = calibration.rows
    config = Scorer.sized({**options, "kernels": "stock"}, len(rows[0]))
    with Scorer(open_reader(reader, Path(os.fspath(reader.path)), config, sums_inputs=True)) as scorer:

        def on_chunks(done: int, _: object) -> None:
            if on_step is not None:
                on_step(done, len(rows), "importance")

        measure_importance(scorer, rows, on_chunks=on_chunks)
        made = importance_of(scorer, calibration.name, len(rows), len(rows[0]), process_output=True)
    made.path = calibration.name
    return made


def search(
    reader: GGUFReader, goal: Goal, calibration: Calibration, importance: Importance, how: Search, *,
    options: Mapping[str, Any], on_step: OnStep | None = None,
) -> Found:  # fmt: skip
    """The best recipe that was found.  RequestError where the goal cannot be reached."""
    groups = groups_of(reader, how.layers_together)
    with opened_trial(reader, calibration.rows[: how.n_chunks], options) as trial:
        costs = measure_costs(trial, reader, groups, importance, types=how.types, on_trial=on_step)
        if goal.max_kl is not None:
            return _for_divergence(trial, costs, goal.max_kl, importance)
        assert goal.n_bytes is not None
        room = goal.n_bytes - kept_bytes(reader, costs)
        if room <= 0:
            raise RequestError(
                f"[recipe] the size must be above {goal.n_bytes - room} bytes that stay but is {goal.n_bytes}"
            )
        best = measured(trial, for_size(costs, room), importance)
        at = Found(best, costs)
        for number in range(how.n_rounds):
            if on_step is not None:
                on_step(number, how.n_rounds, "once more")
            at = _better(trial, at, room, importance, groups)
        return at


def _better(trial: Trial, found: Found, room: int, importance: Importance, groups: Sequence[Sequence[str]]) -> Found:
    """What costs among the others choose, where that is better."""
    costs = refined(trial, found.costs, found.recipe, importance, groups)
    other = measured(trial, for_size(costs, room), importance)
    assert other.measured is not None
    assert found.recipe.measured is not None
    return Found(other, costs) if other.measured < found.recipe.measured else found


def _for_divergence(trial: Trial, costs: Costs, most: float, importance: Importance) -> Found:
    """The sum of what matrices cost alone is not what they cost together: it is corrected by what is measured."""
    target, best = most, None
    for _ in range(_ATTEMPTS):
        found = measured(trial, for_divergence(costs, target), importance)
        assert found.measured is not None
        if found.measured <= most and (best is None or found.n_bytes < best.n_bytes):
            best = found
        if 0.97 * most <= found.measured <= most:
            break
        target *= 0.99 * most / max(found.measured, 1e-12)
    if best is None:
        raise RequestError(f"[recipe] the divergence must be reached but {most:.3g} was not, in {_ATTEMPTS} attempts")
    return Found(best, costs)
