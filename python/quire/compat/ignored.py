"""Arguments of other libraries that have no effect in Quire, and those that are rejected."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from ..errors import UnsupportedError
from ..params.call_names import unknown_argument

__all__ = ["note_ignored", "refuse_set", "refuse_unknown"]

_LOG = logging.getLogger("quire")


def note_ignored(place: str, given: Mapping[str, object], usual: Mapping[str, object]) -> None:
    """Log the arguments without effect that differ from the other library's defaults."""
    names = [name for name, value in given.items() if name in usual and value != usual[name]]
    if names:
        _LOG.info("[%s] these arguments have no effect here: %s", place, ", ".join(sorted(names)))


def refuse_set(place: str, given: Mapping[str, object], usual: Mapping[str, object]) -> None:
    """Reject an argument that would change the answer but is not supported.  UnsupportedError names it."""
    for name, value in given.items():
        if name in usual and value != usual[name]:
            raise UnsupportedError(f"[{place}] {name}={value!r:.80} is not supported: leave it out")


def refuse_unknown(call: str, given: Mapping[str, object], known: Collection[str]) -> None:
    """Reject arguments that the other library does not have either.  TypeError names the nearest one."""
    for name in given:
        if name not in known:
            raise TypeError(unknown_argument(call, name, known))
