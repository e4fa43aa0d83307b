"""Split patterns that begin with lookaheads into patterns that must all be found.

``^(?=A)(?=B)C``, the usual form of password rules, is found where ``^(?:A)``, ``^(?:B)`` and ``^C`` are.
"""

from __future__ import annotations

__all__ = ["conjuncts"]

_MAX = 16


def conjuncts(pattern: str) -> list[str]:
    """Return patterns without leading positive lookaheads, all of which are found exactly where ``pattern`` is."""
    found: list[str] = []
    rest = pattern
    while rest.startswith("^(?=") and len(found) < _MAX:
        end = _end_of_group(rest, 1)
        if end is None or _has_alternatives(rest[end:]):
            break
        found.append(f"^(?:{rest[4 : end - 1]})")
        rest = f"^{rest[end:]}"
    return [*found, rest] if rest != "^" or not found else found


def _end_of_group(pattern: str, start: int) -> int | None:
    """Return the end of the group that begins at ``start``, or None."""
    for at, depth in _walk(pattern, start):
        if not depth:
            return at
    return None


def _has_alternatives(pattern: str) -> bool:
    return any(pattern[at - 1] == "|" and depth == 0 for at, depth in _walk(pattern, 0))


def _walk(pattern: str, at: int) -> list[tuple[int, int]]:
    """Return the end of each character outside of sets and escapes, and the depth of groups there."""
    found, depth, in_set = [], 0, False
    while at < len(pattern):
        sign = pattern[at]
        at += 2 if sign == "\\" else 1
        if sign == "\\":
            continue
        if in_set:
            in_set = sign != "]"
            continue
        in_set = sign == "["
        depth += {"(": 1, ")": -1}.get(sign, 0)
        found.append((at, depth))
    return found
