"""Parse how long a model stays loaded after its last request, in the format of Ollama and the command line."""

from __future__ import annotations

import re

__all__ = ["FOREVER", "seconds_of"]

FOREVER = -1.0
"""Stands for any negative duration: the model is never unloaded."""

_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)")
_DURATION = re.compile(r"([+-]?)((?:(?:\d+(?:\.\d*)?|\.\d+)(?:ns|us|µs|ms|s|m|h))+)")
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds_of(given: float | str) -> float:
    """Return the seconds of a number or of a duration such as ``5m``, ``1h30m`` or ``-1s``; ``FOREVER`` if negative.

    ValueError for anything else.
    """
    if isinstance(given, str):
        found = _DURATION.fullmatch(given.strip())
        if found is not None:
            value = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(found[2]))
            given = -value if found[1] == "-" else value
        elif _NUMBER.fullmatch(given.strip()):
            given = float(given)
        else:
            raise ValueError("expected seconds or a duration such as 5m")
    return FOREVER if given < 0 else float(given)
