"""A checkpoint's image and audio settings: preprocessor_config.json, or a part of processor_config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import LoadError, UnsupportedError
from .pixels import Normalization, triple

__all__ = ["Settings"]

FILTERS = range(6)


class Settings:
    """Reads the fields of a processor's configuration; absent ones have the defaults of transformers.

    Fields that transformers' class does not know are ignored, as transformers ignores them.
    """

    def __init__(self, config: Mapping[str, Any], subject: str = "image processor") -> None:
        self.config, self.subject = config, subject

    def integer(self, name: str, default: int, *, least: int = 1, most: int = 1 << 30) -> int:
        value = self.config.get(name)
        return default if value is None else self._integer(name, value, least, most)

    def number(self, name: str, default: float) -> float:
        value = self.config.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e30:
            raise LoadError(f"{self.subject}: {name} {value!r} is out of range")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.config.get(name)
        if value is not None and not isinstance(value, bool):
            raise LoadError(f"{self.subject}: {name} {value!r} is not true or false")
        return default if value is None else value

    def side(self, name: str, key: str, default: int | None = None) -> int | None:
        """Return ``config[name][key]``; a plain number stands for every key."""
        value = self.config.get(name)
        if isinstance(value, Mapping):
            value = value.get(key)
        return default if value is None else self._integer(f"{name}.{key}", value, 1, 1 << 30)

    def resample(self, default: int) -> int:
        return self.integer("resample", default, least=0, most=FILTERS[-1])

    def require(self, name: str, wanted: bool) -> None:
        """Refuse a checkpoint whose flag ``name`` is not ``wanted``, the only value that Quire supports."""
        if self.flag(name, wanted) is not wanted:
            raise UnsupportedError(f"{self.subject}: {name} = {str(not wanted).lower()} is unsupported")

    def only(self, name: str, wanted: object) -> None:
        """Refuse a checkpoint whose field ``name`` is not ``wanted``, the only value that Quire supports."""
        if (value := self.config.get(name, wanted)) != wanted:
            raise UnsupportedError(f"{self.subject}: {name} = {value!r:.40} is unsupported: expected {wanted!r}")

    def normalization(
        self, mean: tuple[float, ...], std: tuple[float, ...], *, normalizes: bool = True, is_bf16: bool = False
    ) -> Normalization:
        self.require("do_rescale", True)
        scale = self.number("rescale_factor", 1 / 255)
        if not self.flag("do_normalize", normalizes):
            return Normalization(scale)
        return Normalization(scale, self._channels("image_mean", mean), self._channels("image_std", std), is_bf16)

    def _channels(self, name: str, default: tuple[float, ...]) -> tuple[float, float, float]:
        value = self.config.get(name)
        try:
            found = triple(default if value is None else value)
        except (TypeError, ValueError):
            raise LoadError(f"{self.subject}: {name} {value!r} is not three numbers") from None
        if name == "image_std" and 0.0 in found:
            raise LoadError(f"{self.subject}: image_std {value!r} holds a zero")
        return found

    def _integer(self, name: str, value: object, least: int, most: int) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise LoadError(f"{self.subject}: {name} {value!r} is out of range: expected {least} to {most}")
        return value
