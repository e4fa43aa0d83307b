"""One interface to the native encoders of all families: text, segments and bytes."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Protocol

from quire._tokenizer.bpe import BytePairEncoder
from quire._tokenizer.pieces import PieceEncoder
from quire._tokenizer.pretokenize import Splitter
from quire.errors import LoadError, RequestError
from quire.tokenizer.marks import unknown_id_of
from quire.tokenizer.vocabulary import BYTES, SCORED, WORD_END, Family, Normalization, TokenKind, Vocabulary
from quire.tokenizer.word_pieces import shown_word_piece

__all__ = ["Encoder", "encoder_of"]

WRITTEN_SPACE = "\u2581"


class Encoder(Protocol):
    """Converts text to ids and ids to bytes, without adding tokens before or after a text."""

    strips_first_space: bool
    """True if decoding removes the space that encoding put before the text."""

    def encode(self, text: str | bytes, parse_special: bool) -> list[int]:
        """Return the ids of a text.  Raises RequestError for a str with lone surrogates."""
        ...

    def encode_segments(self, parts: Sequence[tuple[str, bool]]) -> list[int]:
        """Return the ids of joined (text, is_template) pairs, with control tokens only in template text."""
        ...

    def decode(self, ids: Iterable[int], skip_special: bool) -> bytes:
        """Return the bytes of ids.  Raises RequestError for an id outside the vocabulary."""
        ...

    def token_bytes(self, id: int) -> bytes:
        """Return the bytes of a token; a control token's are its name."""
        ...


def encoder_of(vocabulary: Vocabulary) -> Encoder:
    """Return the encoder of a vocabulary's family.  Raises LoadError if the vocabulary is inconsistent."""
    if vocabulary.family is Family.BYTE_PAIR:
        return EndedWords(vocabulary) if vocabulary.pre_tokenizer.ends_words else BytePairs(vocabulary)
    cases = vocabulary.family is Family.WORD_PIECE or (
        vocabulary.family is Family.CHARACTER_PAIR and vocabulary.case.lowercase
    )
    return CasedPieces(vocabulary) if cases else Pieces(vocabulary)


class BytePairs:
    """Byte-level byte-pair encoding, with NFC before it if the vocabulary asks for it."""

    strips_first_space = False

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._is_nfc = vocabulary.normalization is Normalization.NFC
        self._native = BytePairEncoder(
            vocabulary.texts,
            vocabulary.kinds,
            vocabulary.merges,
            passes=vocabulary.pre_tokenizer.passes,
            ignore_merges=vocabulary.pre_tokenizer.ignore_merges,
            unknown_id=unknown_id_of(vocabulary),
            added=vocabulary.added,
        )

    def encode(self, text: str | bytes, parse_special: bool) -> list[int]:
        """Match added tokens of the first stage in the original text, everything else after normalization."""
        if not self._is_nfc or isinstance(text, bytes) or unicodedata.is_normalized("NFC", text):
            return self._native.encode(text, parse_special)
        ids: list[int] = []
        for part in self._native.split_added(text, parse_special):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += self._native.encode(unicodedata.normalize("NFC", part), parse_special, normalized=True)
        return ids

    def encode_segments(self, parts: Sequence[tuple[str, bool]]) -> list[int]:
        """Encode segments, normalizing each part separately."""
        if self._is_nfc:
            parts = [(unicodedata.normalize("NFC", text), is_template) for text, is_template in parts]
        return self._native.encode_segments(parts)

    def decode(self, ids: Iterable[int], skip_special: bool) -> bytes:
        """Return the bytes of ids."""
        return self._native.decode(ids, skip_special)

    def token_bytes(self, id: int) -> bytes:
        """Return the bytes of a token."""
        return self._native.token_bytes(id)


