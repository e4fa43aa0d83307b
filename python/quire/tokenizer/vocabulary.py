"""What a tokenizer is made of, wherever it was read from."""

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
    """Kinds of tokens, by the numbers of GGUF's ``tokenizer.ggml.token_type``."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Family(enum.Enum):
    """How text becomes tokens, by GGUF's ``tokenizer.ggml.model``."""

    BYTE_PAIR = "gpt2"
    SCORED_PAIR = "llama"  # SentencePiece's byte-pair encoding
    CHARACTER_PAIR = "gemma4"  # listed merges as in BYTE_PAIR, over characters
    UNIGRAM = "t5"
    WORD_PIECE = "bert"
    LONGEST_MATCH = "rwkv"


class Normalization(enum.Enum):
    """What is done to a text before it is split into words."""

    NONE = "none"
    NFC = "nfc"


@dataclass(frozen=True)
class SpaceRules:
    """What SentencePiece does to spaces, and BERT to letters, before the model sees a text.

    ``prefix``: the stretches of text between added tokens that get a space before them, "none", "first" or "every";
    ``suffix``: every stretch gets one behind it; ``merge_extra``: spaces at both ends go, and all but one of a run;
    ``write_spaces``: a space is written U+2581; ``prefix_once``: text that begins with a space gets no other.
    """

    prefix: str = "none"
    suffix: bool = False
    merge_extra: bool = False
    write_spaces: bool = False
    prefix_once: bool = False


@dataclass(frozen=True)
class CaseRules:
    """BERT's: whether letters become small and lose their accents."""

    lowercase: bool = True
    strip_accents: bool = True


@dataclass(frozen=True)
class AddedTokenRule:
    """How an added token is matched, where that is not plain (Hugging Face ``AddedToken``)."""

    id: int
    left_strip: bool = False
    right_strip: bool = False
    single_word: bool = False
    normalized: bool = False


# The names of the special ids of a vocabulary and GGUF's keys for them.
SPECIAL_KEYS = {
    "bos": "tokenizer.ggml.bos_token_id",
    "eos": "tokenizer.ggml.eos_token_id",
    "eot": "tokenizer.ggml.eot_token_id",
    "eom": "tokenizer.ggml.eom_token_id",
    "unk": "tokenizer.ggml.unknown_token_id",
    "sep": "tokenizer.ggml.seperator_token_id",  # spelled so in the format
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
"""Which stretches of text get a space before them, where that is not every one: a key of ours."""

END_IDS = "tokenizer.quire.end_ids"
"""Tokens that end an answer besides those that GGUF has keys for: a key of ours."""

BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")
"""How families over characters write the token of a byte."""

NO_PRE_TOKENIZER = PreTokenizer(())


@dataclass(frozen=True)
class Vocabulary:
    """A vocabulary and the rules that go with it.

    Invariants: ``texts``, ``kinds`` and, where the family has them, ``scores`` are of one length; every id in
    ``special_ids``, ``prefix_ids``, ``suffix_ids``, ``end_ids`` (what ends an answer and is not known to do so
    otherwise) and ``added`` is below it.  ``texts`` are written as GGUF writes
    them: in GPT-2's byte alphabet (byte-pair encoding), with U+2581 for spaces (SentencePiece) or before the tokens
    that begin words (WordPiece), with backslashes (RWKV); added tokens stand as they show.  ``merges`` and
    ``pre_tokenizer`` are for byte-pair encoding, ``scores`` and ``character_map`` for SentencePiece's models,
    ``spaces`` for them and byte-pair encoding over characters, ``case`` for this and WordPiece.  ``doubles_separator``:
    whether what ends a text stands twice between those of a pair; None where that is not known.
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
            raise LoadError(f"[tokenizer] token_type must have {n} entries, one per token, but has {len(self.kinds)}")
        places = [*self.special_ids.items(), *(("bos or eos", id) for id in (*self.prefix_ids, *self.suffix_ids))]
        places += [("added", rule.id) for rule in self.added] + [("end", id) for id in self.end_ids]
        for name, id in places:
            if not 0 <= id < n:
                raise LoadError(f"[tokenizer] the {name} token must be below {n} but is {id}")

    def gguf_metadata(self) -> dict[str, object]:
        """The vocabulary as GGUF keys and values (lists of str and int, bool, int, str), ready for a writer.

        Raises UnsupportedError where GGUF has no name for the pre-tokenizer or no key for the tokens around a text.
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
        """With what stands behind a text as the end of sequence, as GGUF knows no other, and that as one more end."""
        eos = self.special_ids.get("eos")
        if self.family is Family.WORD_PIECE or len(self.suffix_ids) != 1 or eos in (None, self.suffix_ids[0]):
            return self
        assert eos is not None
        ids = {**self.special_ids, "eos": self.suffix_ids[0]}
        return replace(self, special_ids=ids, end_ids=(*self.end_ids, eos))

    def _end_metadata(self) -> dict[str, object]:
        """What else ends an answer: under a key of ours, and under those of other engines that are free."""
        free = [name for name in ("eot", "eom") if name not in self.special_ids]
        found: dict[str, object] = {SPECIAL_KEYS[name]: id for name, id in zip(free, self.end_ids, strict=False)}
        return found | {END_IDS: list(self.end_ids)} if self.end_ids else found

    def _around_metadata(self) -> dict[str, object]:
        """Whether one token goes before and one behind a text."""
        is_words = self.family is Family.WORD_PIECE
        first, last, key = ("cls", "sep", "add_sep_token") if is_words else ("bos", "eos", "add_eos_token")
        ids = self.special_ids
        before = first in ids and self.prefix_ids == (ids[first],)
        after = last in ids and self.suffix_ids == (ids[last],)
        if (self.prefix_ids and not before) or (self.suffix_ids and not after):
            raise UnsupportedError(
                f"[tokenizer] GGUF must have keys for the tokens around a text, {first} and {last}, but they are "
                f"{self.prefix_ids} and {self.suffix_ids}"
            )
        found: dict[str, object] = {"tokenizer.ggml.add_bos_token": before, f"tokenizer.ggml.{key}": after}
        if not is_words and after and self.doubles_separator is not None:
            found["tokenizer.ggml.add_sep_token"] = self.doubles_separator  # one more between the texts of a pair
        if is_words and before and "bos" not in ids:
            found[SPECIAL_KEYS["bos"]] = ids[first]  # where other engines look for it
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
            raise UnsupportedError("[tokenizer] GGUF must have a key for a space behind a text but has none")
        if self.character_map:
            found["tokenizer.ggml.precompiled_charsmap"] = self.character_map
        return found

    def _character_pair_metadata(self) -> dict[str, object]:
        """Under the name of a pre-tokenizer that gives the same ids: those that GGUF knows split at line feeds."""
        if self.spaces != SpaceRules(write_spaces=self.spaces.write_spaces):
            raise UnsupportedError("[tokenizer] GGUF must have a key for spaces that merges see added but has none")
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
    """Whether a merge brings a line feed and something else together."""
    return 0 < merge.count("\n") < len(merge) - 1


def newlines_make_themselves(texts: Sequence[str], merges: Sequence[str]) -> bool:
    """Whether merges arrive at every token of nothing but line feeds."""
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
