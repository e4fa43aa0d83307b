"""Answer a list of conversations in one batch, and compare several answers to one."""

from quire import LLM


def main() -> None:
    conversations = [[{"role": "user", "content": text}] for text in ("Who are you?", "What is the capital of Spain?")]
    with LLM() as llm:
        for result in llm.chat(conversations, max_tokens=24):
            print(result.message.content)
        several = llm.chat(conversations[0], n=3, temperature=1.0, max_tokens=24, seed=1)
        for choice in several.choices:
            print(choice.index, choice.message.content)


if __name__ == "__main__":
    main()
