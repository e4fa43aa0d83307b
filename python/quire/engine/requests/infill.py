"""Prompts that have a model fill a gap between two texts.

Bavarian et al. 2022, "Efficient Training of Language Models to Fill in the Middle"; further files come first, as
repository-level models read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import UnsupportedError
from ...tokenizer import Tokenizer
from ...tokenizer.vocabulary import TokenKind

__all__ = ["FillInTokens", "infill_tokens"]

# Texts of the tokens, for files that do not name them.
_NAMES: dict[str, tuple[str, ...]] = {
    "fim_prefix": ("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>"),
    "fim_suffix": ("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>"),
    "fim_middle": ("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>"),
    "fim_repository": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", "<repo_name>"),
    "fim_separator": ("<|file_sep|>", "<file_sep>"),
}
REPOSITORY = "myproject"


@dataclass(frozen=True)
class FillInTokens:
    """Ids of the tokens before the prefix, before the suffix, and before the text of the gap."""

    prefix: int
    suffix: int
    middle: int
    repository: int | None
    separator: int | None

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> FillInTokens:
        """Find the tokens of a vocabulary.  UnsupportedError if it has none."""
        found = {name: _id_of(tokenizer, name) for name in _NAMES}
        prefix, suffix, middle = (found[name] for name in ("fim_prefix", "fim_suffix", "fim_middle"))
        if prefix is None or suffix is None or middle is None:
            missing = next(name for name in _NAMES if found[name] is None)
            raise UnsupportedError(f"[infill] the model cannot fill gaps: its vocabulary has no token {missing}")
        return cls(prefix, suffix, middle, found["fim_repository"], found["fim_separator"])


def _id_of(tokenizer: Tokenizer, name: str) -> int | None:
    if (id_ := tokenizer.vocabulary.special_ids.get(name)) is not None:
        return id_
    marks = (TokenKind.CONTROL, TokenKind.USER_DEFINED)
    found = (tokenizer.token_id(text) for text in _NAMES[name])
    return next((id_ for id_ in found if id_ is not None and tokenizer.vocabulary.kinds[id_] in marks), None)


def infill_tokens(
    tokenizer: Tokenizer, prefix: str, suffix: str, beginning: str, extra: Sequence[tuple[str, str]]
) -> list[int]:
    """Return the prompt after which a model fills the gap between two texts, which never become control tokens.

    Args:
        beginning: The beginning of the gap's text.
        extra: (name, text) of further files.

    Raises:
        UnsupportedError: The model was not trained to fill gaps.
    """
    tokens = FillInTokens.of(tokenizer)

    def plain(text: str) -> list[int]:
        return tokenizer.encode(text, add_special=False, parse_special=False) if text else []

    ids = list(tokenizer.vocabulary.prefix_ids)
    if extra and tokens.repository is not None:
        ids += [tokens.repository, *plain(REPOSITORY + "\n")]
    for name, text in extra:
        if tokens.separator is not None:
            ids += [tokens.separator, *plain(f"{name}\n{text}")]
        else:
            ids += plain(f"\n\n--- snippet ---\n\n{text}")
    if extra and tokens.separator is not None:
        ids += [tokens.separator, *plain("filename\n")]
    return [*ids, tokens.prefix, *plain(prefix), *plain(beginning), tokens.suffix, *plain(suffix), tokens.middle]
