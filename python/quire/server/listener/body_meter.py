"""How much a JSON body will make, counted while it arrives: in linear time, and before anything is made of it."""

from __future__ import annotations

from ..failures import ApiError

__all__ = ["MOST_VALUES", "BodyMeter"]

# To decode so many takes 15 to 30 ms on one core of a server, whatever they are, and at most some tens of MB.
MOST_VALUES = 1 << 20


class BodyMeter:
    """Counts values, weighted by what they take: 1 for each, 2 more for a text, 8 more for an object or a list, 6 for
    the name of a field."""

    def __init__(self, most: int = MOST_VALUES) -> None:
        self._most = most
        self._in_text = False
        self._escape = b""
        self.n_bytes = 0
        self.n_values = 0

    def feed(self, part: bytes) -> None:
        """The next part of the body.  ApiError 400 when there are too many values.

        What is no JSON may be counted wrongly: it is not decoded beyond the fault.
        """
        self.n_bytes += len(part)
        data = self._escape + part
        self._escape = b""
        if b"\\" in data:
            # Without escaped backslashes and quotes, which of these in a row are escaped need not be asked any more.
            data = data.replace(b"\\\\", b"")
            if data.endswith(b"\\"):
                self._escape, data = b"\\", data[:-1]
            data = data.replace(b'\\"', b"")
        n_quotes = data.count(b'"')
        self._add(n_quotes)
        if n_quotes:
            parts = data.split(b'"')
            data = b"".join(parts[1 if self._in_text else 0 :: 2])
            self._in_text ^= n_quotes % 2 == 1
        elif self._in_text:
            return
        self._add(data.count(b",") + 4 * data.count(b":") + 8 * (data.count(b"{") + data.count(b"[")))

    def _add(self, n: int) -> None:
        self.n_values += n
        if self.n_values > self._most:
            text = f"the body must have at most {self._most} values but has more"
            text += " (a number counts 1, a text 3, the name of a field 6, an object or a list 9)"
            raise ApiError(400, "too_many_values", text)
