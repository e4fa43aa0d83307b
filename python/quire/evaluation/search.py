"""Search for a recipe: calibrate, measure costs, choose, and refine."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..engine.loading.loader import open_reader
from ..errors import RequestError
from ..files.gguf import GGUFReader
from ..quantization import Importance
from .calibration import Calibration
from .costs import Costs, groups_of, measure_costs
from .importance import importance_of, measure_importance
from .recipe import Recipe, for_divergence, for_size, kept_bytes, measured, refined
from .scorer import Scorer
from .trial import Trial, opened_trial

__all__ = ["Found", "Goal", "Search", "for_measured_divergence", "importance_over", "search"]

OnStep = Callable[[int, int, str], None]  # finished steps, all steps, description
# Attempts to get close to a divergence once a recipe satisfies it; until then there is no limit.
_ATTEMPTS = 4
_CLOSE = 0.97


@dataclass(frozen=True)
class Goal:
    """The goal of a search: ``n_bytes`` of all tensors, or ``max_kl``, the divergence over the calibration text."""

    n_bytes: int | None = None
    max_kl: float | None = None


@dataclass(frozen=True)
class Search:
    """Options of a search.

    Attributes:
        n_chunks: Chunks of the text per trial.
        types: Types to try; None for the usual ones.
        layers_together: Consecutive layers that are tried together.
        n_rounds: How often costs are measured again among the others.
    """

    n_chunks: int = 4
    types: tuple[str, ...] | None = None
    layers_together: int = 1
    n_rounds: int = 1


@dataclass(frozen=True)
class Found:
    """A recipe, and the costs it was chosen with."""

    recipe: Recipe
    costs: Costs


def importance_over(
    reader: GGUFReader, calibration: Calibration, options: Mapping[str, Any], on_step: OnStep | None = None
) -> Importance:
    """Measure importance over the whole calibration text, including the head's."""
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
    """Return the best recipe found.  Raises RequestError if the goal is out of reach."""
    groups = groups_of(reader, how.layers_together)
    with opened_trial(reader, calibration.rows[: how.n_chunks], options) as trial:
        costs = measure_costs(trial, reader, groups, importance, types=how.types, on_trial=on_step)
        if goal.max_kl is not None:
            return for_measured_divergence(trial, costs, goal.max_kl, importance)
        assert goal.n_bytes is not None
        room = goal.n_bytes - kept_bytes(reader, costs)
        if room <= 0:
            raise RequestError(
                f"[recipe] {goal.n_bytes} bytes are too few: the tensors that are kept take {goal.n_bytes - room}"
            )
        best = measured(trial, for_size(costs, room), importance)
        at = Found(best, costs)
        for number in range(how.n_rounds):
            if on_step is not None:
                on_step(number, how.n_rounds, "once more")
            at = _better(trial, at, room, importance, groups)
        return at


def _better(trial: Trial, found: Found, room: int, importance: Importance, groups: Sequence[Sequence[str]]) -> Found:
    """Measure each group's costs with the other groups as in ``found``, choose again, and return the better recipe."""
    costs = refined(trial, found.costs, found.recipe, importance, groups)
    other = measured(trial, for_size(costs, room), importance)
    assert other.measured is not None
    assert found.recipe.measured is not None
    return Found(other, costs) if other.measured < found.recipe.measured else found


def for_measured_divergence(trial: Trial, costs: Costs, most: float, importance: Importance) -> Found:
    """Find the smallest recipe whose measured divergence is at most ``most``.

    The cost of matrices together is not the sum of their single costs, so the target for the predicted divergence is
    corrected by the measured one, and bisected once a too coarse and a fine enough recipe are known.

    Raises:
        RequestError: Even the finest types diverge more.
    """
    finest = for_size(costs, _most_bytes(costs))
    target, reached, missed = most, 0.0, math.inf
    best: Recipe | None = None
    for attempt in itertools.count(1):
        is_finest = target <= finest.predicted
        found = measured(trial, finest if is_finest else for_divergence(costs, target), importance)
        assert found.measured is not None
        if found.measured <= most:
            reached = max(reached, target)
            if best is None or found.n_bytes < best.n_bytes:
                best = found
            if found.measured >= _CLOSE * most:
                break
        elif is_finest:
            break
        else:
            missed = min(missed, target)
        if best is not None and attempt >= _ATTEMPTS:
            break
        corrected = target * 0.99 * most / max(found.measured, 1e-12)
        if best is None and attempt >= _ATTEMPTS:
            # No recipe satisfies it yet and corrections did not help, so lower the target until one does.
            target = min(corrected, target / 4)
        elif reached < corrected < missed:
            target = corrected
        elif reached > 0 and missed < math.inf:
            target = math.sqrt(reached * missed)
        else:
            target = target / 2 if reached == 0 else target * 2
    if best is None:
        types = ", ".join(sorted(set(finest.types.values())))
        raise RequestError(
            f"[recipe] a divergence of {most:.3g} nats per token is out of reach: the finest types tried ({types}) "
            f"have {found.measured:.3g} (allow finer ones with --candidates)"
        )
    return Found(best, costs)


def _most_bytes(costs: Costs) -> int:
    return sum(max(option.n_bytes for option in options) for options in costs.options.values())
