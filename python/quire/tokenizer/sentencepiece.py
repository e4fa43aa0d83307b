"""Read vocabularies from SentencePiece's ``tokenizer.model``, a Protocol Buffers message.

Source: sentencepiece_model.proto of the SentencePiece project (field numbers and defaults).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from quire.errors import LoadError, UnsupportedError
from quire.tokenizer.vocabulary import Family, SpaceRules, TokenKind, Vocabulary

__all__ = ["read_sentencepiece"]

Value: TypeAlias = "int | bytes"

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
UNIGRAM, BPE = 1, 2
# Field numbers.
PIECES, TRAINER, NORMALIZER = 1, 2, 3
TEXT, SCORE, KIND = 1, 2, 3
MODEL_TYPE, SUFFIXED, UNK_ID, BOS_ID, EOS_ID, PAD_ID = 3, 24, 40, 41, 42, 43
CHARACTER_MAP, ADD_PREFIX, REMOVE_EXTRA, ESCAPE = 2, 3, 4, 5


def read_sentencepiece(path: Path) -> Vocabulary:
    """Read the vocabulary of a SentencePiece model, byte-pair or unigram.

    Raises:
        LoadError: The file is malformed.
        UnsupportedError: It is another kind of model.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LoadError(f"[tokenizer] cannot read {path}: {error.strerror}") from error
    texts: list[str] = []
    scores: list[float] = []
    kinds: list[int] = []
    trainer: dict[int, Value] = {}
    normalizer: dict[int, Value] = {}
    for field, value in _fields(data):
        if field == PIECES:
            text, score, kind = _piece(_message(value, "a piece"), len(texts))
            texts.append(text)
            scores.append(score)
            kinds.append(kind)
        elif field == TRAINER:
            trainer.update(_message(value, "trainer_spec"))
        elif field == NORMALIZER:
            normalizer.update(_message(value, "normalizer_spec"))
    if not texts:
        raise LoadError(f"[tokenizer] no pieces in {path}")
    special_ids = _special_ids(trainer, len(texts))
    return Vocabulary(
        texts=texts,
        kinds=kinds,
        scores=scores,
        family=_family(trainer),
        special_ids=special_ids,
        spaces=_spaces(trainer, normalizer),
        character_map=_bytes(normalizer.get(CHARACTER_MAP, b""), "precompiled_charsmap"),
    )


def _bad(what: str) -> LoadError:
    return LoadError(f"[tokenizer] malformed tokenizer.model: {what}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        if at >= len(data):
            break
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
    raise _bad(f"an unterminated number at byte {at}")


def _fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """Yield field numbers and values of a message, in order."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        field, kind = tag >> 3, tag & 7
        if field == 0:
            raise _bad(f"field 0 at byte {at}")
        if kind == VARINT:
            number, at = _varint(data, at)
            yield field, number
            continue
        if kind == BYTES:
            size, at = _varint(data, at)
        elif kind in (FIXED32, FIXED64):
            size = 4 if kind == FIXED32 else 8
        else:
            raise _bad(f"a field of kind {kind} at byte {at}")
        if size > len(data) - at:
            raise _bad(f"truncated in field {field}")
        yield field, data[at : at + size]
        at += size


def _message(value: Value, what: str) -> dict[int, Value]:
    """Return the last value of each field, which is the valid one."""
    return dict(_fields(_bytes(value, what)))


def _bytes(value: Value, what: str) -> bytes:
    if not isinstance(value, bytes):
        raise _bad(f"{what} is a number")
    return value


def _number(fields: dict[int, Value], field: int, default: int) -> int:
    value = fields.get(field, default)
    if not isinstance(value, int):
        raise _bad(f"field {field} is not a number")
    return value - (1 << 64) if value >> 63 else value


def _piece(fields: dict[int, Value], id: int) -> tuple[str, float, int]:
    try:
        text = _bytes(fields.get(TEXT, b""), "a text").decode("utf-8")
    except UnicodeDecodeError:
        raise _bad(f"the text of piece {id} is not UTF-8") from None
    packed = _bytes(fields.get(SCORE, b"\0\0\0\0"), "a score")
    if len(packed) != 4:
        raise _bad(f"the score of piece {id} has {len(packed)} bytes")
    kind = _number(fields, KIND, TokenKind.NORMAL)
    if kind not in set(TokenKind):
        raise _bad(f"the type of piece {id} is {kind}")
    return text, struct.unpack("<f", packed)[0], kind


def _family(trainer: dict[int, Value]) -> Family:
    kind = _number(trainer, MODEL_TYPE, UNIGRAM)
    families = {UNIGRAM: Family.UNIGRAM, BPE: Family.SCORED_PAIR}
    if kind not in families:
        name = {3: "word", 4: "char"}.get(kind, str(kind))
        raise UnsupportedError(f"[tokenizer] tokenizer.model: unsupported model_type {name}: use unigram or bpe")
    return families[kind]


def _special_ids(trainer: dict[int, Value], n: int) -> dict[str, int]:
    found = {}
    for name, field, default in (("unk", UNK_ID, 0), ("bos", BOS_ID, 1), ("eos", EOS_ID, 2), ("pad", PAD_ID, -1)):
        id = _number(trainer, field, default)
        if id >= n:
            raise _bad(f"{name}_id is {id}, and there are {n} pieces")
        if id >= 0:
            found[name] = id
    return found


def _spaces(trainer: dict[int, Value], normalizer: dict[int, Value]) -> SpaceRules:
    prefixed = bool(_number(normalizer, ADD_PREFIX, 1))
    suffixed = bool(_number(trainer, SUFFIXED, 0))
    return SpaceRules(
        prefix="every" if prefixed and not suffixed else "none",
        suffix=prefixed and suffixed,
        merge_extra=bool(_number(normalizer, REMOVE_EXTRA, 1)),
        write_spaces=bool(_number(normalizer, ESCAPE, 1)),
    )
