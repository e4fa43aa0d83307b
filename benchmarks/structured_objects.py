#!/usr/bin/env python3
"""Count JSON objects that have exactly the keys of their schema: 10 schemas, 10 seeds, 4 ways to ask.

    structured_objects.py [MODEL] [--seeds 10] [--tokens 128] [--threads 2]

The ways are ``response_format``, a class with a schema, a strict tool, and a required tool.  For each way the script
counts ``exact`` answers, ``extra`` (keys that are not in the schema), ``cut`` (at the token limit), ``broken`` (not
JSON) and ``no call`` (text instead of a call).  Without MODEL, the package's model answers.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from quire import LLM

TEXT, INTEGER = {"type": "string"}, {"type": "integer"}
WAYS = ("response_format", "class", "strict", "required")


def record(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


QUESTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "city": ("Tell me about Paris as JSON.", record(city=TEXT, population=INTEGER)),
    "person": ("Anna is 34 years old and lives in Rome. Extract as JSON.", record(name=TEXT, age=INTEGER)),
    "pet": (
        "Olga has a black cat. Extract as JSON.",
        record(name=TEXT, pet={"enum": ["cat", "dog", "bird"]}, color=TEXT),
    ),
    "weather": ("What is the weather in Oslo?", record(city=TEXT, unit={"enum": ["celsius", "fahrenheit"]})),
    "book": ("Recommend a book as JSON.", record(title=TEXT, author=TEXT, year=INTEGER)),
    "flag": ("Is the sky blue?", record(answer={"type": "boolean"})),
    "list": ("Name two animals as JSON.", record(animals={"type": "array", "items": TEXT, "maxItems": 2})),
    "nested": ("Where does Juan live? JSON please.", record(name=TEXT, address=record(street=TEXT, city=TEXT))),
    "optional": (
        "Add 3 and 4.",
        {**record(a=INTEGER, b=INTEGER), "properties": {"a": INTEGER, "b": INTEGER, "note": TEXT}},
    ),
    "items": (
        "A shopping list as JSON.",
        record(items={"type": "array", "items": record(name=TEXT, count=INTEGER), "maxItems": 2}),
    ),
}


def has_extra(value: object, schema: dict[str, Any]) -> bool:
    if isinstance(value, dict) and "properties" in schema:
        listed = schema["properties"]
        return any(key not in listed or has_extra(inner, listed[key]) for key, inner in value.items())
    return isinstance(value, list) and any(has_extra(item, schema.get("items", {})) for item in value)


def judged(text: str, schema: dict[str, Any]) -> str:
    try:
        value = json.loads(text)
    except ValueError:
        return "broken"
    return "extra" if has_extra(value, schema) else "exact"


def outcome(llm: LLM, way: str, question: str, schema: dict[str, Any], options: dict[str, Any]) -> str:
    chat = [{"role": "user", "content": question}]
    if way in ("strict", "required"):
        function = {
            "name": "answer",
            "description": "Give the answer.",
            "parameters": schema,
            "strict": way == "strict",
        }
        choice = "required" if way == "required" else "auto"
        tools = [{"type": "function", "function": function}]
        result = llm.chat(chat, tools=tools, tool_choice=choice, parallel_tool_calls=False, **options)
        calls = result.message.tool_calls
        text = calls[0].function.arguments if calls else None
    else:
        form: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        if way == "class":
            form = type("Answer", (), {"model_json_schema": staticmethod(lambda: schema)})
        result = llm.chat(chat, response_format=form, **options)
        text = result.message.content or ""
    if result.finish_reason == "length":
        return "cut"
    return "no call" if text is None else judged(text, schema)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    with LLM(arguments.model, threads=arguments.threads, n_ctx=1024) as llm:
        for way in WAYS:
            total: Counter[str] = Counter()
            for question, schema in QUESTIONS.values():
                for seed in range(arguments.seeds):
                    options = {"seed": seed, "temperature": 1.0, "max_tokens": arguments.tokens}
                    total[outcome(llm, way, question, schema, options)] += 1
            print(f"{way:16}", ", ".join(f"{name} {n}" for name, n in total.most_common()), flush=True)


if __name__ == "__main__":
    main()
