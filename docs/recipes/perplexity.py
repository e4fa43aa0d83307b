"""Measure how well a model predicts a text: from logits, and from log-probabilities of the prompt."""

import numpy as np
from quire import LLM

TEXT = "Once upon a time there was a little fox who lived in the forest."


def main() -> None:
    with LLM() as llm:
        ids = llm.tokenizer.encode(TEXT)
        logits = llm.logits(ids).astype(np.float64)[:-1]
        logits -= logits.max(axis=1, keepdims=True)
        logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        mean = float(logprobs[np.arange(len(ids) - 1), ids[1:]].mean())
        (result,) = llm.generate(ids, max_tokens=1, prompt_logprobs=0)
    shown = [token.logprob for token in result.prompt_logprobs or [] if token is not None]
    print(f"perplexity {np.exp(-mean):.2f}, and {np.exp(-np.mean(shown)):.2f} by the engine")


if __name__ == "__main__":
    main()
