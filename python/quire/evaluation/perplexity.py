"""Perplexity of a text, chunk by chunk, computed like in llama-perplexity."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .base_file import BaseWriter
from .losses import Losses, token_losses
from .scorer import Scorer

__all__ = ["perplexity_of_chunks", "perplexity_of_strides"]

OnChunk = Callable[[int, Losses], None]  # finished chunks, losses so far


def perplexity_of_chunks(
    scorer: Scorer, rows: Sequence[list[int]], *, base: BaseWriter | None = None, on_chunk: OnChunk | None = None
) -> Losses:
    """Compute the losses over the second half of each chunk, so that every token has some context.

    Log-probabilities are written to ``base``, to measure the divergence of other models from this one.
    """
    losses = Losses()
    for i, (row, logits) in enumerate(zip(rows, scorer.logits(rows, len(rows[0]) // 2), strict=True)):
        first = len(row) // 2
        losses.add(token_losses(logits[:-1], row[first + 1 :]))
        if base is not None:
            base.write(logits[:-1])
        if on_chunk is not None:
            on_chunk(i + 1, losses)
    return losses


def perplexity_of_strides(
    scorer: Scorer, rows: Sequence[list[int]], stride: int, *, on_chunk: OnChunk | None = None
) -> Losses:
    """Compute the losses over the last ``stride`` tokens of each window, so that every token has a long context."""
    losses = Losses()
    for i, (row, logits) in enumerate(zip(rows, scorer.logits(rows, len(rows[0]) - stride - 1), strict=True)):
        losses.add(token_losses(logits[:-1], row[len(row) - stride :]))
        if on_chunk is not None:
            on_chunk(i + 1, losses)
    return losses
