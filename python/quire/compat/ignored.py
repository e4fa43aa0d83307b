"""Arguments of other libraries that Quire has no use for."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from ..errors import UnsupportedError
from ..params.call_names import unknown_argument

__all__ = ["note_ignored", "refuse_set", "refuse_unknown"]

_LOG = logging.getLogger("quire")


def note_ignored(place: str, given: Mapping[str, object], usual: Mapping[str, object]) -> None:
    """Say which arguments of a call change nothing here: those that are not what the other library has as default."""
    names = [name for name, value in given.items() if name in usual and value != usual[name]]
    if names:
        _LOG.info("[%s] these arguments have no effect here: %s", place, ", ".join(sorted(names)))


def refuse_set(place: str, given: Mapping[str, object], usual: Mapping[str, object]) -> None:
    """UnsupportedError naming an argument that would change the answer and is not honoured, where it asks for that."""
    for name, value in given.items():
        if name in usual and value != usual[name]:
            raise UnsupportedError(f"[{place}] {name} must be left out, as it is not supported, but is {value!r:.80}")


def refuse_unknown(call: str, given: Mapping[str, object], known: Collection[str]) -> None:
    """TypeError naming the call, an argument that the other library does not have either, and the nearest one."""
    for name in given:
        if name not in known:
            raise TypeError(unknown_argument(call, name, known))
