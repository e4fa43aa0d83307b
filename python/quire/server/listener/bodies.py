"""Read request bodies within limits, decode them into wire types, and reject invalid ones by the name of a field."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Collection, Mapping
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
    "header",
    "nothing_received",
    "pieces_of",
    "read_body",
    "to_wire",
]

T = TypeVar("T")


def header(scope: Scope, name: bytes) -> bytes | None:
    """Return a header of a request.  ApiError 400 if it occurs twice."""
    found = [value for key, value in scope["headers"] if key == name]
    if len(found) > 1:
        raise ApiError(400, "duplicate_header", f"duplicate header {name.decode()}: sent {len(found)} times")
    return bytes(found[0]) if found else None


# Processing a body larger than these takes some milliseconds.
_EXACT = 2.0**63
_LIGHT_BYTES, _LIGHT_VALUES = 256 << 10, 1 << 15
_UNSAID = (b"", b"application/x-www-form-urlencoded", b"text/plain")


def content_length(scope: Scope, limit: int) -> int:
    """Return the Content-Length, 0 if there is none.  ApiError 413 if it exceeds the limit."""
    given = header(scope, b"content-length")
    length = int(given) if given is not None and given.isdigit() and len(given) < 19 else 0
    if length > limit:
        raise _too_large(limit)
    return length


def _too_large(limit: int) -> ApiError:
    return ApiError(413, "body_too_large", f"the body is too large: the limit is {limit} bytes")


@dataclass
class Received:
    """A body as received, and the number of its values (see ``BodyMeter``)."""

    content: bytes
    n_values: int

    def __post_init__(self) -> None:
        self.n_bytes = len(self.content)

    @property
    def heavy(self) -> bool:
        """True if processing it may take too long for the event loop."""
        return self.n_bytes > _LIGHT_BYTES or self.n_values > _LIGHT_VALUES

    def take(self) -> bytes:
        """Return the content and drop the reference to it."""
        content, self.content = self.content, b""
        return content


def nothing_received() -> Received:
    """Return the empty body of a request without one."""
    return Received(b"", 0)


async def read_body(scope: Scope, receive: Receive, settings: Settings, ticket: Ticket) -> Received:
    """Read the body within the limits of settings and ticket.  ApiError 400, 408, 413, 415 or 429."""
    if header(scope, b"content-encoding") not in (None, b"identity"):
        raise ApiError(415, "compressed_body", "compressed bodies are not supported: send without Content-Encoding")
    kind = (header(scope, b"content-type") or b"").split(b";")[0].strip().lower()
    # A page of another origin can send text or a form without a CORS preflight, but not JSON.  Programs send no Origin,
    # and curl labels everything a form by default, so examples from other servers' documentation work here, too.
    from_page = header(scope, b"origin") is not None or header(scope, b"sec-fetch-site") is not None
    if kind != b"application/json" and (from_page or kind not in _UNSAID):
        raise ApiError(415, "content_type", "unsupported Content-Type: send application/json")
    parts: list[bytes] = []
    meter = BodyMeter()
    async for part in pieces_of(receive, settings, settings.max_body_bytes):
        meter.feed(part)
        ticket.grow(meter.n_bytes // 3, max(0, meter.n_values - _LIGHT_VALUES))
        parts.append(part)
    ticket.resize(meter.n_bytes // 3)
    return Received(b"".join(parts), meter.n_values)


async def pieces_of(receive: Receive, settings: Settings, limit: int) -> AsyncIterator[bytes]:
    """Yield a body piece by piece.  ApiError 408 if it arrives too slowly, 413 beyond ``limit`` bytes."""
    loop = asyncio.get_running_loop()
    deadline, n_bytes = loop.time() + settings.body_timeout_s, 0
    while True:
        try:
            message = await asyncio.wait_for(receive(), max(deadline - loop.time(), 0.001))
        except (TimeoutError, asyncio.TimeoutError):
            text = f"the body did not arrive within {settings.body_timeout_s:g} s"
            raise ApiError(408, "body_timeout", text) from None
        if message["type"] == "http.disconnect":
            raise asyncio.CancelledError
        part = message.get("body", b"")
        n_bytes += len(part)
        if n_bytes > limit:
            raise _too_large(limit)
        yield part
        if not message.get("more_body", False):
            return


def decode_object(body: bytes, max_depth: int, list_field: str | None = None) -> dict[str, Any]:
    """Decode a body that is a JSON object.  ApiError 400.  A body that is a list becomes the field ``list_field``."""
    try:
        value = msgspec.json.decode(body)
        if body.count(b"[") + body.count(b"{") > max_depth:
            _check_depth(value, max_depth)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, "invalid_json", f"invalid JSON in the body: {of_decoding(error)}") from None
    except RecursionError:
        raise ApiError(400, "too_deep", f"the body is nested too deeply: the limit is {max_depth} levels") from None
    if isinstance(value, list) and list_field is not None:
        return {list_field: value}
    if not isinstance(value, dict):
        raise ApiError(400, "invalid_json", f"the body is {_json_kind(value)}: expected a JSON object")
    return value


def to_wire(given: Mapping[str, Any], wire: type[T], strict: bool, *, is_form: bool = False) -> tuple[T, list[str]]:
    """Convert a body to its wire type; also return the names of fields without effect: hints and unknown fields.

    null counts as absent.  ``is_form``: numbers and booleans are texts.

    Raises:
        ApiError: 400 for a value of the wrong type or out of range, for an unsupported field that would change the
            answer, and if ``strict`` for an unknown field.
    """
    ignored: list[str] = []
    taken = _sorted_out(given, wire, strict, "", ignored)
    mended: set[str] = set()
    while True:
        try:
            return msgspec.convert(taken, wire, strict=not is_form), ignored
        except msgspec.ValidationError as error:
            # Convert only the field at fault: others, such as a schema, may contain any numbers.
            field = _whole_number_at(error)
            if field is None or field in mended or field not in taken:
                param, text = of_validation(error, wire, taken)
                raise ApiError(400, "invalid_value", text, param) from None
            mended.add(field)
            taken[field] = _with_whole_numbers(taken[field])


_NO_WHOLE_NUMBER = re.compile(r"Expected `(?:.* )?int(?: .*)?`, got `float` - at `\$\.(\w+)")


def _whole_number_at(error: msgspec.ValidationError) -> str | None:
    """Return the field of a body that has a fractional number where an integer is expected."""
    found = _NO_WHOLE_NUMBER.match(str(error))
    return None if found is None else found[1]


def _with_whole_numbers(value: Any) -> Any:
    """Turn numbers such as 4.0 into integers, because JSON does not distinguish them."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < _EXACT else value
    if isinstance(value, list):
        return [_with_whole_numbers(item) for item in value]
    if isinstance(value, dict):
        return {key: _with_whole_numbers(item) for key, item in value.items()}
    return value


def _sorted_out(given: Mapping[str, Any], wire: type, strict: bool, place: str, ignored: list[str]) -> dict[str, Any]:
    """Return the fields that are honoured, and handle nested objects by their types in ``inner``."""
    # msgspec.structs.fields would evaluate all annotations, which takes milliseconds per request.
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
                text = f"unsupported parameter {at!r}: leave it out"
                raise ApiError(400, "unsupported_parameter", text, at)
        elif name in hints:
            if value not in hints[name]:
                ignored.append(repr(at))
        elif strict:
            raise ApiError(400, "unknown_parameter", f"unknown field {at!r}", at)
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
