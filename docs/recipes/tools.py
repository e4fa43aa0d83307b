"""Let the model call a function, and give it the result."""

import json
from collections.abc import Mapping

from quire import LLM

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather for a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def get_weather(city: str) -> dict[str, object]:
    return {"city": city, "temp_c": 21, "sky": "sunny"}


def main() -> None:
    messages: list[Mapping[str, object]] = [{"role": "user", "content": "What is the weather in Paris?"}]
    with LLM() as llm:
        answer = llm.chat(messages, tools=[WEATHER], tool_choice="required", max_tokens=64).message
        messages.append(answer.as_dict())
        for call in answer.tool_calls:
            result = get_weather(**json.loads(call.function.arguments))
            print(call.function.name, call.function.arguments, "->", result)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})
        print(llm.chat(messages, tools=[WEATHER], max_tokens=48).message.content)


if __name__ == "__main__":
    main()
