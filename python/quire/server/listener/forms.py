"""Read forms with a file (``multipart/form-data``) piece by piece, within limits."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ...errors import UnsupportedError
from ..failures import ApiError
from .bodies import header, pieces_of

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartParser
    from starlette.types import Receive, Scope

    from ..service.admission import Ticket
    from ..settings import Settings

__all__ = ["MAX_FILE_BYTES", "MAX_FORM_BYTES", "form_tokens", "read_form"]

# As large as the largest recording; media.audio, which holds that number, would import NumPy here.
MAX_FILE_BYTES = 25 << 20
_MAX_TEXT_BYTES = 1 << 20  # all fields besides the file
_MAX_PARTS = 64
MAX_FORM_BYTES = MAX_FILE_BYTES + _MAX_TEXT_BYTES
# A second of compressed sound has some thousand bytes, and makes 50 rows at most.
_BYTES_PER_TOKEN = 64


def form_tokens(n_bytes: int) -> int:
    """Return an estimate of a form's tokens."""
    return n_bytes // _BYTES_PER_TOKEN


async def read_form(scope: Scope, receive: Receive, settings: Settings, ticket: Ticket) -> tuple[dict[str, Any], int]:
    """Read a form within the limits; return its fields and its size.

    A field is a text, the bytes of a file, or, if its name ends with ``[]``, a list of texts under the name without it.
    ``file_name`` is the name of the file, without a folder.

    Raises:
        ApiError: 400, 408, 413, 415 or 429.
        UnsupportedError: python-multipart is not installed.
    """
    if find_spec("python_multipart") is None:
        raise UnsupportedError('forms need python-multipart: pip install "quire-llm[media]"')
    reader = _FormReader(_boundary(scope))
    n_bytes = 0
    async for piece in pieces_of(receive, settings, MAX_FORM_BYTES):
        n_bytes += len(piece)
        ticket.grow(form_tokens(n_bytes), 0)
        reader.feed(piece)
        await asyncio.sleep(0)  # others are answered between the pieces of a large file
    return reader.finish(), n_bytes


def _boundary(scope: Scope) -> bytes:
    from python_multipart.multipart import parse_options_header

    kind, options = parse_options_header((header(scope, b"content-type") or b"").decode("latin-1"))
    if kind != b"multipart/form-data":
        raise ApiError(415, "content_type", "unsupported Content-Type: send multipart/form-data")
    boundary = options.get(b"boundary", b"")
    if not 1 <= len(boundary) <= 70:
        raise _malformed("no valid boundary in Content-Type")
    return boundary


class _FormReader:
    """Takes a form's bytes and sorts them into fields."""

    def __init__(self, boundary: bytes) -> None:
        from python_multipart.multipart import MultipartParser

        self._fields: dict[str, Any] = {}
        self._name, self._is_file, self._content = "", False, bytearray()
        self._header, self._value, self._headers = b"", b"", dict[bytes, bytes]()
        self._n_parts = self._n_text_bytes = 0
        self._is_complete = False
        self._parser: MultipartParser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin_part, "on_part_data": self._part_data, "on_part_end": self._end_part,
                "on_header_field": self._header_name, "on_header_value": self._header_value,
                "on_header_end": self._end_header, "on_headers_finished": self._headers_finished, "on_end": self._end,
            },
        )  # fmt: skip

    def feed(self, piece: bytes) -> None:
        from python_multipart.exceptions import FormParserError

        try:
            self._parser.write(piece)
        except FormParserError as error:
            raise _malformed(str(error)[:100]) from None

    def finish(self) -> dict[str, Any]:
        if not self._is_complete:
            raise _malformed("it ends before its last boundary")
        return self._fields

    def _begin_part(self) -> None:
        self._n_parts += 1
        if self._n_parts > _MAX_PARTS:
            raise _malformed(f"more than {_MAX_PARTS} parts")
        self._headers, self._header, self._value, self._content = {}, b"", b"", bytearray()

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        self._headers[self._header.lower()] = self._value
        self._header, self._value = b"", b""

    def _headers_finished(self) -> None:
        from python_multipart.multipart import parse_options_header

        _, options = parse_options_header(self._headers.get(b"content-disposition", b"").decode("latin-1"))
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        self._is_file = b"filename" in options or self._name == "file"
        if name := options.get(b"filename", b"").decode("utf-8", "replace").replace("\\", "/").rpartition("/")[2]:
            self._fields["file_name"] = name[-255:]
        if not self._name:
            raise _malformed("a part has no name")

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if not self._is_file:
            self._n_text_bytes += end - start
            if self._n_text_bytes > _MAX_TEXT_BYTES:
                raise ApiError(413, "body_too_large", f"the form's fields have more than {_MAX_TEXT_BYTES} bytes")
        self._content += data[start:end]

    def _end_part(self) -> None:
        name, content = self._name, bytes(self._content)
        self._content = bytearray()
        if self._is_file:
            value: Any = content
        else:
            try:
                value = content.decode()
            except UnicodeDecodeError:
                raise ApiError(400, "invalid_value", f"{name[:64]} is not UTF-8", name[:64]) from None
        if name.endswith("[]"):
            texts = self._fields.setdefault(name[:-2], [])
            if not isinstance(texts, list):
                raise ApiError(400, "invalid_value", f"{name[:64]} is given twice", name[:64])
            texts.append(value)
        elif name in self._fields:
            raise ApiError(400, "invalid_value", f"{name[:64]} is given twice", name[:64])
        else:
            self._fields[name] = value

    def _end(self) -> None:
        self._is_complete = True


def _malformed(what: str) -> ApiError:
    return ApiError(400, "invalid_form", f"invalid form: {what}")