class EndedWords:
    """CLIP's byte-pair encoding, in which the last token of a word ends with ``</w>``.

    Native code joins bytes, so a byte that is in no UTF-8 text stands for the end of a word.  Merges of this byte with
    the one before come first, as the reference begins with a last byte that has its end.
    """

    strips_first_space = False
    END, END_BYTE = "\u00ff", b"\xff"

    def __init__(self, vocabulary: Vocabulary) -> None:
        texts = [
            self._ended(text) if kind == TokenKind.NORMAL else text
            for text, kind in zip(vocabulary.texts, vocabulary.kinds, strict=True)
        ]
        merges = [f"{byte} {self.END}" for byte in sorted(BYTES)] + [self._ended(merge) for merge in vocabulary.merges]
        self._words = Splitter(vocabulary.pre_tokenizer.passes)
        self._native = BytePairEncoder(texts, vocabulary.kinds, merges, passes=(), added=vocabulary.added)

    def _ended(self, text: str) -> str:
        return text.removesuffix(WORD_END) + self.END if text.endswith(WORD_END) else text

    def encode(self, text: str | bytes, parse_special: bool) -> list[int]:
        """Return the ids of a text; invalid UTF-8 becomes U+FFFD."""
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        return self._joined(self._native.split_added(text, parse_special))

    def encode_segments(self, parts: Sequence[tuple[str, bool]]) -> list[int]:
        """Encode segments one by one."""
        return [id for text, is_template in parts for id in self.encode(text, is_template)]

    def _joined(self, parts: Iterable[str | int]) -> list[int]:
        ids: list[int] = []
        for part in parts:
            if isinstance(part, int):
                ids.append(part)
                continue
            for word in self._words.split(lowercased(unicodedata.normalize("NFC", part))):
                ids += self._native.encode(word + self.END_BYTE, normalized=True)
        return ids

    def decode(self, ids: Iterable[int], skip_special: bool) -> bytes:
        """Return the bytes of ids, with a space between words."""
        return self._native.decode(ids, skip_special).replace(self.END_BYTE, b" ").strip()

    def token_bytes(self, id: int) -> bytes:
        """Return the bytes of a token, with a space for the end of a word."""
        return self._native.token_bytes(id).replace(self.END_BYTE, b" ")


def lowercased(text: str) -> str:
    """Return a text in lower case.  The published lowercasing works on single characters: it has no final sigma."""
    return text.replace("\u03a3", "\u03c3").lower()


