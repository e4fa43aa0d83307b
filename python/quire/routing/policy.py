"""Choose the replica for a request: the longest match, unless that replica has much more to do than others."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from .prefix_index import PrefixIndex, Replica

__all__ = ["Policy"]

_MOST_ASKED = 16
"""Replicas whose load is compared for a request, so that a fleet of thousands costs no more than a few."""


@dataclass
class Policy:
    """How to choose.

    Attributes:
        slack, tolerance: A replica may have ``slack + tolerance * least`` more active requests than the one with the
            least, and still be preferred for its cache.
        least_share: Least share of a prompt that must be cached for that.
    """

    slack: int = 4
    tolerance: float = 0.5
    least_share: float = 0.25
    draw: random.Random = field(default_factory=random.Random)
    index: PrefixIndex = field(default_factory=PrefixIndex)

    def choose(
        self, replicas: Sequence[Replica], hashes: Sequence[int], tried: Collection[Replica] = ()
    ) -> Replica | None:
        """Return the replica for a request, none of ``tried``; None if none is ready."""
        asked = self._some(replicas, tried)
        if not asked:
            return None
        least = min(replica.n_active for replica in asked)
        most = least + self.slack + self.tolerance * least
        for n in self._depths(hashes):
            holders = self.index.holders(hashes[n - 1])
            fit = [each for each in holders if each.is_ready and each not in tried and each.n_active <= most]
            if fit:
                return min(fit, key=lambda replica: replica.n_active)
        # Power of two choices: nearly as even as asking all, and callers of several fronts do not all run to the same.
        pair = self.draw.sample(asked, min(2, len(asked)))
        return min(pair, key=lambda replica: (replica.n_active, replica.n_given))

    def _depths(self, hashes: Sequence[int]) -> Iterator[int]:
        """Yield how much of the prompt to look for: all that is known, then less and less."""
        n = self.index.n_known(hashes)
        least, less = max(1, self.least_share * len(hashes)), 1
        while n >= least:
            yield n
            n -= less
            less *= 2

    def _some(self, replicas: Sequence[Replica], tried: Collection[Replica]) -> list[Replica]:
        """Return the replicas that can be asked, or some of them if there are many."""
        if len(replicas) > _MOST_ASKED:
            drawn = self.draw.sample(replicas, _MOST_ASKED)
            found = [each for each in drawn if each.is_ready and each not in tried]
            if len(found) >= 2:
                return found
        return [each for each in replicas if each.is_ready and each not in tried]
