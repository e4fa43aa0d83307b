"""The exceptions of Quire, one tree.  Texts have the form ``[place] what must hold but what was found``."""

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
    """Every error that Quire raises on purpose."""


class LoadError(QuireError):
    """A file, checkpoint or backend is missing, malformed or does not fit together."""


class ShapeError(QuireError, ValueError):
    """An argument has the wrong dtype or shape."""


class UnsupportedError(QuireError):
    """Well-formed, but not something that Quire (or this device) does."""


class CapacityError(QuireError):
    """Memory, cache blocks or context are exhausted."""


class BusyError(CapacityError):
    """Others are served first, or the caller has had its share: the same request may pass after ``retry_after_s``."""

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RequestError(QuireError, ValueError):
    """A request's own parameters do not hold; other requests are not affected."""


class DeviceError(QuireError):
    """A device is lost, with all that it held: its driver failed.  A new process can try it again."""


class InternalError(QuireError):
    """An invariant of Quire broke: a bug to report."""
