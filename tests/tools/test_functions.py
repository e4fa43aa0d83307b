"""Python functions as tools.

Oracles: schemas written by hand, and jsonschema; Python's own values for the arguments.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import enum
from functools import partial
from typing import Any, Literal

import pytest
from quire.errors import UnsupportedError
from quire.tools.docstrings import described
from quire.tools.functions import tool_of_function


class Color(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Place:
    city: str
    zip: int | None = None


def join(a: str, b: str) -> str:
    return a + b


def test_the_schema_is_that_of_the_type_hints_and_the_docstring() -> None:
    def find(
        place: Place, n: int = 3, kind: Literal["a", "b"] = "a", day: datetime.date | None = None, *, rest: Any = ()
    ) -> list[object]:
        """Find things.

        In any city.

        Args:
            place: Where to look,
                by name.
            n (int): How many: a number.

        Returns:
            n: things.
        """
        return [place, n, kind, day, rest]

    tool = tool_of_function(find)
    assert (tool.name, tool.description, tool.approval) == ("find", "Find things.\n\nIn any city.", "always")
    schema = tool.parameters
    assert schema["required"] == ["place"]
    assert schema["additionalProperties"] is False
    properties = schema["properties"]
    assert properties["n"] == {"type": "integer", "description": "How many: a number.", "default": 3}
    assert properties["kind"] == {"enum": ["a", "b"], "default": "a"}
    assert schema["$defs"]["Place"]["required"] == ["city"]
    valid = pytest.importorskip("jsonschema").Draft202012Validator(schema)
    given = {"place": {"city": "Rome", "zip": 1}, "kind": "b", "day": "2026-01-02"}
    assert valid.is_valid(given)
    assert not valid.is_valid({"place": {"city": 3}})
    assert asyncio.run(tool.call(given)).text == '[{"city":"Rome","zip":1},3,"b","2026-01-02",[]]'
    for wrong in ({}, {"place": {"city": 3}}, {**given, "more": 1}, {**given, "kind": "c"}):
        assert asyncio.run(tool.call(wrong)).is_error


def test_values_arrive_as_their_types_and_results_leave_as_text() -> None:
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Box", inner=(pydantic.create_model("Inner", n=(int, ...)), ...))

    async def show(color: Color, box: model) -> Any:  # type: ignore[valid-type]
        return [color is Color.RED, box.inner.n, box]

    show.__annotations__ |= {"box": model, "color": Color}
    tool = tool_of_function(show)
    assert tool.parameters["$defs"]["Inner"]["properties"]["n"]["type"] == "integer"
    result = asyncio.run(tool.call({"color": "red", "box": {"inner": {"n": 5}}}))
    assert result.text == '[true,5,{"inner":{"n":5}}]'
    assert asyncio.run(tool_of_function(partial(join, b="!")).call({"a": "hi"})).text == "hi!"


def test_functions_that_cannot_be_called_with_json_are_refused_by_name() -> None:
    def many(*texts: str) -> None: ...
    def odd(file: memoryview[int]) -> None: ...

    for function, named in ((many, "texts"), (odd, "odd"), (max, "max"), (lambda: 1, "lambda")):
        with pytest.raises(UnsupportedError, match=named):
            tool_of_function(function)


def test_docstrings_in_three_styles() -> None:
    google = "Do it.\n\nArgs:\n    a: One.\n    b (int): Two,\n        three.\nRaises:\n    ValueError: never."
    numpy = (
        "Do it.\n\nParameters\n----------\na : str\n    One.\nb\n    Two,\n    three.\n\nReturns\n-------\nint\n    c"
    )
    sphinx = "Do it.\n\n:param a: One.\n:param int b: Two,\n    three.\n:returns: c"
    for text in (google, numpy, sphinx):
        assert described(text) == ("Do it.", {"a": "One.", "b": "Two, three."})
    assert described("") == ("", {})
