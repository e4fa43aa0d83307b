"""The multiple-choice knapsack: one of several options for each item, so that all fit and the total cost is least.

It is solved by dynamic programming over sizes rounded up to units; the space that rounding leaves is used afterwards.
With fewer than 2^15 units it is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import RequestError

__all__ = ["Option", "cheapest"]

_MOST_UNITS = 1 << 15


@dataclass(frozen=True)
class Option:
    """One way to store an item."""

    name: str
    n_bytes: int
    cost: float


def cheapest(things: Sequence[Sequence[Option]], n_bytes: int) -> list[Option]:
    """Return an option for each item, with ``n_bytes`` in total at most.

    Raises:
        RequestError: Not even the smallest options fit.
    """
    useful = [_undominated(options) for options in things]
    least = sum(options[0].n_bytes for options in useful)
    if least > n_bytes:
        raise RequestError(f"[recipe] {n_bytes} bytes are too few: the smallest types take {least}")
    chosen = _solved(useful, n_bytes - least)
    return _repaired(useful, chosen, n_bytes)


def _undominated(options: Sequence[Option]) -> list[Option]:
    """Return the options by size, without those that cost as much as a smaller one."""
    kept: list[Option] = []
    for option in sorted(options, key=lambda option: (option.n_bytes, option.cost)):
        if not kept or option.cost < kept[-1].cost:
            kept.append(option)
    return kept


def _solved(things: Sequence[Sequence[Option]], room: int) -> list[int]:
    """Return the indices of the chosen options, which take at most ``room`` bytes more than the smallest."""
    import numpy as np

    unit = max(1, -(-room // _MOST_UNITS))
    n_units = room // unit
    best = np.zeros(n_units + 1)
    choices = []
    for options in things:
        found = np.full(n_units + 1, np.inf)
        choice = np.zeros(n_units + 1, np.uint8)
        for number, option in enumerate(options):
            more = -(-(option.n_bytes - options[0].n_bytes) // unit)
            if more > n_units:
                break
            costs = best[: n_units + 1 - more] + option.cost
            better = costs < found[more:]
            found[more:][better] = costs[better]
            choice[more:][better] = number
        best = found
        choices.append(choice)
    left, chosen = n_units, []
    for options, choice in zip(reversed(things), reversed(choices), strict=True):
        number = int(choice[left])
        left -= -(-(options[number].n_bytes - options[0].n_bytes) // unit)
        chosen.append(number)
    return chosen[::-1]


def _repaired(things: Sequence[Sequence[Option]], chosen: list[int], n_bytes: int) -> list[Option]:
    """Use the remaining space where it saves most."""
    left = n_bytes - sum(options[i].n_bytes for options, i in zip(things, chosen, strict=True))
    while True:
        best, saved = None, 0.0
        for place, (options, i) in enumerate(zip(things, chosen, strict=True)):
            for number in range(i + 1, len(options)):
                fits = options[number].n_bytes - options[i].n_bytes <= left
                if fits and options[i].cost - options[number].cost > saved:
                    best, saved = (place, number), options[i].cost - options[number].cost
        if best is None:
            return [options[i] for options, i in zip(things, chosen, strict=True)]
        place, number = best
        left -= things[place][number].n_bytes - things[place][chosen[place]].n_bytes
        chosen[place] = number
