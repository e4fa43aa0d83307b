"""Cutting a text into pieces of equal length, like llama-perplexity and llama-imatrix."""

from __future__ import annotations

from ..errors import RequestError
from ..tokenizer import Tokenizer

__all__ = ["chunks_of", "strides_of", "window_of", "with_first_token"]


def chunks_of(
    tokenizer: Tokenizer, text: str | bytes, n_ctx: int, *, parse_special: bool = False, skip: int = 0,
    most: int | None = None,
) -> list[list[int]]:  # fmt: skip
    """Cut a text into chunks of ``n_ctx`` tokens; skip the first ``skip``, take at most ``most``, drop the rest.

    If the vocabulary adds a token before a text, it replaces each chunk's first token.

    Raises:
        RequestError: The text has less than two chunks.
    """
    ids = _ids(tokenizer, text, n_ctx, skip, most, parse_special=parse_special)
    n_chunks = len(ids) // n_ctx
    rows = [ids[i * n_ctx : (i + 1) * n_ctx] for i in range(n_chunks if most is None else min(most, n_chunks))]
    return with_first_token(tokenizer, rows)


def with_first_token(tokenizer: Tokenizer, rows: list[list[int]]) -> list[list[int]]:
    """Replace each row's first token by the beginning-of-text token, if the vocabulary adds one to texts.

    llama-perplexity does this when it evaluates a chunk; its files have the original chunks.
    """
    begin = tokenizer.vocabulary.prefix_ids
    return [[begin[0], *row[1:]] for row in rows] if begin else rows


def strides_of(
    tokenizer: Tokenizer, text: str | bytes, n_ctx: int, stride: int, *, most: int | None = None
) -> list[list[int]]:
    """Return windows of ``n_ctx`` tokens that start ``stride`` tokens apart, with the text's own tokens."""
    ids = _ids(tokenizer, text, n_ctx, 0, most, parse_special=False)
    n_windows = -(-(len(ids) - n_ctx) // stride)
    windows = [ids[i * stride : i * stride + n_ctx] for i in range(n_windows if most is None else min(most, n_windows))]
    # The last window may be incomplete.
    return [window for window in windows if len(window) == n_ctx]


def _ids(
    tokenizer: Tokenizer, text: str | bytes, n_ctx: int, skip: int, most: int | None, *, parse_special: bool
) -> list[int]:
    if most == 0:
        raise RequestError("[score] 0 chunks: expected 1 or more")
    ids = tokenizer.encode(text, parse_special=parse_special)[skip * n_ctx :]
    if len(ids) < 2 * n_ctx:
        raise RequestError(
            f"[score] the text has {len(ids)} tokens: expected at least {2 * n_ctx}, two chunks of {n_ctx}"
        )
    return ids


def window_of(n_ctx: int, stride: int) -> int:
    """Return the tokens of a window: the context and half a stride, rounded to multiples of 256 like llama.cpp."""
    return -(-(n_ctx + stride // 2) // 256) * 256
