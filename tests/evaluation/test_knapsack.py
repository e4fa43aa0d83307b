"""The knapsack against exhaustive search."""

from __future__ import annotations

import itertools
import random

import pytest
from quire.errors import RequestError
from quire.quantization.knapsack import Option, cheapest


@pytest.mark.parametrize("seed", range(12))
def test_the_choice_is_optimal(seed: int) -> None:
    source = random.Random(seed)
    things = [
        [Option(str(i), source.randrange(1, 60), source.random() * 10) for i in range(source.randrange(1, 5))]
        for _ in range(6)
    ]
    least = sum(min(option.n_bytes for option in options) for options in things)
    most = sum(max(option.n_bytes for option in options) for options in things)
    for n_bytes in {least, (least + most) // 2, (3 * least + most) // 4, most}:
        chosen = cheapest(things, n_bytes)
        fitting = [all_ for all_ in itertools.product(*things) if sum(one.n_bytes for one in all_) <= n_bytes]
        best = min(sum(one.cost for one in all_) for all_ in fitting)
        assert sum(one.n_bytes for one in chosen) <= n_bytes
        assert sum(one.cost for one in chosen) == pytest.approx(best)
        assert all(one in options for one, options in zip(chosen, things, strict=True))


def test_with_large_sizes_the_choice_is_nearly_optimal() -> None:
    source = random.Random(3)
    things = [
        [Option(str(i), (i + 2) * source.randrange(9 << 20, 11 << 20), 4.0**-i * source.random()) for i in range(8)]
        for _ in range(40)
    ]
    n_bytes = sum(options[3].n_bytes for options in things)
    chosen = cheapest(things, n_bytes)
    assert sum(one.n_bytes for one in chosen) <= n_bytes
    # The Lagrangian bound is a lower limit of the cost.
    cost = sum(one.cost for one in chosen)
    bounds = []
    for power in range(-4000, -1000):
        price = 10 ** (power / 200)
        bound = sum(min(one.cost + price * one.n_bytes for one in options) for options in things) - price * n_bytes
        bounds.append(bound)
    assert cost <= 1.03 * max(bounds)  # sizes are not divisible, so the bound cannot be reached


def test_too_little_room_is_an_error() -> None:
    with pytest.raises(RequestError, match="take 7"):
        cheapest([[Option("a", 3, 1.0)], [Option("b", 4, 1.0), Option("c", 9, 0.5)]], 6)
