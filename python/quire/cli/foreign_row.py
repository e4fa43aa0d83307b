"""A row of the table of other programs' options, and short forms of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["ForeignOption", "note", "refused", "works"]


@dataclass(frozen=True)
class ForeignOption:
    """One row of the table.

    ``takes`` tells if a value follows, or lists the values that may.  ``target`` is Quire's option, for ``works``;
    ``value`` its value if the foreign option has none; ``how`` the function of ``foreign_values`` that converts one.
    ``neutral`` lists values of a refused option that are accepted because they change nothing.  ``elsewhere`` is the
    note for commands without the target, if the option can be ignored there.
    """

    program: str
    names: tuple[str, ...]
    verdict: Literal["works", "note", "refused"]
    text: str = ""
    takes: bool | tuple[str, ...] = False
    env: str = ""
    target: str = ""
    value: str | None = None
    how: str = "same"
    neutral: tuple[str, ...] = ()
    elsewhere: str = ""


def works(
    names: str, target: str = "", *, env: str = "", takes: bool | tuple[str, ...] = True, value: str | None = None,
    how: str = "same", elsewhere: str = "",
) -> ForeignOption:  # fmt: skip
    split = tuple(names.split())
    return ForeignOption(
        "", split, "works", "", takes if value is None else False, env, target or split[-1], value, how, (), elsewhere
    )


def note(names: str, text: str, *, env: str = "", takes: bool | tuple[str, ...] = False) -> ForeignOption:
    return ForeignOption("", tuple(names.split()), "note", text, takes, env)


def refused(
    names: str, text: str, *, env: str = "", neutral: str = "", takes: bool | tuple[str, ...] = True
) -> ForeignOption:
    return ForeignOption("", tuple(names.split()), "refused", text, takes, env, neutral=tuple(neutral.split()))
