"""Bodies of requests: read within limits, decoded into wire types, refused by the name of what does not hold."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ..body_types import MEDIA
from ..failures import ApiError
from .body_meter import BodyMeter
from .plain_words import of_decoding, of_validation

if TYPE_CHECKING:
    from starlette.types import Receive, Scope

    from ..service.admission import Ticket
    from ..settings import Settings

__all__ = [
    "Received",
    "content_length",
    "decode_object",
    "nothing_received",
    "read_body",
    "to_wire",
]

T = TypeVar("T")


def header(scope: Scope, name: bytes) -> bytes | None:
    """The header of a request; ApiError 400 when it comes twice."""
    found = [value for key, value in scope["headers"] if key == name]
    if len(found) > 1:
        raise ApiError(
            400, "duplicate_header", f"the header {name.decode()} must come once but comes {len(found)} times"
        )
    return bytes(found[0]) if found else None


# What is done with a body of this size takes some milliseconds.
_EXACT = 2.0**63
_LIGHT_BYTES, _LIGHT_VALUES = 256 << 10, 1 << 15
_UNSAID = (b"", b"application/x-www-form-urlencoded", b"text/plain")


def content_length(scope: Scope, limit: int) -> int:
    """What the Content-Length says; 0 where there is none.  ApiError 413 where it is more than the limit."""
    given = header(scope, b"content-length")
    length = int(given) if given is not None and given.isdigit() and len(given) < 19 else 0
    if length > limit:
        raise _too_large(limit)
    return length


def _too_large(limit: int) -> ApiError:
    return ApiError(413, "body_too_large", f"the body must have at most {limit} bytes but has more")


@dataclass
class Received:
    """A body as it came, and how many values it has (see ``BodyMeter``)."""

    content: bytes
    n_values: int

    def __post_init__(self) -> None:
        self.n_bytes = len(self.content)

    @property
    def heavy(self) -> bool:
        """Whether what is done with it may take so long that it is not done on the event loop."""
        return self.n_bytes > _LIGHT_BYTES or self.n_values > _LIGHT_VALUES

    def take(self) -> bytes:
        """The content, which is not kept any longer."""
        content, self.content = self.content, b""
        return content


def nothing_received() -> Received:
    """The body of a request that has none."""
    return Received(b"", 0)


async def read_body(scope: Scope, receive: Receive, settings: Settings, ticket: Ticket) -> Received:
    """The body, as far as the limits go, and the ticket; ApiError 400, 408, 413, 415 or 429."""
    if header(scope, b"content-encoding") not in (None, b"identity"):
        raise ApiError(415, "compressed_body", "the body must be sent without a Content-Encoding but has one")
    kind = (header(scope, b"content-type") or b"").split(b";")[0].strip().lower()
    # A page of another origin can send text or a form without being asked for permission, but not JSON.  Programs send
    # no Origin, and curl calls everything a form: a line of a peer's documentation shall work here, too.
    from_page = header(scope, b"origin") is not None or header(scope, b"sec-fetch-site") is not None
    if kind != b"application/json" and (from_page or kind not in _UNSAID):
        raise ApiError(415, "content_type", "the Content-Type must be application/json but is not")
    limit = settings.max_body_bytes
    parts: list[bytes] = []
    meter = BodyMeter()
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
        if meter.n_bytes + len(part) > limit:
            raise _too_large(limit)
        meter.feed(part)
        ticket.grow(meter.n_bytes // 3, max(0, meter.n_values - _LIGHT_VALUES))
        parts.append(part)
        if not message.get("more_body", False):
            ticket.resize(meter.n_bytes // 3)
            return Received(b"".join(parts), meter.n_values)


def decode_object(body: bytes, max_depth: int, list_field: str | None = None) -> dict[str, Any]:
    """The JSON object that a body is; ApiError 400.  ``list_field``: the body may be a list, which is this field."""
    try:
        value = msgspec.json.decode(body)
        if body.count(b"[") + body.count(b"{") > max_depth:
            _check_depth(value, max_depth)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, "invalid_json", f"the body must be JSON but {of_decoding(error)}") from None
    except RecursionError:
        raise ApiError(400, "too_deep", f"the body must be nested at most {max_depth} deep but is deeper") from None
    if isinstance(value, list) and list_field is not None:
        return {list_field: value}
    if not isinstance(value, dict):
        raise ApiError(400, "invalid_json", f"the body must be a JSON object but is {_json_kind(value)}")
    return value


def to_wire(given: Mapping[str, Any], wire: type[T], strict: bool) -> tuple[T, list[str]]:
    """A body as its wire type, and the names of fields that have no effect: hints, and those that are not known.

    null counts as absent.  ApiError 400 for an unknown field where ``strict``, one that would change the answer and is
    not honoured, and a value of another type or beyond its limits.
    """
    ignored: list[str] = []
    taken = _sorted_out(given, wire, strict, "", ignored)
    mended: set[str] = set()
    while True:
        try:
            return msgspec.convert(taken, wire), ignored
        except msgspec.ValidationError as error:
            # A field at a time, as others may be numbers of any kind: a schema, say.
            field = _whole_number_at(error)
            if field is None or field in mended or field not in taken:
                param, text = of_validation(error, wire, taken)
                raise ApiError(400, "invalid_value", text, param) from None
            mended.add(field)
            taken[field] = _with_whole_numbers(taken[field])


_NO_WHOLE_NUMBER = re.compile(r"Expected `(?:.* )?int(?: .*)?`, got `float` - at `\$\.(\w+)")


def _whole_number_at(error: msgspec.ValidationError) -> str | None:
    """The field of a body that has a number with a fraction where a whole one is expected."""
    found = _NO_WHOLE_NUMBER.match(str(error))
    return None if found is None else found[1]


def _with_whole_numbers(value: Any) -> Any:
    """A value whose numbers such as 4.0 are whole, as JSON does not tell these apart."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < _EXACT else value
    if isinstance(value, list):
        return [_with_whole_numbers(item) for item in value]
    if isinstance(value, dict):
        return {key: _with_whole_numbers(item) for key, item in value.items()}
    return value


def _sorted_out(given: Mapping[str, Any], wire: type, strict: bool, place: str, ignored: list[str]) -> dict[str, Any]:
    """The fields that are honoured; those inside of others, too, by the type that ``inner`` names for these."""
    # Not msgspec.structs.fields, which evaluates all annotations: for milliseconds, at each request.
    known: Collection[str] = wire.__struct_encode_fields__  # type: ignore[attr-defined]
    refused: Mapping[str, tuple[object, ...]] = getattr(wire, "refused", {})
    hints: Mapping[str, tuple[object, ...]] = getattr(wire, "hints", {})
    inner: Mapping[str, type] = getattr(wire, "inner", {})
    taken: dict[str, Any] = {}
    for name, value in given.items():
        if value is None:
            continue
        at = place + name[:64]
        if name in known:
            is_inner = name in inner and isinstance(value, dict)
            taken[name] = _sorted_out(value, inner[name], strict, f"{at}.", ignored) if is_inner else value
        elif name in refused or name in MEDIA:
            if value not in refused.get(name, ([], "")):
                text = f"{at!r} must be left out (or ask for nothing) but is set: it is not supported"
                raise ApiError(400, "unsupported_parameter", text, at)
        elif name in hints:
            if value not in hints[name]:
                ignored.append(repr(at))
        elif strict:
            raise ApiError(400, "unknown_parameter", f"a field must be one that is known but {at!r} is not", at)
        else:
            ignored.append(repr(at))
    return taken


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


def _json_kind(value: object) -> str:
    return {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}.get(type(value), "a number")
