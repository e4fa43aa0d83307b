"""Find the text that is nearest to a question."""

import numpy as np
from quire import LLM


def main() -> None:
    texts = ["The fox ran into the forest.", "Paris is the capital of France.", "The sun is warm today."]
    with LLM() as llm:
        vectors = llm.embed(texts)  # [3, n_hidden], each of length 1
        question = llm.embed("What is the capital of France?")[0]
    scores = vectors @ question
    print(texts[int(np.argmax(scores))], scores.round(2))


if __name__ == "__main__":
    main()
