"""Find the tokens that end an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quire._tokenizer.packed import picked
from quire.tokenizer.vocabulary import TokenKind

__all__ = ["end_of_generation_ids"]

# Files often name only one such token.  These are the texts of others at which published engines stop.
NAMES = frozenset(
    {
        "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
        "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<turn|>",
        "<end_of_utterance>", "<eos>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~[", "<|fim_pad|>", "<fim-pad>",
        "<fim_pad>", "<PAD>", "[PAD]", "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>",
        "<|file_sep|>",
    }
)  # fmt: skip
KEYS = ("eos", "eot", "eom", "fim_pad", "fim_repository", "fim_separator")


def end_of_generation_ids(
    texts: Sequence[str], kinds: Sequence[int], special_ids: Mapping[str, int], end_ids: Sequence[int] = ()
) -> frozenset[int]:
    """Return the ids that end an answer: those the file names, and control or user-defined tokens with known names.

    In the harmony and solar formats ``<|end|>`` only ends a part of an answer, so it is not included.
    """
    found = {special_ids[key] for key in KEYS if key in special_ids}
    marked = frozenset({TokenKind.CONTROL, TokenKind.USER_DEFINED})
    ids = [id for id, kind in enumerate(kinds) if kind in marked]
    names = {text: id for text, id in zip(picked(texts, ids), ids, strict=True) if text in NAMES}
    found.update(names.values())
    harmony, solar = {"<|return|>", "<|call|>"}, {"<|calls|>", "<|flush|>"}
    if "<|end|>" in names and (harmony <= names.keys() or solar <= names.keys()):
        found.discard(names["<|end|>"])
    found.update(end_ids)
    return frozenset(found)
