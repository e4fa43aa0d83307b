"""Choose the replica for a request: the one with the least to do, including what it lacks of the prompt."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from .prefix_index import BLOCKS_OF_AN_ANSWER, PrefixIndex, Replica

__all__ = ["Policy"]

_MOST_ASKED = 16
"""Replicas whose load is compared for a request, so that a fleet of thousands costs no more than a few."""


@dataclass
class Policy:
    """How to choose.  ``index``: which replica was sent which blocks."""

    draw: random.Random = field(default_factory=random.Random)
    index: PrefixIndex = field(default_factory=PrefixIndex)

    def choose(
        self, replicas: Sequence[Replica], hashes: Sequence[int], tried: Collection[Replica] = ()
    ) -> Replica | None:
        """Return the replica for a request, none of ``tried``; None if none is ready."""
        return self.choose_with_known(replicas, hashes, tried)[0]

    def choose_with_known(
        self, replicas: Sequence[Replica], hashes: Sequence[int], tried: Collection[Replica] = ()
    ) -> tuple[Replica | None, int]:
        """Return what ``choose`` returns, and how many of the blocks that replica was sent."""
        asked = self._some(replicas, tried)
        if not asked:
            return None, 0
        best = min(asked, key=lambda replica: (replica.load, replica.n_given))
        least = best.load + len(hashes) / BLOCKS_OF_AN_ANSWER
        known = self.index.matches(hashes)
        for holder, n in known.items():
            if holder.is_ready and holder not in tried:
                load = holder.load + (len(hashes) - n) / BLOCKS_OF_AN_ANSWER
                if load < least:
                    best, least = holder, load
        return best, known.get(best, 0)

    def _some(self, replicas: Sequence[Replica], tried: Collection[Replica]) -> list[Replica]:
        """Return the replicas that can be asked, or some of them if there are many."""
        if len(replicas) > _MOST_ASKED:
            drawn = self.draw.sample(replicas, _MOST_ASKED)
            found = [each for each in drawn if each.is_ready and each not in tried]
            if len(found) >= 2:
                return found
        return [each for each in replicas if each.is_ready and each not in tried]
