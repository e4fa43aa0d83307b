"""Python functions as tools: the schema from type hints, the descriptions from the docstring."""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import msgspec

from ..errors import UnsupportedError
from .docstrings import described
from .tool import Approval, Tool, ToolResult

__all__ = ["tool_of_function"]


def tool_of_function(function: Callable[..., object], *, approval: Approval = "always") -> Tool:
    """Return a function, plain or async, as a tool with the same name.

    Types may be those of JSON, ``Literal``, enums, dataclasses, ``TypedDict``, msgspec structs, Pydantic models, dates,
    UUIDs and ``Annotated`` with ``msgspec.Meta``; a parameter without a type takes any value.  Plain functions run on
    another thread.

    Raises:
        UnsupportedError: A parameter cannot be given as JSON.
    """
    inner = function.func if isinstance(function, partial) else function
    name = getattr(inner, "__name__", type(inner).__name__)
    if not name.isidentifier():
        raise UnsupportedError(f"[tools] {name} has no name that a model could call: use def")
    text, about = described(inspect.getdoc(inner) or "")
    try:
        signature = inspect.signature(function)
        annotated = inner if inspect.isroutine(inner) else type(inner).__call__
        hints = typing.get_type_hints(annotated, include_extras=True)
    except (ValueError, TypeError, NameError) as error:
        raise UnsupportedError(f"[tools] {name}: {error}") from None
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for parameter in signature.parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise UnsupportedError(f"[tools] {name}: parameter {parameter} cannot be given by name")
        kind = hints.get(parameter.name, Any)
        if parameter.name in about:
            kind = Annotated[kind, msgspec.Meta(description=about[parameter.name])]
        if parameter.default is parameter.empty:
            fields.append((parameter.name, kind))
        else:  # the function's own default is used, which need not be JSON
            kind = typing.Union[kind, msgspec.UnsetType]  # noqa: UP007 - kind may be any form
            fields.append((parameter.name, kind, msgspec.UNSET))
    try:
        arguments = msgspec.defstruct(name, fields, forbid_unknown_fields=True, kw_only=True)
        parameters = _schema(arguments, name, signature)
    except TypeError as error:
        raise UnsupportedError(f"[tools] {name}: {error}") from None
    call = partial(_called, function, arguments)
    return Tool(name=name, own_name=name, description=text, parameters=parameters, call=call, approval=approval)


def _schema(arguments: type[msgspec.Struct], name: str, signature: inspect.Signature) -> dict[str, Any]:
    foreign: dict[str, Any] = {}
    (_,), parts = msgspec.json.schema_components(
        [arguments], schema_hook=partial(_foreign_schema, foreign), ref_template="#/$defs/{name}"
    )
    schema: dict[str, Any] = parts.pop(name)
    schema.pop("title", None)
    for key, about in schema["properties"].items():
        default = signature.parameters[key].default
        if type(default) in (bool, int, float, str):
            about["default"] = default
    inner = {**parts, **foreign}
    return {**schema, "$defs": inner} if inner else schema


def _foreign_schema(inner: dict[str, Any], kind: type) -> dict[str, Any]:
    """Return the schema of a Pydantic model, which msgspec does not know, and add the models in it to ``inner``."""
    if not hasattr(kind, "model_json_schema"):
        raise TypeError(f"the type {kind.__name__} is unsupported")
    schema: dict[str, Any] = kind.model_json_schema()
    inner |= schema.pop("$defs", {})
    return schema


def _foreign_value(kind: type, value: object) -> object:
    return kind.model_validate(value)  # type: ignore[attr-defined]


async def _called(
    function: Callable[..., object], arguments: type[msgspec.Struct], given: dict[str, Any]
) -> ToolResult:
    try:
        taken = msgspec.convert(given, arguments, dec_hook=_foreign_value)
    except msgspec.ValidationError as error:
        return ToolResult(f"invalid arguments: {error}", is_error=True)
    values = {
        name: value for name in arguments.__struct_fields__ if (value := getattr(taken, name)) is not msgspec.UNSET
    }
    if inspect.iscoroutinefunction(function):
        return _result(await function(**values))
    result = await asyncio.to_thread(function, **values)
    return _result(await result if inspect.isawaitable(result) else result)


def _result(value: object) -> ToolResult:
    if isinstance(value, ToolResult):
        return value
    if isinstance(value, str):
        return ToolResult(value)
    return ToolResult(msgspec.json.encode(value, enc_hook=_as_plain).decode())


def _as_plain(value: object) -> object:
    """Return a Pydantic model as data, and anything else as its text."""
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else str(value)
