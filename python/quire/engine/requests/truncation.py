"""Shorten conversations by dropping their oldest turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Kept", "cut_ids", "without_oldest"]

_KEPT_ROLES = ("system", "developer")


@dataclass(frozen=True)
class Kept:
    """The rest of a shortened conversation, and the number of messages dropped."""

    messages: list[Mapping[str, object]]
    n_dropped: int


def without_oldest(
    messages: Sequence[Mapping[str, object]], n_most: int, n_tokens: Callable[[Sequence[Mapping[str, object]]], int]
) -> Kept:
    """Drop as many of the oldest turns as needed for a prompt of at most ``n_most`` tokens.

    A turn goes from one user message to the next.  In the last turn, calls are dropped with their results, oldest
    first, but neither the user's message nor anything after the last results.  System messages stay.  If that is not
    enough, everything that may be dropped is.

    Args:
        n_tokens: Counts the tokens of a conversation's prompt; called a few times, mostly with ones that nearly fit.
    """
    groups = _droppable(messages)

    def left(n: int) -> list[Mapping[str, object]]:
        gone = {i for group in groups[:n] for i in group}
        return [message for i, message in enumerate(messages) if i not in gone]

    n = _fewest(len(groups), _guess(messages, groups, n_most), lambda n: n_tokens(left(n)) <= n_most)
    return Kept(left(n), sum(map(len, groups[:n])))


def cut_ids(ids: Sequence[int], n_most: int, n_keep: int) -> list[int]:
    """Return the first ``n_keep`` ids and the last ones, ``n_most`` in all."""
    n_keep = min(n_keep, n_most)
    return [*ids[:n_keep], *ids[len(ids) - (n_most - n_keep) :]]


def _droppable(messages: Sequence[Mapping[str, object]]) -> list[list[int]]:
    """Return groups of messages that are dropped together, oldest first."""
    users = [i for i, message in enumerate(messages) if message.get("role") == "user"]
    last = users[-1] if users else -1
    groups: list[list[int]] = [[]]
    for i, message in enumerate(messages):
        role = message.get("role")
        if i == last or role in _KEPT_ROLES:
            continue
        if role == "user" or (i > last and role == "assistant"):
            groups.append([])
        if i > last and (not groups[-1] or groups[-1][-1] < last):
            groups.append([])
        groups[-1].append(i)
    if groups[-1] and groups[-1][-1] > last:  # the answer replies to these
        groups.pop()
    return [group for group in groups if group]


def _guess(messages: Sequence[Mapping[str, object]], groups: Sequence[Sequence[int]], n_most: int) -> int:
    """Return how many groups to drop if each token had four characters."""
    n_left = sum(_size(message) for message in messages)
    for n, group in enumerate(groups):
        if n_left <= 4 * n_most:
            return n
        n_left -= sum(_size(messages[i]) for i in group)
    return len(groups)


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_size, value.values()))
    return sum(map(_size, value)) if isinstance(value, Sequence) else 1


def _fewest(n_groups: int, guess: int, fits: Callable[[int], bool]) -> int:
    """Return the fewest groups to drop, searching around a guess because counting is slow; all if none suffice."""
    low, high = -1, n_groups  # low does not fit; high does, or is all there is
    at, step = min(guess, n_groups), 1
    while high - low > 1:
        at = min(max(at, low + 1), high - 1)
        if fits(at):
            high, at = at, at - step
        else:
            low, at = at, at + step
        step *= 2
        if not low < at < high:
            at = (low + high) // 2
    return high
