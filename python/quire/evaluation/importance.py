"""Measuring importance matrices over a text: the mean squares of each matrix's inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..quantization import Importance
from ..quantization.importance import Sums
from .losses import Losses, token_losses
from .scorer import STEP_TOKENS, Scorer

__all__ = ["importance_of", "measure_importance"]

OnChunks = Callable[[int, Losses], None]  # finished chunks, losses so far


def measure_importance(
    scorer: Scorer, rows: Sequence[list[int]], *, perplexity: bool = False, on_chunks: OnChunks | None = None
) -> Losses:
    """Run chunks of tokens through a model that was opened with ``sums_inputs``.

    With ``perplexity``, return the losses over the second half of each chunk.
    """
    losses = Losses()
    n_together = max(1, STEP_TOKENS // len(rows[0]))
    for begin in range(0, len(rows), n_together):
        some = rows[begin : begin + n_together]
        first = len(some[0]) // 2
        for row, logits in zip(some, scorer.logits(some, first), strict=True):
            if perplexity:
                losses.add(token_losses(logits[:-1], row[first + 1 :]))
        if on_chunks is not None:
            on_chunks(begin + len(some), losses)
    return losses


def importance_of(
    scorer: Scorer, dataset: str, n_chunks: int, chunk_tokens: int, *, process_output: bool = False
) -> Importance:
    """Return the importance measured so far; with ``process_output`` also the head's, under its tensor's name."""
    import numpy as np

    made = Importance(datasets=[dataset], n_chunks=n_chunks, chunk_tokens=chunk_tokens)
    for name, (squares, counts) in scorer.opened.executor.input_sums().items():
        if name.startswith("blk.") or (process_output and name in ("output.weight", "token_embd.weight")):
            made.sums[name] = Sums(squares.astype(np.float32), counts.astype(np.float32))
    return made
