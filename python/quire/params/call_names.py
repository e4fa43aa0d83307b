"""Wrong arguments of public calls: the message names the call and the nearest argument."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar

__all__ = ["name_call", "names_its_call", "unknown_argument"]

P = ParamSpec("P")
T = TypeVar("T")

# Names that other engines give to parameters, with Quire's own; filled by ``name_call``.
_ALIASES: dict[str, str] = {}


def names_its_call(function: Callable[Concatenate[T, P], None]) -> Callable[Concatenate[T, P], None]:
    """Make a constructor's TypeErrors name the class that is called, not the one that defines it."""
    signature = inspect.signature(function)
    own = list(signature.parameters)[1:]
    n_positional = sum(each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for each in signature.parameters.values())

    @functools.wraps(function)
    def checked(self: T, /, *args: P.args, **given: P.kwargs) -> None:
        call = type(self).__name__
        for name in given:
            if name not in own:
                raise TypeError(unknown_argument(call, name, own))
        if len(args) >= n_positional:
            example = own[n_positional - 1]
            raise TypeError(
                f"{call}() takes {n_positional - 1} positional arguments, and {len(args)} were given: name the others, "
                f"as in {example}=..."
            )
        function(self, *args, **given)

    return checked


def name_call(kind: type[Any], aliases: Mapping[str, str]) -> None:
    """Apply ``names_its_call`` to a class with a generated constructor; ``aliases``: other names of its fields."""
    _ALIASES.update(aliases)
    kind.__init__ = names_its_call(kind.__init__)


def unknown_argument(call: str, name: str, known: Collection[str]) -> str:
    """The error message for an argument that a call does not have, with a suggestion if one is near."""
    close = difflib.get_close_matches(name, known, 1)
    nearest = next((each for each in (_ALIASES.get(name), *close) if each in known), None)
    advice = f": did you mean {nearest!r}?" if nearest is not None else ""
    if nearest is None and name in ("system", "tools", "temperature", "max_tokens", "stop", "top_k", "top_p", "seed"):
        advice = f": it belongs to a request, as in generate(prompt, {name}=...)"
    return f"{call}() got an unexpected keyword argument {name!r}{advice}"
