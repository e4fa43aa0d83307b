"""What a tokenizer is made of, wherever it was read from."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from quire.errors import LoadError
from quire.tokenizer.pretokenizers import PreTokenizer, gguf_name

__all__ = ["AddedTokenRule", "Normalization", "TokenKind", "Vocabulary"]


class TokenKind(enum.IntEnum):
    """Kinds of tokens, by the numbers of GGUF's ``tokenizer.ggml.token_type``."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5


class Normalization(enum.Enum):
    """What is done to a text before it is split into words."""

    NONE = "none"
    NFC = "nfc"


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
    "fim_prefix": "tokenizer.ggml.fim_pre_token_id",
    "fim_suffix": "tokenizer.ggml.fim_suf_token_id",
    "fim_middle": "tokenizer.ggml.fim_mid_token_id",
    "fim_pad": "tokenizer.ggml.fim_pad_token_id",
    "fim_repository": "tokenizer.ggml.fim_rep_token_id",
    "fim_separator": "tokenizer.ggml.fim_sep_token_id",
}


@dataclass(frozen=True)
class Vocabulary:
    """A byte-level BPE vocabulary.

    Invariants: ``texts`` and ``kinds`` are of one length; every id in ``special_ids``, ``prefix_ids``, ``suffix_ids``
    and ``added`` is below it.  ``texts`` are written in GPT-2's byte alphabet but for added tokens, which stand as
    they show.
    """

    texts: Sequence[str]
    kinds: Sequence[int]
    merges: Sequence[str]
    pre_tokenizer: PreTokenizer
    special_ids: Mapping[str, int] = field(default_factory=dict)
    prefix_ids: tuple[int, ...] = ()
    suffix_ids: tuple[int, ...] = ()
    added: tuple[AddedTokenRule, ...] = ()
    normalization: Normalization = Normalization.NONE
    chat_templates: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n = len(self.texts)
        if len(self.kinds) != n:
            raise LoadError(f"[tokenizer] token_type must have {n} entries, one per token, but has {len(self.kinds)}")
        places = [*self.special_ids.items(), *(("bos or eos", id) for id in (*self.prefix_ids, *self.suffix_ids))]
        places += [("added", rule.id) for rule in self.added]
        for name, id in places:
            if not 0 <= id < n:
                raise LoadError(f"[tokenizer] the {name} token must be below {n} but is {id}")

    def gguf_metadata(self) -> dict[str, object]:
        """The vocabulary as GGUF keys and values (lists of str and int, bool, int, str), ready for a writer.

        Raises UnsupportedError where GGUF has no name for the pre-tokenizer.
        """
        metadata: dict[str, object] = {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": gguf_name(self.pre_tokenizer),
            "tokenizer.ggml.tokens": list(self.texts),
            "tokenizer.ggml.token_type": [int(kind) for kind in self.kinds],
            "tokenizer.ggml.merges": list(self.merges),
        }
        metadata.update((SPECIAL_KEYS[name], id) for name, id in self.special_ids.items())
        metadata["tokenizer.ggml.add_bos_token"] = "bos" in self.special_ids and self.prefix_ids == (
            self.special_ids["bos"],
        )
        metadata["tokenizer.ggml.add_eos_token"] = "eos" in self.special_ids and self.suffix_ids == (
            self.special_ids["eos"],
        )
        for name, source in self.chat_templates.items():
            key = "tokenizer.chat_template" if name == "default" else f"tokenizer.chat_template.{name}"
            metadata[key] = source
        return metadata
