"""The front's guess at the replicas' caches: which of them were sent which blocks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["PrefixIndex", "Replica"]

MOST_BLOCKS = 1 << 20
"""Blocks that are remembered: 256 MiB of text, about 64 million tokens."""
MOST_HOLDERS = 8
BLOCKS_OF_AN_ANSWER = 8
"""Reading so much of a prompt, about 500 tokens, counts as much as an answer in progress (docs/fleet.md)."""


@dataclass(eq=False)
class Replica:
    """A server.

    Attributes:
        n_active: Requests sent to it that are not answered.
        n_unread: Blocks of their prompts that are neither in its cache nor computed, as far as the front can tell.
        n_given: Blocks sent to it.
        epoch: How often it has started again; each time it has lost its cache.
    """

    url: str
    is_ready: bool = True
    n_active: int = 0
    n_unread: int = 0
    n_given: int = 0
    epoch: int = 0

    @property
    def load(self) -> float:
        """How much it has to do, in answers."""
        return self.n_active + self.n_unread / BLOCKS_OF_AN_ANSWER


class PrefixIndex:
    """Hashes of the blocks that were sent, the latest of all replicas, each with the last replicas it was sent to."""

    def __init__(self, most: int = MOST_BLOCKS, most_holders: int = MOST_HOLDERS) -> None:
        self._most, self._most_holders = most, most_holders
        self._known: OrderedDict[int, tuple[tuple[Replica, int], ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def n_known(self, hashes: Sequence[int]) -> int:
        """Return how many of the first blocks were sent to any replica, without a gap."""
        low, high = 0, len(hashes)
        while low < high:  # a known block implies all before it, because each hash includes them
            middle = (low + high) // 2
            if hashes[middle] in self._known:
                low = middle + 1
            else:
                high = middle
        return low

    def holders(self, block: int) -> list[Replica]:
        """Return the replicas that a block was sent to, latest first, but for those that have started again since."""
        return [replica for replica, epoch in self._known.get(block, ()) if replica.epoch == epoch]

    def matches(self, hashes: Sequence[int]) -> dict[Replica, int]:
        """Return replicas that were sent the prompt's first blocks, with how many of them.

        Those with the most are all found, and some with less.
        """
        found: dict[Replica, int] = {}
        deeper = n = self.n_known(hashes)
        less = 1
        while n > 0:
            for replica in self.holders(hashes[n - 1]):
                if replica not in found:
                    found[replica] = self._end_of(replica, hashes, n, deeper)
            deeper = n
            n -= less
            less *= 2
        return found

    def _end_of(self, replica: Replica, hashes: Sequence[int], low: int, high: int) -> int:
        """Return how many blocks the replica was sent: at least ``low``, and ``high`` or fewer."""
        while low < high:
            middle = (low + high + 1) // 2
            if replica in self.holders(hashes[middle - 1]):
                low = middle
            else:
                high = middle - 1
        return low

    def add(self, replica: Replica, hashes: Sequence[int]) -> None:
        """Remember blocks.  The first ones count as used last, so that a chain is forgotten from its end."""
        known, own = self._known, (replica, replica.epoch)
        for block in reversed(hashes):
            others = tuple(each for each in known.get(block, ()) if each[0] is not replica)
            known[block] = (own, *others[: self._most_holders - 1])
            known.move_to_end(block)
        while len(known) > self._most:
            known.popitem(last=False)
        replica.n_given += len(hashes)
