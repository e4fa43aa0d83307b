"""Read Mistral's ``tekken.json``: byte-pair encoding whose merges follow from the ranks of its tokens.

Source: mistral-common, whose control tokens come first and are never found in text.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from pathlib import Path

from quire.errors import LoadError
from quire.tokenizer.json_file import read_object
from quire.tokenizer.mistral_chat import mistral_template
from quire.tokenizer.pretokenizers import Pass, PreTokenizer
from quire.tokenizer.vocabulary import PRINTED, AddedTokenRule, TokenKind, Vocabulary

__all__ = ["TEKKEN", "read_tekken", "special_texts"]

TEKKEN = "tekken.json"
# The control tokens of files that do not list them, which are of version 7 or before.
_EARLY = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]",
    "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
)  # fmt: skip
_SPECIAL_IDS = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "pad": "<pad>"}
_MOST_TOKENS, _MOST_MARKS = 1 << 24, 1 << 16
_LONGEST = 4096  # bytes of a token: each of its cuts is tried


def read_tekken(path: Path) -> Vocabulary:
    """Read the vocabulary of a ``tekken.json``.  Raises LoadError for a malformed file."""
    values = read_object(path)
    config = _config(values)
    marks = _marks(values, config)
    n = _count(config, "default_vocab_size") - len(marks)
    words = _words(values, n)
    texts = [*marks, *map(_written, words)]
    pattern = config.get("pattern")
    if not isinstance(pattern, str):
        raise LoadError(f"[tokenizer] {TEKKEN}: pattern is {pattern!r:.40}: expected a regular expression")
    template = mistral_template(str(config.get("version")), marks)
    special_ids = {name: marks.index(text) for name, text in _SPECIAL_IDS.items() if text in marks}
    return Vocabulary(
        texts=texts,
        kinds=[TokenKind.CONTROL] * len(marks) + [TokenKind.NORMAL] * n,
        merges=_merges(words),
        pre_tokenizer=PreTokenizer((Pass(pattern),), ignore_merges=True),
        special_ids=special_ids,
        prefix_ids=(special_ids["bos"],) if "bos" in special_ids else (),
        added=tuple(AddedTokenRule(id) for id in range(len(marks))),
        chat_templates={} if template is None else {"default": template},
    )


def special_texts(path: Path) -> list[str]:
    """Return the texts of the control tokens by id."""
    values = read_object(path)
    return _marks(values, _config(values))


def _config(values: Mapping[str, object]) -> Mapping[str, object]:
    config = values.get("config")
    if not isinstance(config, dict):
        raise LoadError(f"[tokenizer] {TEKKEN}: config is {type(config).__name__}: expected an object")
    return config


def _count(config: Mapping[str, object], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < _MOST_TOKENS:
        raise LoadError(f"[tokenizer] {TEKKEN}: {name} is {value!r:.40}: expected 1 to 2^24 - 1")
    return value


def _marks(values: Mapping[str, object], config: Mapping[str, object]) -> list[str]:
    """Return the texts of the control tokens, with fillers for ids without one."""
    n, listed = _count(config, "default_num_special_tokens"), values.get("special_tokens")
    if n > _MOST_MARKS:  # before there is a filler for each
        raise LoadError(f"[tokenizer] {TEKKEN}: default_num_special_tokens is {n}: expected at most {_MOST_MARKS}")
    if listed is None:
        marks: list[object] = list(_EARLY[:n])
    elif isinstance(listed, list) and all(isinstance(entry, dict) for entry in listed):
        by_rank = sorted(listed, key=lambda entry: int(entry["rank"]) if isinstance(entry.get("rank"), int) else -1)
        if [entry.get("rank") for entry in by_rank] != list(range(len(by_rank))):
            raise LoadError(f"[tokenizer] {TEKKEN}: the ranks of special_tokens are not 0 to {len(by_rank) - 1}")
        marks = [entry.get("token_str") for entry in by_rank]
    else:
        raise LoadError(f"[tokenizer] {TEKKEN}: special_tokens is not a list of objects")
    texts = [text if isinstance(text, str) and text else f"<SPECIAL_{id}>" for id, text in enumerate(marks)]
    texts += [f"<SPECIAL_{id}>" for id in range(len(texts), n)]
    if len(texts) != n or len(set(texts)) != n or len(marks) > n:
        raise LoadError(f"[tokenizer] {TEKKEN}: special_tokens are not at most {n} different texts")
    return texts


def _words(values: Mapping[str, object], n: int) -> list[bytes]:
    """Return the bytes of the ``n`` other tokens; files have more, which models lack."""
    entries = values.get("vocab")
    if not isinstance(entries, list) or not 256 <= n <= len(entries):
        raise LoadError(f"[tokenizer] {TEKKEN}: vocab does not list the {n} tokens of default_vocab_size")
    words = []
    for rank, entry in enumerate(entries[:n]):
        text = entry.get("token_bytes") if isinstance(entry, dict) else None
        if not isinstance(text, str) or entry.get("rank") != rank:
            raise LoadError(f"[tokenizer] {TEKKEN}: token {rank} of vocab has no bytes or another rank")
        try:
            words.append(base64.b64decode(text, validate=True))
        except (binascii.Error, ValueError):
            raise LoadError(f"[tokenizer] {TEKKEN}: the bytes of token {rank} are not base64") from None
        if len(words[-1]) > _LONGEST:
            raise LoadError(
                f"[tokenizer] {TEKKEN}: token {rank} has {len(words[-1])} bytes: expected at most {_LONGEST}"
            )
    if len(set(words)) != n or {*words[:256]} != {bytes([byte]) for byte in range(256)}:
        raise LoadError(f"[tokenizer] {TEKKEN}: vocab does not begin with all bytes, or has a token twice")
    return words


def _alphabet() -> dict[int, str]:
    """Return the character of each byte in GPT-2's alphabet."""
    others = (byte for byte in range(256) if byte not in PRINTED)
    return {**{byte: chr(byte) for byte in PRINTED}, **{byte: chr(0x100 + i) for i, byte in enumerate(others)}}


_CHARACTERS = "".join(text for _, text in sorted(_alphabet().items()))


def _written(word: bytes) -> str:
    return word.decode("latin-1").translate(_TABLE)


_TABLE = {byte: _CHARACTERS[byte] for byte in range(256)}


def _merges(words: Sequence[bytes]) -> list[str]:
    """Return every pair of tokens that makes another one, in the order of the tokens that they make."""
    ranks = {word: rank for rank, word in enumerate(words)}
    merges = []
    for word in words:
        pairs = []
        for at in range(1, len(word)):
            left, right = ranks.get(word[:at]), ranks.get(word[at:])
            if left is not None and right is not None:
                pairs.append((left, right))
        merges += [f"{_written(words[left])} {_written(words[right])}" for left, right in sorted(pairs)]
    return merges
