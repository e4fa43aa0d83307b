"""The vocabulary of a tokenizer, independent of its source."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from quire.errors import LoadError, UnsupportedError
from quire.tokenizer.pretokenizers import Alphabet, PreTokenizer, gguf_name, named

__all__ = ["AddedTokenRule", "CaseRules", "Family", "Normalization", "SpaceRules", "TokenKind", "Vocabulary"]


class TokenKind(enum.IntEnum):
    """Types of tokens, with the numbers of GGUF's ``tokenizer.ggml.token_type``."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Family(enum.Enum):
    """The algorithm that turns text into tokens, by GGUF's ``tokenizer.ggml.model``."""

    BYTE_PAIR = "gpt2"
    SCORED_PAIR = "llama"  # SentencePiece's byte-pair encoding
    CHARACTER_PAIR = "gemma4"  # listed merges as in BYTE_PAIR, over characters
    UNIGRAM = "t5"
    WORD_PIECE = "bert"
    LONGEST_MATCH = "rwkv"
    LEAST_COST = "plamo2"  # PLaMo's unigram model with whole scores


SCORED = (Family.SCORED_PAIR, Family.UNIGRAM, Family.LEAST_COST)
"""Families whose tokens have scores."""


class Normalization(enum.Enum):
    """The normalization of a text before it is split into words."""

    NONE = "none"
    NFC = "nfc"


@dataclass(frozen=True)
class SpaceRules:
    """SentencePiece's treatment of spaces before tokenization.

    Attributes:
        prefix: The stretches of text between added tokens that get a space in front: "none", "first" or "every".
        suffix: Append a space to every stretch.
        merge_extra: Remove spaces at both ends, and all but one of a run.
        write_spaces: Write spaces as U+2581.
        prefix_once: Add no space in front of text that starts with one.
    """

    prefix: str = "none"
    suffix: bool = False
    merge_extra: bool = False
    write_spaces: bool = False
    prefix_once: bool = False


@dataclass(frozen=True)
class CaseRules:
    """BERT's treatment of letters: lowercasing, and stripping accents."""

    lowercase: bool = True
    strip_accents: bool = True


@dataclass(frozen=True)
class AddedTokenRule:
    """The options of an added token (Hugging Face's ``AddedToken``)."""

    id: int
    left_strip: bool = False
    right_strip: bool = False
    single_word: bool = False
    normalized: bool = False


# The names of special ids, and GGUF's keys for them.
SPECIAL_KEYS = {
    "bos": "tokenizer.ggml.bos_token_id",
    "eos": "tokenizer.ggml.eos_token_id",
    "eot": "tokenizer.ggml.eot_token_id",
    "eom": "tokenizer.ggml.eom_token_id",
    "unk": "tokenizer.ggml.unknown_token_id",
    "sep": "tokenizer.ggml.seperator_token_id",  # the format's own spelling
    "pad": "tokenizer.ggml.padding_token_id",
    "mask": "tokenizer.ggml.mask_token_id",
    "cls": "tokenizer.ggml.cls_token_id",
    "fim_prefix": "tokenizer.ggml.fim_pre_token_id",
    "fim_suffix": "tokenizer.ggml.fim_suf_token_id",
    "fim_middle": "tokenizer.ggml.fim_mid_token_id",
    "fim_pad": "tokenizer.ggml.fim_pad_token_id",
    "fim_repository": "tokenizer.ggml.fim_rep_token_id",
    "fim_separator": "tokenizer.ggml.fim_sep_token_id",
}


SPACE_PREFIX = "tokenizer.quire.space_prefix"
"""Quire's own key for the stretches of text that get a space in front, if that is not every one."""

END_IDS = "tokenizer.quire.end_ids"
"""Quire's own key for tokens that end an answer and have no key in GGUF."""

BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")
"""The form of byte tokens in families over characters."""

# The alphabet of byte-level byte-pair encoding (Radford et al. 2019): bytes that do not print are U+0100 and on.
PRINTED = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
BYTES = {chr(byte) for byte in PRINTED} | {chr(0x100 + i) for i in range(256 - len(PRINTED))}

WORD_END = "</w>"
"""The end of a word's last token, in CLIP's vocabulary."""

NO_PRE_TOKENIZER = PreTokenizer(())


