"""Places in a JSON Schema, the errors that name them, and the notes about what is not enforced."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import TypeAlias
from urllib.parse import quote

from ..errors import RequestError, UnsupportedError

__all__ = ["Notes", "Place", "malformed", "pointer", "unenforceable", "unsupported"]

Place: TypeAlias = "tuple[str, ...]"

_LOG = logging.getLogger("quire")
_MAX_NOTES = 64


def pointer(place: Place) -> str:
    """Return the place as a JSON pointer in a fragment."""
    path = "/".join(part.replace("~", "~0").replace("/", "~1") for part in place)
    return f"#/{path}"[:200]


def malformed(place: Place, reason: str) -> RequestError:
    """Return the error for an invalid JSON Schema."""
    return RequestError(f"[json_schema] {pointer(place)}: {reason}")


def unsupported(place: Place, reason: str) -> UnsupportedError:
    """Return the error for a schema that a grammar cannot enforce."""
    return UnsupportedError(f"[json_schema] {pointer(place)}: {reason}")


def unenforceable(place: Place, keyword: str, more: str = "") -> UnsupportedError:
    """Return the error for a keyword, of the schema at a place, that a grammar cannot enforce."""
    return UnsupportedError(f"[json_schema] the keyword {keyword!r:.80} at {pointer(place)} cannot be enforced{more}")


class _Reported:
    """Kinds of notes that were logged; each is logged once per process, and a bounded number of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: set[str] = set()

    def log(self, kind: str, place: Place) -> None:
        with self._lock:
            if kind in self._kinds or len(self._kinds) >= _MAX_NOTES:
                return
            self._kinds.add(kind)
        _LOG.warning("JSON Schema: %s at %s is not enforced", kind, pointer(place))


_REPORTED = _Reported()


class Notes:
    """The places of a schema that are not enforced."""

    def __init__(self) -> None:
        self._found: dict[str, None] = {}

    def add(self, kind: str, place: Place) -> None:
        """Note a place.  ``kind`` says what is there; each kind is logged the first time it occurs."""
        if len(self._found) < _MAX_NOTES:
            self._found[f"json_schema{quote(pointer(place), safe='#/$@~')}"] = None
            _REPORTED.log(kind, place)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the places, each once, in ASCII without commas, so that a header can list them."""
        return iter(self._found)
