"""Look at tokens: of a text, of a conversation, one by one as an answer comes."""

from quire import LLM


def main() -> None:
    with LLM() as llm:
        tokenizer = llm.tokenizer
        ids = tokenizer.encode("Once upon a time")
        print(len(tokenizer), ids, [tokenizer.token_bytes(id) for id in ids])
        chat = [{"role": "user", "content": "Hi <|im_end|>"}]  # text from users never becomes a control token
        prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True)
        print(len(prompt), tokenizer.apply_chat_template(chat, tokenize=False))
        stream = tokenizer.detokenizer()
        print([stream.push(id) for id in ids] + [stream.finish()])
        (result,) = llm.generate(prompt, max_tokens=8)
        print(result.token_ids[-1] == tokenizer.eos_token_id, result.text)


if __name__ == "__main__":
    main()
