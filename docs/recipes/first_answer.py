"""Continue a text, several at once, and draw the same again by a seed."""

from quire import LLM


def main() -> None:
    with LLM() as llm:  # the small model in the package; LLM("model.gguf") opens yours
        first, second = llm.generate(["Once upon a time", "The capital of France"], max_tokens=16, temperature=0.0)
        print(first.text, first.finish_reason)
        print(second.text, len(second.token_ids))
        (again,) = llm.generate("Once upon a time", max_tokens=16, temperature=0.9, seed=7)
        print(again.text)


if __name__ == "__main__":
    main()
