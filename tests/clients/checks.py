"""Counted checks for scripts that use a real client: each script prints how many held, and fails with the first."""

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
    """Counts what held."""

    def __init__(self) -> None:
        self.n = 0

    def equal(self, what: str, found: Any, expected: Any) -> None:
        self.true(f"{what}: {found!r} must be {expected!r}", found == expected)

    def true(self, what: str, holds: Any) -> None:
        if not holds:
            sys.exit(f"check {self.n + 1} failed: {what}")
        self.n += 1

    def raises(self, what: str, kind: type[BaseException], do: Callable[[], Any]) -> Any:
        """The error, for more checks of it."""
        try:
            do()
        except kind as error:
            self.n += 1
            return error
        sys.exit(f"check {self.n + 1} failed: {what} must raise {kind.__name__}")


def finish(checks: Checks, client: str, least: int) -> None:
    """Say how many held; fail where there were fewer than there should be."""
    if checks.n < least:
        sys.exit(f"{client}: {checks.n} checks, {least} are expected")
    print(f"{client}: {checks.n} checks hold")
