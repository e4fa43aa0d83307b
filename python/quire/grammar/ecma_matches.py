"""Parts of a regular expression, with the anchors separated from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from .ecma_characters import CharacterSet, literal

__all__ = ["EMPTY", "Found", "Part", "after", "either", "joined", "one", "one_of", "repeated"]


@dataclass(frozen=True)
class Part:
    """A regular expression without anchors, and whether it matches the empty text."""

    text: str
    nullable: bool


# The matches of a part of a pattern, by whether they begin where the text begins and end where the text ends.
Found: TypeAlias = "dict[tuple[bool, bool], Part]"
EMPTY: Found = {(False, False): Part("", True)}


def one(code: int) -> Found:
    """Match one character."""
    return {(False, False): Part(literal(code), False)}


def one_of(characters: CharacterSet) -> Found:
    """Match one character of a set; an empty set matches nothing."""
    return {} if characters.is_empty else {(False, False): Part(characters.written(), False)}


def joined(parts: list[Part]) -> Found:
    """Join parts without anchors in a row."""
    return {(False, False): Part("".join(part.text for part in parts), all(part.nullable for part in parts))}


def either(all_found: Iterable[Found]) -> Found:
    """Match any of several alternatives."""
    by_anchors: dict[tuple[bool, bool], list[Part]] = {}
    for found in all_found:
        for anchors, part in found.items():
            by_anchors.setdefault(anchors, []).append(part)
    return {
        anchors: parts[0]
        if len(parts) == 1
        else Part(f"(?:{'|'.join(part.text for part in parts)})", any(part.nullable for part in parts))
        for anchors, parts in by_anchors.items()
    }


def after(left: Found, right: Found) -> Found:
    """Match one after the other.  Parts before a start anchor, or after an end anchor, match only the empty text."""
    found: list[Found] = []
    for (first, last), part in left.items():
        for (next_first, next_last), following in right.items():
            if (next_first and not part.nullable) or (last and not following.nullable):
                continue
            text = f"{'' if next_first else part.text}{'' if last else following.text}"
            both = Part(text, part.nullable and following.nullable)
            found.append({(first or next_first, last or next_last): both})
    return either(found)


def repeated(atom: Found, least: int, most: int | None) -> Found | None:
    """Match ``least`` to ``most`` times (None: unbounded).  Returns None if an anchor would be repeated."""
    if most == 0 or (not atom and least == 0):
        return EMPTY
    if (least, most) == (0, 1):
        return either([atom, EMPTY])
    if not atom:
        return {}
    if atom.keys() != {(False, False)}:
        return None
    part = atom[False, False]
    if not part.text:
        return atom
    count = f"{{{least},{'' if most is None else most}}}"
    if most is None and least < 2:
        count = "*+"[least]
    return {(False, False): Part(f"(?:{part.text}){count}", part.nullable or least == 0)}