@dataclass(frozen=True)
class Vocabulary:
    """A vocabulary and its rules.

    Invariants: ``texts``, ``kinds`` and, if the family has them, ``scores`` have the same length; all ids are below it.

    Attributes:
        texts: Texts by id in GGUF's form: in GPT-2's byte alphabet (byte-pair encoding), with U+2581 for spaces
            (SentencePiece) or before tokens that start words (WordPiece), with backslashes (RWKV).  Added tokens are
            literal.
        end_ids: Tokens that end an answer and are not known to do so otherwise.
        merges, pre_tokenizer: For byte-pair encoding.
        scores, character_map: For SentencePiece's models.
        spaces: For SentencePiece's models and byte-pair encoding over characters.
        case: For byte-pair encoding over characters and WordPiece.
        doubles_separator: True if a pair has two separators between its texts; None if unknown.
    """

    texts: Sequence[str]
    kinds: Sequence[int]
    merges: Sequence[str] = ()
    pre_tokenizer: PreTokenizer = NO_PRE_TOKENIZER
    special_ids: Mapping[str, int] = field(default_factory=dict)
    prefix_ids: tuple[int, ...] = ()
    suffix_ids: tuple[int, ...] = ()
    end_ids: tuple[int, ...] = ()
    added: tuple[AddedTokenRule, ...] = ()
    normalization: Normalization = Normalization.NONE
    chat_templates: Mapping[str, str] = field(default_factory=dict)
    family: Family = Family.BYTE_PAIR
    scores: Sequence[float] = ()
    spaces: SpaceRules = field(default_factory=SpaceRules)
    character_map: bytes = b""
    case: CaseRules = field(default_factory=CaseRules)
    doubles_separator: bool | None = None

    def __post_init__(self) -> None:
        n = len(self.texts)
        if len(self.kinds) != n:
            raise LoadError(f"[tokenizer] token_type has {len(self.kinds)} entries for {n} tokens: give one per token")
        places = [*self.special_ids.items(), *(("bos or eos", id) for id in (*self.prefix_ids, *self.suffix_ids))]
        places += [("added", rule.id) for rule in self.added] + [("end", id) for id in self.end_ids]
        for name, id in places:
            if not 0 <= id < n:
                raise LoadError(f"[tokenizer] the {name} token is {id}: the vocabulary has {n} tokens")

    def gguf_metadata(self) -> dict[str, object]:
        """Return the vocabulary as GGUF keys and values (lists of str and int, bool, int, str) for a writer.

        Raises:
            UnsupportedError: GGUF has no name for the pre-tokenizer, or no keys for the tokens before and after a text.
        """
        if (other := self._ended_as_texts()) is not self:
            return other.gguf_metadata()
        metadata: dict[str, object] = {
            "tokenizer.ggml.model": self.family.value,
            "tokenizer.ggml.pre": "default",
            "tokenizer.ggml.tokens": list(self.texts),
            "tokenizer.ggml.token_type": [int(kind) for kind in self.kinds],
        }
        metadata.update(self._family_metadata())
        metadata.update((SPECIAL_KEYS[name], id) for name, id in self.special_ids.items())
        metadata.update(self._end_metadata())
        metadata.update(self._around_metadata())
        for name, source in self.chat_templates.items():
            key = "tokenizer.chat_template" if name == "default" else f"tokenizer.chat_template.{name}"
            metadata[key] = source
        return metadata

    def _ended_as_texts(self) -> Vocabulary:
        """Make the token after a text the end of sequence, as GGUF has no other, and the previous one an end id."""
        eos = self.special_ids.get("eos")
        if self.family is Family.WORD_PIECE or len(self.suffix_ids) != 1 or eos in (None, self.suffix_ids[0]):
            return self
        assert eos is not None
        ids = {**self.special_ids, "eos": self.suffix_ids[0]}
        return replace(self, special_ids=ids, end_ids=(*self.end_ids, eos))

    def _end_metadata(self) -> dict[str, object]:
        """Return the end ids under Quire's own key, and under the unused keys of other engines."""
        free = [name for name in ("eot", "eom") if name not in self.special_ids]
        found: dict[str, object] = {SPECIAL_KEYS[name]: id for name, id in zip(free, self.end_ids, strict=False)}
        return found | {END_IDS: list(self.end_ids)} if self.end_ids else found

    def _around_metadata(self) -> dict[str, object]:
        """Return the keys for adding a token before and after a text."""
        is_words = self.family is Family.WORD_PIECE
        first, last, key = ("cls", "sep", "add_sep_token") if is_words else ("bos", "eos", "add_eos_token")
        ids = self.special_ids
        before = first in ids and self.prefix_ids == (ids[first],)
        after = last in ids and self.suffix_ids == (ids[last],)
        if (self.prefix_ids and not before) or (self.suffix_ids and not after):
            raise UnsupportedError(
                f"[tokenizer] GGUF has no keys for the tokens {self.prefix_ids} before and {self.suffix_ids} after a "
                f"text, only for {first} and {last}"
            )
        found: dict[str, object] = {"tokenizer.ggml.add_bos_token": before, f"tokenizer.ggml.{key}": after}
        if not is_words and after and self.doubles_separator is not None:
            found["tokenizer.ggml.add_sep_token"] = self.doubles_separator  # a second one between the texts of a pair
        if is_words and before and "bos" not in ids:
            found[SPECIAL_KEYS["bos"]] = ids[first]  # other engines look for it there
        return found

    def _family_metadata(self) -> dict[str, object]:
        if self.family is Family.BYTE_PAIR:
            return {"tokenizer.ggml.pre": gguf_name(self.pre_tokenizer), "tokenizer.ggml.merges": list(self.merges)}
        if self.family is Family.CHARACTER_PAIR:
            return self._character_pair_metadata()
        if self.family is Family.WORD_PIECE:
            return {
                "tokenizer.ggml.normalizer.lowercase": self.case.lowercase,
                "tokenizer.ggml.normalizer.strip_accents": self.case.strip_accents,
            }
        if self.family is Family.LONGEST_MATCH:
            return {}
        found: dict[str, object] = {
            "tokenizer.ggml.scores": [float(score) for score in self.scores],
            "tokenizer.ggml.add_space_prefix": self.spaces.prefix != "none",
            "tokenizer.ggml.remove_extra_whitespaces": self.spaces.merge_extra,
        }
        written = "first" if self.spaces.prefix == "first" else "every"
        if self.spaces.prefix != "none" and (written == "first" or self.spaces.prefix_once):
            found[SPACE_PREFIX] = f"{written}-once" if self.spaces.prefix_once else written
        if self.spaces.suffix:
            raise UnsupportedError("[tokenizer] GGUF has no key for a space after a text")
        if self.character_map:
            found["tokenizer.ggml.precompiled_charsmap"] = self.character_map
        return found

    def _character_pair_metadata(self) -> dict[str, object]:
        """Return keys with the name of an equivalent pre-tokenizer; the ones in GGUF split at line feeds."""
        if self.spaces != SpaceRules(write_spaces=self.spaces.write_spaces):
            raise UnsupportedError("[tokenizer] GGUF has no key for spaces added before merging")
        splitting, merges = self.pre_tokenizer, list(self.merges)
        if not splitting.passes and not any(joins_lines(merge) for merge in merges):
            splitting = named("sarvam-moe")
            adds_bos = self.prefix_ids == (self.special_ids.get("bos"),)
            if adds_bos and newlines_make_themselves(self.texts, merges):
                splitting = named("gemma4")
        splitting = replace(splitting, alphabet=Alphabet.CHARACTERS, write_spaces=self.spaces.write_spaces)
        name = gguf_name(splitting)
        return {
            "tokenizer.ggml.model": name if name in ("gemma4", "whitespace") else Family.BYTE_PAIR.value,
            "tokenizer.ggml.pre": name,
            "tokenizer.ggml.normalizer.lowercase": self.case.lowercase,
            "tokenizer.ggml.merges": merges,
        }


def joins_lines(merge: str) -> bool:
    """Return True if a merge joins a line feed with something else."""
    return 0 < merge.count("\n") < len(merge) - 1


def newlines_make_themselves(texts: Sequence[str], merges: Sequence[str]) -> bool:
    """Return True if merges produce every token that consists of line feeds."""
    ranks: dict[tuple[int, int], int] = {}
    for rank, merge in enumerate(merges):
        left, _, right = merge.partition(" ")
        if left and right and not (left + right).strip("\n"):
            ranks.setdefault((len(left), len(right)), rank)
    for n in {len(text) for text in texts if text and not text.strip("\n")}:
        sizes = [1] * n
        while len(sizes) > 1:
            pairs = [(ranks.get(pair, len(merges)), at) for at, pair in enumerate(pairwise(sizes))]
            rank, at = min(pairs)
            if rank == len(merges):
                return False
            sizes[at : at + 2] = [sizes[at] + sizes[at + 1]]
    return True
