"""A text in pieces of equal length, as llama-perplexity and llama-imatrix cut it."""

from __future__ import annotations

from ..errors import RequestError
from ..tokenizer import Tokenizer

__all__ = ["chunks_of", "strides_of", "window_of", "with_first_token"]


def chunks_of(
    tokenizer: Tokenizer, text: str | bytes, n_ctx: int, *, parse_special: bool = False, skip: int = 0,
    most: int | None = None,
) -> list[list[int]]:  # fmt: skip
    """Chunks of ``n_ctx`` tokens, without the first ``skip``, and at most ``most``; what is left over is dropped.

    Where the vocabulary has a text begin with a token, each chunk's first token is that.  RequestError for a text of
    less than two chunks.
    """
    ids = _ids(tokenizer, text, n_ctx, skip, most, parse_special=parse_special)
    n_chunks = len(ids) // n_ctx
    rows = [ids[i * n_ctx : (i + 1) * n_ctx] for i in range(n_chunks if most is None else min(most, n_chunks))]
    return with_first_token(tokenizer, rows)


def with_first_token(tokenizer: Tokenizer, rows: list[list[int]]) -> list[list[int]]:
    """Put the beginning-of-text token in place of each row's first token, where the vocabulary adds one to texts.

    llama-perplexity does so when it evaluates a chunk; the chunks in its files are as the text was cut.
    """
    begin = tokenizer.vocabulary.prefix_ids
    return [[begin[0], *row[1:]] for row in rows] if begin else rows


def strides_of(
    tokenizer: Tokenizer, text: str | bytes, n_ctx: int, stride: int, *, most: int | None = None
) -> list[list[int]]:
    """Windows of ``n_ctx`` tokens that begin ``stride`` tokens apart, as they stand in the text."""
    ids = _ids(tokenizer, text, n_ctx, 0, most, parse_special=False)
    n_windows = -(-(len(ids) - n_ctx) // stride)
    windows = [ids[i * stride : i * stride + n_ctx] for i in range(n_windows if most is None else min(most, n_windows))]
    # The last may reach beyond the text.
    return [window for window in windows if len(window) == n_ctx]


def _ids(
    tokenizer: Tokenizer, text: str | bytes, n_ctx: int, skip: int, most: int | None, *, parse_special: bool
) -> list[int]:
    if most == 0:
        raise RequestError("[score] chunks must be 1 or more but are 0")
    ids = tokenizer.encode(text, parse_special=parse_special)[skip * n_ctx :]
    if len(ids) < 2 * n_ctx:
        raise RequestError(
            f"[score] the text must have at least {2 * n_ctx} tokens, for two chunks of {n_ctx}, but has {len(ids)}"
        )
    return ids


def window_of(n_ctx: int, stride: int) -> int:
    """Tokens of a window for that context: half a stride more, in whole multiples of 256, as llama.cpp rounds it."""
    return -(-(n_ctx + stride // 2) // 256) * 256
