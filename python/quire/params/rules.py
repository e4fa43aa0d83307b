"""Rules for the values of parameters: a type and its limits, and the error for a value outside them."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..errors import RequestError

__all__ = [
    "FLOAT_MAX",
    "INT_MAX",
    "LORA_SCALE_MAX",
    "AdapterScales",
    "Bias",
    "Bool",
    "Bytes",
    "Choice",
    "Float",
    "Ids",
    "Instance",
    "Int",
    "Names",
    "Rule",
    "Seed",
    "Strings",
    "Text",
    "items_of",
    "refusal",
]

INT_MAX = 2**31 - 1
FLOAT_MAX = 3.4e38  # a number that a float32 cannot hold counts as infinite
LORA_SCALE_MAX = 100.0  # keys and values that an adapter changes stay within float16


def refusal(label: str, value: object, reason: str) -> RequestError:
    """Return the error for a value; ``label``: its place in brackets and its name."""
    return RequestError(f"{label} {_shown(value)} {reason}")


def _shown(value: object) -> str:
    # Python refuses to print whole numbers of thousands of digits.
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**30:
        return "of more than 30 digits"
    return f"{value!r:.80}"


def items_of(label: str, value: object, most: int = INT_MAX) -> tuple[object, ...]:
    """Return the entries of a list.  RequestError if it is a single string or no list, or has too many entries."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise refusal(label, value, "is not a list")
    items = tuple(value)
    if len(items) > most:
        raise RequestError(f"{label} has {len(items)} entries: at most {most} are allowed")
    return items


@dataclass(frozen=True)
class Rule(ABC):
    """Accepts a value, or refuses it by name.  ``optional``: None is accepted, too."""

    optional: bool = field(default=False, kw_only=True)

    def check(self, label: str, value: object) -> object:
        """Return the value in the form that is kept.  RequestError if it is outside the rule."""
        return None if value is None and self.optional else self._checked(label, value)

    def lenient(self, value: object) -> object:
        """Translate the spellings of other programs, such as -1 for None."""
        return value

    @abstractmethod
    def _checked(self, label: str, value: object) -> object:
        """Check a value that is not None."""


@dataclass(frozen=True)
class Int(Rule):
    """A whole number.  ``minus_one``: the number that -1 stands for."""

    low: int = 0
    high: int = INT_MAX
    minus_one: int | None = field(default=None, kw_only=True)

    @property
    def expected(self) -> str:
        """The limits in words."""
        if self.high == INT_MAX:
            return f"{self.low} or more"
        most = str(self.high) if self.high < 2**40 else f"2**{self.high.bit_length()} - 1"
        return f"from {self.low} to {most}"

    def _checked(self, label: str, value: object) -> object:
        if not isinstance(value, int) or isinstance(value, bool):
            raise refusal(label, value, "is not an int")
        if value == -1 and self.minus_one is not None:
            return self.minus_one
        if not self.low <= value <= self.high:
            raise refusal(label, value, f"is out of range: expected {self.expected}")
        return value

    def lenient(self, value: object) -> object:
        """Read -1 as None."""
        return None if self.optional and value == -1 and not isinstance(value, float) else value


