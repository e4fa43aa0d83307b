"""Get an answer of a fixed form: a JSON Schema, a regular expression, one of some words."""

import json

from quire import LLM

PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "country": {"enum": ["France", "Italy"]}},
    "required": ["city", "country"],
    "additionalProperties": False,
}


def main() -> None:
    asked = [{"role": "user", "content": "Where is the Eiffel tower?"}]
    with LLM() as llm:
        # A class of Pydantic is taken in place of the schema.
        place = json.loads(llm.chat(asked, response_format=PLACE, max_tokens=64).text)
        print(place["city"], place["country"])
        print(llm.chat(asked, regex=r"[A-Z][a-z]{2,9}", max_tokens=16).text)
        print(llm.chat(asked, choice=["in France", "in Italy"], max_tokens=16).text)


if __name__ == "__main__":
    main()
