"""The exceptions of Quire.

A message starts with its place in brackets and says what went wrong, with the offending value, then what to do:
``[device] no such device: 'CUDA3' (available: CPU, CUDA0)``.
"""

from __future__ import annotations

__all__ = [
    "BusyError",
    "CapacityError",
    "DeviceError",
    "InternalError",
    "LoadError",
    "QuireError",
    "RequestError",
    "ShapeError",
    "UnsupportedError",
]


class QuireError(Exception):
    """The base class of all errors that Quire raises on purpose."""


class LoadError(QuireError):
    """A file, checkpoint or backend is missing, malformed or inconsistent."""


class ShapeError(QuireError, ValueError):
    """An argument has the wrong dtype or shape."""


class UnsupportedError(QuireError):
    """The input is valid, but Quire or this device does not support it."""


class CapacityError(QuireError):
    """Memory, cache blocks or context are exhausted."""


class BusyError(CapacityError):
    """The queue is full or the caller used up its share; the request may succeed after ``retry_after_s`` seconds."""

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RequestError(QuireError, ValueError):
    """A request's own parameters are invalid; other requests are not affected."""


class DeviceError(QuireError):
    """A device is lost, with everything on it, because its driver failed.  A new process can try it again."""


class InternalError(QuireError):
    """An invariant of Quire broke, which is a bug to report."""
