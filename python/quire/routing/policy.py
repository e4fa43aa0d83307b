"""Choose the replica for a request: the longest match, unless that replica has much more to do than another."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

__all__ = ["Digest", "Policy", "Replica"]

MOST_BLOCKS = 1 << 16
"""Blocks that a digest remembers: 16 MiB of text, about 4 million tokens."""


class Digest:
    """A guess at the cache of a replica: hashes of the blocks sent to it, of which the latest are kept."""

    def __init__(self, most: int = MOST_BLOCKS) -> None:
        self._most = most
        self._known: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def n_matching(self, hashes: Sequence[int]) -> int:
        """Return how many of the first blocks are known, without a gap."""
        low, high = 0, len(hashes)
        while low < high:  # a known block implies all before it, because each hash includes them
            middle = (low + high) // 2
            if hashes[middle] in self._known:
                low = middle + 1
            else:
                high = middle
        return low

    def add(self, hashes: Iterable[int]) -> None:
        """Remember blocks.  The first ones count as used last, so that a chain is forgotten from its end."""
        for block in reversed(list(hashes)):
            self._known[block] = None
            self._known.move_to_end(block)
        while len(self._known) > self._most:
            self._known.popitem(last=False)

    def clear(self) -> None:
        """Forget everything, as a replica does that starts again."""
        self._known.clear()


@dataclass
class Replica:
    """A server.  ``n_active``: requests sent to it that are not answered."""

    url: str
    is_ready: bool = True
    n_active: int = 0
    digest: Digest = field(default_factory=Digest)


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

    def choose(self, replicas: Sequence[Replica], hashes: Sequence[int]) -> Replica | None:
        """Return the replica for a request, or None if none is ready."""
        ready = [replica for replica in replicas if replica.is_ready]
        if not ready:
            return None
        least = min(replica.n_active for replica in ready)
        most = least + self.slack + self.tolerance * least
        matches = [(replica.digest.n_matching(hashes), -replica.n_active, i) for i, replica in enumerate(ready)]
        n, _, best = max(matches)
        if n and n >= self.least_share * len(hashes) and ready[best].n_active <= most:
            return ready[best]
        # Power of two choices: nearly as even as asking all, and callers of several fronts do not all run to the same.
        pair = self.draw.sample(ready, min(2, len(ready)))
        return min(pair, key=lambda replica: (replica.n_active, len(replica.digest)))
