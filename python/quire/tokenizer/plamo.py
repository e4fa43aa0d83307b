"""Read PLaMo's ``tokenizer.jsonl``: a token in each line, an array of text, score, type and more."""

from __future__ import annotations

import json
import math
from pathlib import Path

from quire.errors import LoadError
from quire.tokenizer.vocabulary import Family, TokenKind, Vocabulary

__all__ = ["read_jsonl"]

KINDS = {"UNKNOWN": TokenKind.UNKNOWN, "CONTROL": TokenKind.CONTROL, "BYTE": TokenKind.BYTE}
MARK = "<|plamo:"  # begins control tokens, whose type may be NORMAL
TURN_END = "<|plamo:op|>"


def read_jsonl(path: Path) -> Vocabulary:
    """Return the vocabulary.  Raises LoadError."""
    texts: list[str] = []
    kinds: list[TokenKind] = []
    scores: list[float] = []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise LoadError(f"[tokenizer] {path.name} is not UTF-8") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        text, score, kind = _entry(line, f"{path.name}, line {number}")
        is_mark = text.startswith(MARK) and text.endswith("|>")
        texts.append(text)
        scores.append(score)
        kinds.append(KINDS.get(kind, TokenKind.CONTROL if is_mark else TokenKind.NORMAL))
    ends = {"eot": texts.index(TURN_END)} if TURN_END in texts else {}
    return Vocabulary(texts, kinds, family=Family.LEAST_COST, scores=scores, special_ids=ends)


def _entry(line: str, where: str) -> tuple[str, float, str]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise LoadError(f"[tokenizer] {where} is not valid JSON: {error}") from error
    if not isinstance(entry, list) or len(entry) < 2 or not isinstance(entry[0], str):
        raise LoadError(f"[tokenizer] {where} is {line!r:.80}: expected an array of a text, a score and a type")
    text, score, kind = entry[0], entry[1], entry[2] if len(entry) > 2 else "NORMAL"
    if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
        raise LoadError(f"[tokenizer] {where}: the score is {score!r:.40}: expected a number")
    return text, float(score), str(kind)
