"""Regular expressions from files and users, matched within a time limit.

Python's ``re`` backtracks and cannot be interrupted: on ``(a+)+$`` every further letter of a name doubles the time.
``regex`` reads the same syntax and can stop matching at a time limit.  Compiling has no limit there, and repeats the
body of a counted repetition in memory, so ``re`` checks the syntax first and the counts are limited here.
"""

from __future__ import annotations

import math
import re
import time
from typing import TYPE_CHECKING

from ..errors import LoadError, QuireError, UnsupportedError

if TYPE_CHECKING:
    import regex

__all__ = ["Expression", "MatchTime"]

MAX_CHARACTERS = 1 << 14
MAX_REPEATED_CHARACTERS = 1 << 18  # length times counts; compiles in 0.1 s, with 80 MiB
MAX_MATCH_S = 1.0
MAX_TOTAL_S = 20.0  # 70 000 names with five expressions, as the largest models have, take 1 s
_COUNT = re.compile(r"\{(\d{1,9})")
# ``regex`` gives braces that are no count a meaning of their own: approximate matching.
_BRACE = re.compile(r"(?:\\.|[^\\{]|\{(?:\d+,?\d*|,\d+)\})*", re.DOTALL)


class MatchTime:
    """Processor time, in seconds, for all matches that share it."""

    def __init__(self, seconds: float = MAX_TOTAL_S) -> None:
        self.left_s = seconds


class Expression:
    """A regular expression in the syntax of Python's ``re``.

    Args:
        text: The expression.
        what: Begins every message, such as ``[convert] 'ignore'``.
        error: Class of the errors.
        match_time: Shared with the other expressions of one file; by default this expression has its own.

    Raises:
        error: The syntax is wrong, or the counts are too large.
        UnsupportedError: The expression has braces that are not a count.
    """

    def __init__(
        self, text: str, what: str, error: type[QuireError] = LoadError, match_time: MatchTime | None = None
    ) -> None:
        self.text, self._what, self._error = text, what, error
        self._time = match_time or MatchTime()
        if len(text) > MAX_CHARACTERS:
            raise error(f"{what} has {len(text)} characters: expected at most {MAX_CHARACTERS}")
        try:
            re.compile(text)
        except (re.error, OverflowError, RecursionError) as cause:
            raise error(f"{what} is not a regular expression: {text!r:.80} ({cause})") from None
        if len(text) * math.prod(max(1, int(count)) for count in _COUNT.findall(text)) > MAX_REPEATED_CHARACTERS:
            raise error(f"{what} repeats too much: {text!r:.80}")
        if _BRACE.fullmatch(text) is None:
            raise UnsupportedError(f"{what} has a brace that is not a count: {text!r:.80}")
        self._compiled = _compiled(text)

    def match(self, text: str) -> bool:
        """Return True if the expression matches at the start of the text."""
        return self._found("match", text)

    def fullmatch(self, text: str) -> bool:
        """Return True if the expression matches the whole text."""
        return self._found("fullmatch", text)

    def search(self, text: str) -> bool:
        """Return True if the expression matches anywhere in the text."""
        return self._found("search", text)

    def _found(self, how: str, text: str) -> bool:
        limit_s = min(MAX_MATCH_S, self._time.left_s)
        begin_s = time.process_time()  # the clock of the library's own limit
        try:
            if limit_s <= 0 or len(text) > MAX_CHARACTERS:
                raise TimeoutError
            return getattr(self._compiled, how)(text, timeout=limit_s) is not None
        except (TimeoutError, MemoryError):
            raise self._error(f"{self._what} takes too long to match {text!r:.80}: {self.text!r:.80}") from None
        finally:
            self._time.left_s -= time.process_time() - begin_s


def _compiled(text: str) -> regex.Pattern[str]:
    import regex  # most models need none

    return regex.compile(text, cache_pattern=False)
