"""Hold a conversation: each answer is a message of the next turn."""

from collections.abc import Mapping

from quire import LLM


def main() -> None:
    messages: list[Mapping[str, object]] = [{"role": "system", "content": "Answer in one sentence."}]
    with LLM() as llm:
        for question in ("What is the capital of France?", "And of Italy?"):
            messages.append({"role": "user", "content": question})
            result = llm.chat(messages, max_tokens=48)
            messages.append(result.message.as_dict())
            print(question, "->", result.message.content, f"({result.n_cached_tokens} tokens were cached)")


if __name__ == "__main__":
    main()
