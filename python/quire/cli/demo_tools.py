"""The tools of ``quire chat --tools``: made for demonstration, without side effects."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any
from zlib import crc32

from ..tools import Tool, ToolResult

__all__ = ["DEFINITIONS", "answer", "demo_tools"]

# Offsets from UTC in hours, ignoring daylight saving time.
ZONES = {
    "utc": 0, "london": 0, "paris": 1, "berlin": 1, "cairo": 2, "athens": 2, "moscow": 3, "tokyo": 9, "sydney": 10,
    "new york": -5, "chicago": -6, "denver": -7, "lima": -5, "bangkok": 7,
}  # fmt: skip
SKIES = ("sunny", "cloudy", "rainy", "windy", "foggy", "clear")
SENTENCES = (
    "A bicycle has two wheels of the same size since about 1885.",
    "Bread is baked from flour, water, yeast and salt.",
    "Carrots grow best in loose soil.",
    "Chess is played on a board of 64 squares.",
    "A quire is a gathering of pages.",
    "Trains need rails, and tickets are cheaper in the morning.",
    "Cats sleep for most of the day.",
    "A flat tire is mended with a patch.",
)


def _definition(name: str, description: str, **parameters: str) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {key: {"type": kind} for key, kind in parameters.items()},
                "required": list(parameters),
            },
        },
    }


DEFINITIONS = [
    _definition("get_weather", "Get the weather for a city.", city="string"),
    _definition("add", "Add two numbers.", a="number", b="number"),
    _definition("get_time", "Get the time in a time zone.", zone="string"),
    _definition("search", "Search for information.", query="string"),
]


def demo_tools() -> list[Tool]:
    """Return the tools, which run without asking."""
    functions = [definition["function"] for definition in DEFINITIONS]
    return [
        Tool(**function, own_name=function["name"], call=partial(_answered, function["name"]), approval="always")
        for function in functions
    ]


async def _answered(name: str, arguments: dict[str, Any]) -> ToolResult:
    return ToolResult(answer(name, json.dumps(arguments)))


class _Refusal(Exception):
    """An error that a tool reports instead of a result."""


def answer(name: str, arguments: str, now: Callable[[], datetime] = lambda: datetime.now(timezone.utc)) -> str:
    """Return the result of a call, or its error, as JSON text."""
    try:
        values = json.loads(arguments)
        if not isinstance(values, dict):
            raise _Refusal("arguments must be an object")
        result = _result(name, values, now)
    except (_Refusal, ValueError, RecursionError) as error:
        result = {"error": str(error)}
    return json.dumps(result, ensure_ascii=False)


def _result(name: str, values: Mapping[str, object], now: Callable[[], datetime]) -> dict[str, object]:
    if name == "get_weather":
        city = _text(values, "city")
        number = crc32(city.lower().encode("utf-8", "replace"))
        return {"city": city, "temp_c": number % 25 + 5, "sky": SKIES[number // 25 % len(SKIES)]}
    if name == "add":
        return {"result": _number(values, "a") + _number(values, "b")}
    if name == "get_time":
        zone = _text(values, "zone")
        if zone.lower() not in ZONES:
            raise _Refusal(f"zone must be one of {', '.join(ZONES)}")
        return {"zone": zone, "time": (now() + timedelta(hours=ZONES[zone.lower()])).strftime("%H:%M")}
    if name == "search":
        words = {word for word in _text(values, "query").lower().split() if len(word) > 3}
        found = [text for text in SENTENCES if any(word in text.lower() for word in words)]
        return {"results": found or ["Nothing was found."]}
    raise _Refusal(f"there is no tool {name}")


def _text(values: Mapping[str, object], key: str) -> str:
    value = values.get(key)
    if not isinstance(value, str) or len(value) > 1000:
        raise _Refusal(f"{key} must be a text")
    return value


def _number(values: Mapping[str, object], key: str) -> int | float:
    value = values.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < 1e15:
        raise _Refusal(f"{key} must be a number below 1e15")
    return value
