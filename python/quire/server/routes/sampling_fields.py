"""Fields for sampling in the bodies of each dialect, made from the declarations of the parameters."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import inf
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from ...errors import RequestError
from ...params.parameter import Dialect
from ...params.rules import Bool, Choice, Float, Int, Rule, Seed
from ...params.sampling import PARAMETERS, fields_of
from ..body_types import Body
from ..failures import ApiError
from ..listener.request_context import RequestContext

__all__ = ["TopCount", "check_alternatives", "entry_limits", "limits_of", "sampling_fields", "sampling_of"]

TopCount: TypeAlias = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
"""A number of alternatives beside log-probabilities; -1: the whole vocabulary."""

B = TypeVar("B", bound=Body)


def sampling_fields(dialect: Dialect) -> Callable[[type[B]], type[B]]:
    """Give a body the fields that a dialect has for parameters of sampling; ``sampling_of`` reads them."""

    def decorate(body: type[B]) -> type[B]:
        found = [
            (field, _wire_type(PARAMETERS[name].rule) | None, PARAMETERS[name].unset.get(dialect))
            for name, fields in fields_of(dialect).items()
            for field in fields
        ]
        kept = {name: vars(body)[name] for name in ("__doc__", "example") if name in vars(body)}
        made: type[B] = msgspec.defstruct(  # type: ignore[assignment]
            body.__name__, found, bases=(body,), module=body.__module__, namespace={**kept, "dialect": dialect},
            kw_only=True, forbid_unknown_fields=True,
        )  # fmt: skip
        return made

    return decorate


def sampling_of(body: Body) -> dict[str, Any]:
    """Return the parameters that a body gives, by Quire's names.  RequestError for one that is given twice."""
    given: dict[str, Any] = {}
    for name, fields, unset, lenient in _readers(body.dialect):  # type: ignore[attr-defined]
        values = [value for field in fields if (value := getattr(body, field)) is not None]
        if len(values) > 1:
            raise RequestError(f"[sampling] {' and '.join(reversed(fields))} are the same parameter: give one")
        value = values[0] if values else unset
        if value is not None:
            given[name] = lenient(value)
    return given


@cache
def _readers(dialect: Dialect) -> list[tuple[str, tuple[str, ...], Any, Callable[[object], object]]]:
    """Return what reading a body needs of each parameter: its fields, the value without them, and the conversion."""
    return [
        (name, fields, PARAMETERS[name].unset.get(dialect), PARAMETERS[name].rule.lenient)
        for name, fields in fields_of(dialect).items()
    ]


def limits_of(name: str) -> Meta:
    """Return the limits of a parameter's number, or of the length of its texts."""
    rule: Any = PARAMETERS[name].rule
    return Meta(max_length=rule.n_bytes) if hasattr(rule, "n_bytes") else Meta(ge=rule.low, le=rule.high)


def check_alternatives(context: RequestContext[Any], **given: int | None) -> None:
    """Check numbers of alternatives, by the names of their fields.  ApiError 400 for more than the server allows."""
    most = context.service.settings.max_logprobs
    for field, n in given.items():
        if n is not None and most >= 0 and not 0 <= n <= most:
            shown = "the whole vocabulary" if n < 0 else n
            text = f"{field} asks for {shown}: at most {most} are allowed (quire serve --max-logprobs)"
            raise ApiError(400, "invalid_value", text, field)


def entry_limits(name: str) -> Meta:
    """Return the limit of a parameter's number of entries."""
    rule: Any = PARAMETERS[name].rule
    return Meta(max_length=rule.n)


def _wire_type(rule: Rule) -> Any:
    match rule:
        case Seed():
            return Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
        case Int():
            low = -1 if rule.optional or rule.minus_one is not None else rule.low
            return Annotated[int, Meta(ge=low, le=rule.high)]
        case Float():
            most = None if rule.high == inf else rule.high
            if rule.optional:
                return Annotated[float, Meta(ge=-1, le=most)]
            return Annotated[float, Meta(gt=rule.low, le=most) if rule.open_below else Meta(ge=rule.low, le=most)]
        case Bool():
            return bool
        case Choice():
            return Literal[rule.choices]
        case _:
            raise TypeError(f"{type(rule).__name__} has no type on the wire: write the field by hand")
