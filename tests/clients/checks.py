"""Counted checks for scripts that use a real client.

A script prints their number, and fails at the first that fails.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Get the weather for a city.", "parameters": PARAMETERS},
}
RESULT = '{"city": "Paris", "temp_c": 21, "sky": "sunny"}'
ANSWER = "The capital of France is Paris."
MODEL = "tiny-chat"


class Checks:
    """Counts checks that passed."""

    def __init__(self) -> None:
        self.n = 0

    def equal(self, what: str, found: Any, expected: Any) -> None:
        self.true(f"{what}: {found!r}, expected {expected!r}", found == expected)

    def true(self, what: str, holds: Any) -> None:
        if not holds:
            sys.exit(f"check {self.n + 1} failed: {what}")
        self.n += 1

    def raises(self, what: str, kind: type[BaseException], do: Callable[[], Any]) -> Any:
        """Check that a call raises an error, and return it for further checks."""
        try:
            do()
        except kind as error:
            self.n += 1
            return error
        sys.exit(f"check {self.n + 1} failed: {what}: no {kind.__name__} was raised")


def finish(checks: Checks, client: str, least: int) -> None:
    """Print the number of checks; fail if there are fewer than expected."""
    if checks.n < least:
        sys.exit(f"{client}: {checks.n} checks, expected {least}")
    print(f"{client}: {checks.n} checks passed")
