"""Let the model call a Python function until it has its answer."""

from quire import LLM


def get_weather(city: str) -> dict[str, object]:
    """Get the weather for a city.

    Args:
        city: Its name.
    """
    return {"city": city, "temp_c": 21, "sky": "sunny"}


def main() -> None:
    asked = [{"role": "user", "content": "What is the weather in Paris?"}]
    with LLM() as llm:
        answer = llm.run(asked, tools=[get_weather], tool_choice="required", max_tokens=64)
        for made in answer.calls:
            print(made.call.function.name, made.call.function.arguments, "->", made.result.text)
        print(answer.text)


if __name__ == "__main__":
    main()
