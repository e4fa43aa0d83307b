"""The costs of a step, fitted to measured speeds."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["H200_8B", "Costs"]


@dataclass(frozen=True)
class Costs:
    """The time of a step, as a sum of its parts.

    Attributes:
        rows: Seconds of a step that generates one token for each of so many answers, rising; between them, a line.
        prompt_token_s: Seconds for each token of a prompt.
        context_s: Seconds for each cached token that an answer attends to.
        prompt_context_s: The same for each token of a prompt.
        request_s: Seconds for each request before its first step: HTTP, template, tokens.
        cache_tokens: Tokens that the cache holds.
        step_tokens, running: Most tokens of a step, and answers at the same time.
    """

    rows: tuple[tuple[int, float], ...]
    prompt_token_s: float
    context_s: float
    prompt_context_s: float
    request_s: float
    cache_tokens: int
    step_tokens: int
    running: int

    def seconds(self, n_prompt: int, n_rows: int, n_context: int, n_prompt_context: int) -> float:
        """Return the time of a step.

        Args:
            n_prompt: Tokens of prompts.
            n_rows: Answers that receive a token.
            n_context: Tokens that they attend to, all together.
            n_prompt_context: The same of the prompts' tokens.
        """
        own_s = self._of_rows(n_rows)
        if n_prompt:  # the weights are read once, for both
            own_s = max(0.0, own_s - self.rows[0][1]) + max(self.rows[0][1], n_prompt * self.prompt_token_s)
        return own_s + n_context * self.context_s + n_prompt_context * self.prompt_context_s

    def _of_rows(self, n: int) -> float:
        if not n:
            return 0.0
        before_n, before_s = self.rows[0]
        for n_there, there_s in self.rows[1:]:
            if n <= n_there:
                return before_s + (there_s - before_s) * (n - before_n) / (n_there - before_n)
            slope = (there_s - before_s) / (n_there - before_n)
            before_n, before_s = n_there, there_s
        return before_s + slope * (n - before_n)


# Qwen3-8B's shape in Q4_K_M on an H200 with Quire's own kernels (benchmarks/README.md): 345.7, 1007 and 3190 tokens per
# second of 1, 8 and 32 answers after 512 tokens, prompts at 11 191.  A token's K and V are 147 456 bytes, read at the
# measured 3.7 TB/s; the times of rows are without that.  Not measured: attention of long prompts (here 150 TFLOPS,
# 590 000 operations for a pair of tokens) and the time of a request (here a millisecond).
_ROW_S = 147456 / 3.7e12
H200_8B = Costs(
    rows=tuple((n, n / speed - n * 576 * _ROW_S) for n, speed in ((1, 345.7), (8, 1007.0), (32, 3190.0))),
    prompt_token_s=1 / 11191,
    context_s=_ROW_S,
    prompt_context_s=590_000 / 150e12,
    request_s=0.001,
    cache_tokens=850_000,  # 126 GB beside the weights
    step_tokens=2048,
    running=64,
)
