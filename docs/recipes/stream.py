"""Show an answer while it is written, and stop early."""

from quire import LLM


def main() -> None:
    with LLM() as llm:
        n_tokens = 0
        answer = llm.chat_stream([{"role": "user", "content": "Tell me a story about a fox."}], max_tokens=200)
        for delta in answer:
            print(delta.content, end="", flush=True)
            n_tokens += len(delta.token_ids)
            if n_tokens >= 32:
                answer.close()  # cancels the request: its memory is free for others
        print(f"\n{n_tokens} tokens were enough")


if __name__ == "__main__":
    main()