_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_SIZE = re.compile(r"([0-9]{1,18})\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)


@dataclass(frozen=True)
class Bytes(Int):
    """A number of bytes; texts such as ``"16G"`` and ``"512MiB"`` count in powers of 1024.

    ``small_is_mib``: numbers below a MiB are MiB.
    """

    high: int = 2**60
    small_is_mib: bool = field(default=False, kw_only=True)

    def _checked(self, label: str, value: object) -> object:
        if isinstance(value, str):
            match = _SIZE.fullmatch(value.strip())
            if value.strip() == "-1" and self.minus_one is not None:
                return self.minus_one
            if match is None:
                raise refusal(label, value, "is not a number of bytes, as in 500M or 16G")
            value = int(match[1]) << _UNITS[match[2].upper()]
        bytes_ = super()._checked(label, value)
        if self.small_is_mib and isinstance(bytes_, int) and bytes_ < 1 << 20:
            return bytes_ << 20
        return bytes_

    def lenient(self, value: object) -> object:
        """Keep -1, which stands for nothing here."""
        return value


@dataclass(frozen=True)
class Seed(Rule):
    """A whole number of 64 bits; -1 stands for None, a random one."""

    optional: bool = field(default=True, kw_only=True)

    def _checked(self, label: str, value: object) -> object:
        return None if value == -1 and isinstance(value, int) else Int(0, 2**64 - 1).check(label, value)

    def lenient(self, value: object) -> object:
        """Read a negative number, as other programs write it, as the unsigned one with the same bits."""
        return value % 2**64 if isinstance(value, int) and value != -1 else value


@dataclass(frozen=True)
class Float(Rule):
    """A finite number.  ``open_below``: the lowest one is excluded."""

    low: float = 0.0
    high: float = math.inf
    open_below: bool = field(default=False, kw_only=True)

    @property
    def expected(self) -> str:
        """The limits in words."""
        if self.open_below:
            return f"above {self.low:g}" + ("" if self.high == math.inf else f", at most {self.high:g}")
        return f"{self.low:g} or more" if self.high == math.inf else f"from {self.low:g} to {self.high:g}"

    def _checked(self, label: str, value: object) -> object:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise refusal(label, value, "is not a number")
        is_low = value <= self.low if self.open_below else value < self.low
        if not abs(value) <= FLOAT_MAX or is_low or value > self.high:
            raise refusal(label, value, f"is out of range: expected {self.expected}")
        return float(value)

    def lenient(self, value: object) -> object:
        """Read negative numbers, and an excluded 0, as None."""
        if not self.optional or not isinstance(value, int | float):
            return value
        return None if value < 0 or (self.open_below and value == 0) else value


@dataclass(frozen=True)
class Bool(Rule):
    """True or False."""

    def _checked(self, label: str, value: object) -> object:
        if not isinstance(value, bool):
            raise refusal(label, value, "is not a bool: give True or False")
        return value


@dataclass(frozen=True)
class Text(Rule):
    """A text."""

    def _checked(self, label: str, value: object) -> object:
        if not isinstance(value, str):
            raise refusal(label, value, "is not a string")
        return value


@dataclass(frozen=True)
class Choice(Rule):
    """One of some words."""

    choices: tuple[str, ...] = ()

    def _checked(self, label: str, value: object) -> object:
        if not isinstance(value, str) or value not in self.choices:
            raise refusal(label, value, f"is unknown: expected one of {', '.join(self.choices)}")
        return value


@dataclass(frozen=True)
class Strings(Rule):
    """At most ``n`` strings of 1 to ``n_bytes`` bytes.  ``single``: one string stands for a list of it."""

    n: int = 0
    n_bytes: int = 0
    single: bool = field(default=False, kw_only=True)

    def _checked(self, label: str, value: object) -> object:
        items = items_of(label, (value,) if self.single and isinstance(value, str) else value, self.n)
        for item in items:
            if not isinstance(item, str):
                raise RequestError(f"{label} has {item!r:.80}, which is not a string")
            try:
                size = len(item.encode())
            except UnicodeEncodeError as error:
                raise RequestError(f"{label} has {item!r:.80}, which is not valid Unicode") from error
            if not 1 <= size <= self.n_bytes:
                raise RequestError(f"{label} has a string of {size} bytes: expected 1 to {self.n_bytes}")
        return items


@dataclass(frozen=True)
class Ids(Rule):
    """At most ``n`` token ids; if None is accepted, an empty list is not."""

    n: int = INT_MAX

    def _checked(self, label: str, value: object) -> object:
        items = items_of(label, value, self.n)
        if self.optional and not items:
            raise RequestError(f"{label} is empty: give at least one id, or None")
        for item in items:
            Int().check(f"{label}: id", item)
        return items


@dataclass(frozen=True)
class Bias(Rule):
    """Numbers from ``low`` to ``high`` for at most ``n`` token ids."""

    n: int = 0
    low: float = 0.0
    high: float = 0.0

    def _checked(self, label: str, value: object) -> object:
        if not isinstance(value, Mapping):
            raise refusal(label, value, "is not a mapping of token ids to numbers")
        if len(value) > self.n:
            raise RequestError(f"{label} has {len(value)} ids: at most {self.n} are allowed")
        for key in value:
            Int().check(f"{label}: id", key)
        number = Float(self.low, self.high)
        return {key: number.check(f"{label}: id {key} with", bias) for key, bias in value.items()}


@dataclass(frozen=True)
class Names(Rule):
    """Some of the known names, each at most once.  ``last``: names that come after all others, in this order."""

    known: tuple[str, ...] = ()
    last: tuple[str, ...] = ()

    def _checked(self, label: str, value: object) -> object:
        items = items_of(label, value, len(self.known))
        for item in items:
            if item not in self.known:
                known = ", ".join(self.known)
                raise RequestError(f"{label} has the unknown name {item!r:.80}: expected some of {known}")
            if items.count(item) > 1:
                raise RequestError(f"{label} has {item!r} twice")
        for name in self.last:
            if name in items and any(self._rank(item) < self._rank(name) for item in items[items.index(name) :]):
                raise RequestError(f"{label} has {name!r} before another name: put it last")
        return items

    def _rank(self, name: object) -> int:
        return self.last.index(str(name)) if name in self.last else -1


@dataclass(frozen=True)
class AdapterScales(Rule):
    """One adapter's name, or at most ``n`` names, pairs (name, scale), or a mapping of names to scales.

    ``most``: the largest scale, and the smallest if it is negative.
    """

    n: int = 0
    most: float = FLOAT_MAX

    def _checked(self, label: str, value: object) -> object:
        if isinstance(value, str):
            return ((value, 1.0),) if value else ()
        items = items_of(label, [*value.items()] if isinstance(value, Mapping) else value, self.n)
        pairs: list[tuple[str, float]] = []
        for item in items:
            name, scale = (item, 1.0) if isinstance(item, str) else (*items_of(label, item), None)[:2]
            if not isinstance(name, str) or not name:
                raise RequestError(f"{label} has {item!r:.80}: expected names, or pairs (name, scale)")
            if name in (other for other, _ in pairs):
                raise RequestError(f"{label} has {name!r:.80} twice")
            pairs.append((name, float(Float(-self.most, self.most).check(f"{label}: {name!r:.80} with scale", scale))))  # type: ignore[arg-type]
        return tuple(pairs)


@dataclass(frozen=True)
class Instance(Rule):
    """An object of a class."""

    kind: type = object

    def _checked(self, label: str, value: object) -> object:
        if not isinstance(value, self.kind):
            raise refusal(label, value, f"is not an object of {self.kind.__name__}")
        return value
