"""Bodies of requests: read within limits, decoded into wire types, refused by the name of what does not hold."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import msgspec

from .failures import ApiError

if TYPE_CHECKING:
    from starlette.types import Receive, Scope

    from .settings import Settings

__all__ = ["Body", "TimedBody", "content_length", "decode_object", "read_body", "to_wire"]

T = TypeVar("T")
_AT = re.compile(r" - at `(.*)`$")


class Body(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The base of wire types: a field is declared only if it is honoured.

    A subclass's ``refused`` names fields that are known and not honoured, each with the values that ask for nothing.
    """


Seconds: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=86_400)]


class TimedBody(Body, kw_only=True, forbid_unknown_fields=True):
    """A body that may shorten the server's time limits, all from the request's arrival: until it leaves the queue,
    until its first token, until it is complete."""

    queue_timeout_s: Seconds | None = None
    first_token_timeout_s: Seconds | None = None
    request_timeout_s: Seconds | None = None


def header(scope: Scope, name: bytes) -> bytes | None:
    """The header of a request; ApiError 400 when it comes twice."""
    found = [value for key, value in scope["headers"] if key == name]
    if len(found) > 1:
        raise ApiError(
            400, "duplicate_header", f"the header {name.decode()} must come once but comes {len(found)} times"
        )
    return bytes(found[0]) if found else None


_UNSAID = (b"", b"application/x-www-form-urlencoded", b"text/plain")


def content_length(scope: Scope) -> int:
    """What the Content-Length says; 0 where there is none."""
    given = header(scope, b"content-length")
    return int(given) if given is not None and given.isdigit() and len(given) < 19 else 0


async def read_body(scope: Scope, receive: Receive, settings: Settings) -> bytes:
    """The body, as far as the limits go; ApiError 408, 413 or 415."""
    if header(scope, b"content-encoding") not in (None, b"identity"):
        raise ApiError(415, "compressed_body", "the body must be sent without a Content-Encoding but has one")
    kind = (header(scope, b"content-type") or b"").split(b";")[0].strip().lower()
    # A page of another origin can send text or a form without being asked for permission, but not JSON.  Programs send
    # no Origin, and curl calls everything a form: a line of a peer's documentation shall work here, too.
    from_page = header(scope, b"origin") is not None or header(scope, b"sec-fetch-site") is not None
    if kind != b"application/json" and (from_page or kind not in _UNSAID):
        raise ApiError(415, "content_type", "the Content-Type must be application/json but is not")
    limit = settings.max_body_bytes
    too_long = ApiError(413, "body_too_large", f"the body must have at most {limit} bytes but has more")
    if content_length(scope) > limit:
        raise too_long
    parts: list[bytes] = []
    n_bytes = 0
    loop = asyncio.get_running_loop()
    deadline = loop.time() + settings.body_timeout_s
    while True:
        try:
            message = await asyncio.wait_for(receive(), max(deadline - loop.time(), 0.001))
        except (TimeoutError, asyncio.TimeoutError):
            text = f"the body must come within {settings.body_timeout_s:g} s but does not"
            raise ApiError(408, "body_timeout", text) from None
        if message["type"] == "http.disconnect":
            raise asyncio.CancelledError
        part = message.get("body", b"")
        n_bytes += len(part)
        if n_bytes > limit:
            raise too_long
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def decode_object(body: bytes, max_depth: int) -> dict[str, Any]:
    """The JSON object that a body is; ApiError 400."""
    try:
        value = msgspec.json.decode(body)
        if body.count(b"[") + body.count(b"{") > max_depth:
            _check_depth(value, max_depth)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, "invalid_json", f"the body must be JSON but {_one_line(error)}") from None
    except RecursionError:
        raise ApiError(400, "too_deep", f"the body must be nested at most {max_depth} deep but is deeper") from None
    if not isinstance(value, dict):
        raise ApiError(400, "invalid_json", f"the body must be a JSON object but is {_json_kind(value)}")
    return value


def to_wire(given: Mapping[str, Any], wire: type[T], lenient: bool) -> tuple[T, list[str]]:
    """A body as its wire type, and the names of fields that were let through.

    null counts as absent.  ApiError 400 for an unknown field (unless ``lenient``), one that is known and not honoured,
    and a value of another type or beyond its limits.
    """
    # Not msgspec.structs.fields, which evaluates all annotations: for milliseconds, at each request.
    known: Collection[str] = wire.__struct_encode_fields__  # type: ignore[attr-defined]
    refused: Mapping[str, tuple[object, ...]] = getattr(wire, "refused", {})
    taken: dict[str, Any] = {}
    ignored: list[str] = []
    for name, value in given.items():
        if value is None:
            continue
        if name in known:
            taken[name] = value
        elif name in refused:
            if value not in refused[name]:
                text = f"{_shown(name)} must be left out (or ask for nothing) but is set: it is not supported"
                raise ApiError(400, "unsupported_parameter", text, name)
        elif lenient:
            ignored.append(_shown(name))
        else:
            raise ApiError(
                400, "unknown_parameter", f"a field must be one that is known but {_shown(name)} is not", name[:64]
            )
    try:
        return msgspec.convert(taken, wire), ignored
    except msgspec.ValidationError as error:
        text = _one_line(error)
        at = _AT.search(text)
        path = at[1].removeprefix("$.").removeprefix("$") if at is not None else ""
        text = _AT.sub("", text)
        raise ApiError(400, "invalid_value", f"{path or 'the body'}: {text}", path or None) from None


def _check_depth(value: object, limit: int) -> None:
    level: list[object] = [value]
    for _ in range(limit + 1):
        inner: list[object] = []
        for item in level:
            if isinstance(item, dict):
                inner += item.values()
            elif isinstance(item, list):
                inner += item
        if not inner:
            return
        level = inner
    raise RecursionError


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _shown(name: str) -> str:
    return repr(name[:64])


def _json_kind(value: object) -> str:
    return {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}.get(type(value), "a number")
