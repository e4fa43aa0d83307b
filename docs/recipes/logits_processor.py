"""Change the logits before a token is drawn: here, no token with the letter e."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from quire import LLM


def main() -> None:
    with LLM() as llm:
        shown = llm.tokenizer.all_token_bytes()
        forbidden = np.array([b"e" in text or b"E" in text for text in shown])

        def without_e(token_ids: Sequence[int], logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
            logits[: len(forbidden)][forbidden] = -np.inf
            return logits

        (result,) = llm.generate("A story about", logits_processors=[without_e], max_tokens=24, temperature=0.0)
        print(result.text)
        assert "e" not in result.text


if __name__ == "__main__":
    main()