class Pieces:
    """The families whose tokens are pieces of text: all except byte-level byte-pair encoding."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        family = vocabulary.family
        has_scores = family in SCORED
        self.strips_first_space = vocabulary.spaces.prefix != "none" or family is Family.WORD_PIECE
        self._native = PieceEncoder(
            family.value,
            self._matched(),
            vocabulary.kinds,
            vocabulary.scores if has_scores else [0.0] * len(vocabulary.texts),
            texts=vocabulary.texts,
            spaces=vocabulary.spaces,
            character_map=vocabulary.character_map,
            unknown_id=unknown_id_of(vocabulary),
            added=vocabulary.added,
            drops_marks=family is Family.WORD_PIECE and vocabulary.case.strip_accents,
            merges=vocabulary.merges,
            pre_tokenizer=vocabulary.pre_tokenizer if family is Family.CHARACTER_PAIR else None,
        )

    def _matched(self) -> Sequence[str | bytes]:
        vocabulary = self._vocabulary
        if vocabulary.family is Family.LONGEST_MATCH:
            return [
                unescaped(text) if kind == TokenKind.NORMAL else text
                for text, kind in zip(vocabulary.texts, vocabulary.kinds, strict=True)
            ]
        if not vocabulary.spaces.write_spaces or TokenKind.USER_DEFINED not in set(vocabulary.kinds):
            return vocabulary.texts
        return [
            text.replace(" ", WRITTEN_SPACE) if kind == TokenKind.USER_DEFINED else text
            for text, kind in zip(vocabulary.texts, vocabulary.kinds, strict=True)
        ]

    def encode(self, text: str | bytes, parse_special: bool) -> list[int]:
        """The ids of a text."""
        return self._native.encode(text, parse_special)

    def encode_segments(self, parts: Sequence[tuple[str, bool]]) -> list[int]:
        """The ids of the joined text."""
        return self._native.encode_segments(parts)

    def decode(self, ids: Iterable[int], skip_special: bool) -> bytes:
        """Return the bytes of ids, without the space that encoding put in front."""
        table = self._shown
        skipped = self._special if skip_special else frozenset[int]()
        parts = []
        for id in ids:
            if not 0 <= id < len(table):
                raise RequestError(f"[tokenizer] token id {id} is out of range: the vocabulary has {len(table)} tokens")
            if id not in skipped:
                parts.append(table[id])
        data = b"".join(parts)
        return data[1:] if self.strips_first_space and data.startswith(b" ") else data

    def token_bytes(self, id: int) -> bytes:
        """Return the bytes of a token, with its spaces."""
        return self._shown[id]

    @cached_property
    def _special(self) -> frozenset[int]:
        marked = (TokenKind.CONTROL, TokenKind.UNKNOWN)
        return frozenset(id for id, kind in enumerate(self._vocabulary.kinds) if kind in marked)

    @cached_property
    def _shown(self) -> list[bytes]:
        vocabulary = self._vocabulary
        if vocabulary.family is Family.LONGEST_MATCH:
            return [text if isinstance(text, bytes) else text.encode() for text in self._matched()]
        is_words = vocabulary.family is Family.WORD_PIECE
        table = []
        for text, kind in zip(vocabulary.texts, vocabulary.kinds, strict=True):
            if kind == TokenKind.BYTE:
                table.append(bytes([int(text[3:5], 16)]))
            elif kind in (TokenKind.CONTROL, TokenKind.UNKNOWN):
                table.append(text.encode())
            elif is_words and kind == TokenKind.NORMAL:
                table.append(shown_word_piece(text).encode())
            else:
                is_plain = vocabulary.family is Family.LEAST_COST
                table.append((text if is_plain else text.replace(WRITTEN_SPACE, " ")).encode())
        return table


class CasedPieces(Pieces):
    """Pieces after lowercasing and, for BERT, perhaps stripping accents."""

    def encode(self, text: str | bytes, parse_special: bool) -> list[int]:
        """Return the ids of a text; invalid UTF-8 becomes U+FFFD, which BERT drops."""
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        return self._normalized(self._native.split_added([(text, True)], parse_special))

    def encode_segments(self, parts: Sequence[tuple[str, bool]]) -> list[int]:
        """The ids of the joined text."""
        return self._normalized(self._native.split_added(parts, True))

    def _normalized(self, parts: Iterable[str | int]) -> list[int]:
        ids: list[int] = []
        for part in parts:
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += self._native.encode(self._cased(part).encode("utf-8"))
        return ids

    def _cased(self, text: str) -> str:
        case = self._vocabulary.case
        if case.strip_accents and not text.isascii():
            text = unicodedata.normalize("NFD", text)
        return lowercased(text) if case.lowercase else text


SIMPLE_ESCAPES = {"t": b"\t", "n": b"\n", "r": b"\r"}


def unescaped(text: str) -> bytes:
    """Return the bytes of a token in the form of RWKV's GGUF files.  Raises LoadError for an incomplete escape."""
    out = bytearray()
    at = 0
    while (slash := text.find("\\", at)) >= 0:
        out += text[at:slash].encode()
        kind, digits = text[slash + 1 : slash + 2], text[slash + 2 : slash + 4]
        at = slash + 2
        if kind == "x":
            if len(digits) != 2 or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
                raise LoadError(f"[tokenizer] \\x without two hexadecimal digits in the token {text!r}")
            out.append(int(digits, 16))
            at += 2
        elif not kind:
            raise LoadError(f"[tokenizer] the token {text!r} ends with a backslash")
        else:
            out += SIMPLE_ESCAPES.get(kind) or kind.encode()
    return bytes(out + text[at:].encode())
