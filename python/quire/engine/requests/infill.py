"""Prompts of models that were trained to fill gaps (Bavarian et al. 2022, "Efficient Training of Language Models to
Fill in the Middle"), with the files beside as repository-level models take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import UnsupportedError
from ...tokenizer import Tokenizer
from ...tokenizer.vocabulary import TokenKind

__all__ = ["FillInTokens", "infill_tokens"]

# Of vocabularies whose file does not name them.
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
    """Ids of the tokens that mark what stands before and after a gap, and where it begins."""

    prefix: int
    suffix: int
    middle: int
    repository: int | None
    separator: int | None

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> FillInTokens:
        """Those of a vocabulary; UnsupportedError where it has none."""
        found = {name: _id_of(tokenizer, name) for name in _NAMES}
        prefix, suffix, middle = (found[name] for name in ("fim_prefix", "fim_suffix", "fim_middle"))
        if prefix is None or suffix is None or middle is None:
            missing = next(name for name in _NAMES if found[name] is None)
            raise UnsupportedError(f"[infill] the model must have tokens for filling gaps but has no {missing}")
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
    """The prompt after which a model fills the gap between two texts.

    ``beginning``: how the gap begins.  ``extra``: (name, text) of files that stand before.  What the texts say never
    becomes a control token.  UnsupportedError for a model that was not made to fill gaps.
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
