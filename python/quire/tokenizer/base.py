"""The tokenizer: text to ids and back."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple, overload

from quire._tokenizer.detokenizer import Detokenizer
from quire._tokenizer.packed import picked
from quire.errors import RequestError, UnsupportedError
from quire.tokenizer.calls import TokenizerCalls
from quire.tokenizer.encoders import encoder_of
from quire.tokenizer.end_of_generation import end_of_generation_ids
from quire.tokenizer.vocabulary import Family, TokenKind, Vocabulary

if TYPE_CHECKING:
    from quire.chat import ChatTemplate, Messages

__all__ = ["TextPair", "Tokenizer"]


class TextPair(NamedTuple):
    """Two texts in one prompt; ``second_text``: position of the second one's first token, where types tell it apart."""

    token_ids: list[int]
    second_text: int


class Tokenizer(TokenizerCalls):
    """Text to token ids and back; constant once made, usable from any thread.

    *Normal* tokens come from text by the rules of the family, *byte* tokens where no other stands for a character;
    *user-defined* ones are matched in every text as they stand; *control* tokens (turn marks, end of text) are matched
    only where the caller says so; *unused* ones never appear.  Decoding never cleans text up: where the family keeps
    text as it is (all but WordPiece, and SentencePiece's with a character map), ``decode(encode(text)) == text``.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Raises LoadError where the vocabulary does not fit together."""
        self.vocabulary = vocabulary
        self._kinds = vocabulary.kinds
        self._encoder = encoder_of(vocabulary)

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[Vocabulary]]:
        """Pickled as its vocabulary, of which the native parts are made again."""
        return (type(self), (self.vocabulary,))

    @classmethod
    def from_gguf(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """The tokenizer in the metadata of a GGUF file.

        Raises LoadError for a malformed file, UnsupportedError (listing what is known) for a family or pre-tokenizer
        that Quire does not have.
        """
        from quire.tokenizer.from_gguf import read_gguf

        return cls(read_gguf(path))

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str]) -> Tokenizer:
        """The tokenizer of a checkpoint folder (``tokenizer.json`` or ``tokenizer.model``, ``tokenizer_config.json``).

        Raises LoadError for absent or malformed files, UnsupportedError naming what Quire does not have.
        """
        from quire.tokenizer.from_pretrained import read_pretrained

        return cls(read_pretrained(folder))

    @property
    def n_vocab(self) -> int:
        """Number of ids; also ``len(tokenizer)``."""
        return len(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)

    def __repr__(self) -> str:
        return f"Tokenizer({self.vocabulary.family.name.lower()}, {len(self._kinds)} tokens)"

    @property
    def bos_id(self) -> int | None:
        """Beginning of sequence."""
        return self.vocabulary.special_ids.get("bos")

    @property
    def eos_id(self) -> int | None:
        """End of sequence; ``eog_ids`` has every token that ends an answer."""
        return self.vocabulary.special_ids.get("eos")

    @property
    def pad_id(self) -> int | None:
        """Padding."""
        return self.vocabulary.special_ids.get("pad")

    @property
    def bos_token_id(self) -> int | None:
        """``bos_id``, by transformers' name."""
        return self.bos_id

    @property
    def eos_token_id(self) -> int | None:
        """``eos_id``, by transformers' name."""
        return self.eos_id

    @property
    def pad_token_id(self) -> int | None:
        """``pad_id``, by transformers' name."""
        return self.pad_id

    @property
    def chat_template(self) -> str | None:
        """The source of the default chat template."""
        return self.vocabulary.chat_templates.get("default")

    @property
    def special_texts(self) -> dict[str, str]:
        """The texts of the special tokens by the names that chat templates use (``bos_token``, ``eos_token``, ...)."""
        known = self.vocabulary.special_ids
        named = {f"{name}_token": known[name] for name in ("bos", "eos", "unk", "sep", "pad", "mask") if name in known}
        ids = sorted(set(named.values()))
        texts = dict(zip(ids, picked(self.vocabulary.texts, ids), strict=True))
        return {name: texts[id] for name, id in named.items()}

    @cached_property
    def eog_ids(self) -> frozenset[int]:
        """The ids that end an answer: the file's own and those of well-known names."""
        vocabulary = self.vocabulary
        return end_of_generation_ids(vocabulary.texts, vocabulary.kinds, vocabulary.special_ids, vocabulary.end_ids)

    @cached_property
    def control_tokens(self) -> dict[str, int]:
        """Text to id of every control token."""
        marked = (TokenKind.CONTROL, TokenKind.UNKNOWN)
        ids = [id for id, kind in enumerate(self._kinds) if kind in marked]
        return dict(zip(picked(self.vocabulary.texts, ids), ids, strict=True))

    def encode(self, text: str | bytes, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """The ids of a text.

        ``add_special`` adds the tokens that the vocabulary puts before and after a text (often a beginning of
        sequence).  ``parse_special`` turns the names of control tokens into them; without it they are plain text.
        Bytes that are no UTF-8 are encoded as they are.  Raises RequestError for a str with lone surrogates.
        """
        if not isinstance(text, str | bytes):
            raise RequestError(f"[tokenizer] text is {text!r:.40}: give a string or bytes")
        ids = self._encoder.encode(text, parse_special)
        return self._with_special(ids) if add_special else ids

    def encode_batch(
        self, texts: Sequence[str | bytes], add_special: bool = True, parse_special: bool = False, threads: int = 1
    ) -> list[list[int]]:
        """``encode`` of each text, over several threads; the native part of long texts runs side by side."""
        if threads <= 1 or len(texts) <= 1:
            return [self.encode(text, add_special, parse_special) for text in texts]
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(lambda text: self.encode(text, add_special, parse_special), texts))

    def encode_pair(self, first: str, second: str) -> TextPair:
        """Two texts as one: what ends a text stands once between them for BERT's word pieces, twice for RoBERTa's.

        UnsupportedError where nothing stands around a text.
        """
        return self.join_pair(self.encode(first, add_special=False), self.encode(second, add_special=False))

    def join_pair(self, first: Sequence[int], second: Sequence[int]) -> TextPair:
        """``encode_pair`` of texts that are ids already."""
        before, after = self.vocabulary.prefix_ids, self.vocabulary.suffix_ids
        if not before or not after:
            raise UnsupportedError("[tokenizer] texts must be marked at both ends to be joined but are not")
        doubled = self.vocabulary.doubles_separator
        if doubled is None:
            doubled = self.vocabulary.family is not Family.WORD_PIECE
        start = [*before, *first, *after * (2 if doubled else 1)]
        return TextPair([*start, *second, *after], len(start))

    def encode_segments(self, segments: Iterable[tuple[str, bool]], add_special: bool = False) -> list[int]:
        """The ids of (text, is_template) pairs, joined.

        The text is tokenized as a whole, but a control token counts only where all of it is template text: what a
        user writes never becomes one, nor do a template's text and a user's together.
        """
        parts = [(text, is_template) for text, is_template in segments if text]
        ids = self._encoder.encode_segments(parts)
        return self._with_special(ids) if add_special else ids

    @overload
    def apply_chat_template(
        self,
        messages: Messages,
        tools: Sequence[Mapping[str, object]] | None = None,
        *,
        add_generation_prompt: bool = False,
        tokenize: Literal[True] = True,
        **values: object,
    ) -> list[int]: ...
    @overload
    def apply_chat_template(
        self,
        messages: Messages,
        tools: Sequence[Mapping[str, object]] | None = None,
        *,
        add_generation_prompt: bool = False,
        tokenize: Literal[False],
        **values: object,
    ) -> str: ...
    def apply_chat_template(
        self,
        messages: Messages,
        tools: Sequence[Mapping[str, object]] | None = None,
        *,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        **values: object,
    ) -> list[int] | str:
        """The prompt that the default chat template makes of a conversation: ids, or text to read with ``tokenize``
        false.

        What messages say never becomes control tokens.  ``add_generation_prompt``: with the beginning of the answer;
        ``values``: further variables of the template.  Raises UnsupportedError where there is no template.
        """
        segments = self._template.render_segments(messages, tools, add_generation_prompt, **values)
        return self.encode_segments(segments) if tokenize else "".join(text for text, _ in segments)

    @cached_property
    def _template(self) -> ChatTemplate:
        from quire.chat import ChatTemplate

        return ChatTemplate.from_tokenizer(self)

    def decode(self, ids: Iterable[int] | int, skip_special: bool = True) -> str:
        """The text of ids; bytes that are no UTF-8 become U+FFFD.  ``skip_special`` leaves control tokens out.

        Raises RequestError for an id outside the vocabulary.
        """
        return self.decode_bytes(ids, skip_special).decode("utf-8", "replace")

    def decode_bytes(self, ids: Iterable[int] | int, skip_special: bool = True) -> bytes:
        """The bytes of ids, or of a single one, as ``decode``."""
        if isinstance(ids, int):
            ids = (ids,)
        elif not isinstance(ids, Iterable):
            raise RequestError(f"[tokenizer] ids is {ids!r:.40}: give a list of ints")
        try:
            return self._encoder.decode(ids, skip_special)
        except OverflowError:
            raise RequestError("[tokenizer] a token id must not be negative but one is") from None

    def detokenizer(self, skip_special: bool = True) -> Detokenizer:
        """A fresh streaming decoder: ``push(id)`` and ``finish()``; together they give what ``decode`` does."""
        table = self._shown_bytes if skip_special else self._all_bytes
        return Detokenizer(table, strip_first_space=self._encoder.strips_first_space)

    def token_bytes(self, id: int) -> bytes:
        """The bytes that a token shows; none for a control token.  Raises RequestError for an unknown id."""
        return b"" if self.is_control(id) else self._encoder.token_bytes(id)

    def all_token_bytes(self) -> list[bytes]:
        """``token_bytes`` of every id, as the native engine wants them."""
        return list(self._shown_bytes)

    def token_text(self, id: int) -> str:
        """A token as the vocabulary writes it.  Raises RequestError for an unknown id."""
        self._check(id)
        return self.vocabulary.texts[id]

    def token_id(self, text: str) -> int | None:
        """The id of a token by the text that the vocabulary writes, or None."""
        return self._id_of_text.get(text)

    def is_control(self, id: int) -> bool:
        """Whether a token stands for no text.  Raises RequestError for an unknown id."""
        self._check(id)
        return self._kinds[id] in (TokenKind.CONTROL, TokenKind.UNKNOWN)

    def _check(self, id: int) -> None:
        if not 0 <= id < len(self._kinds):
            raise RequestError(f"[tokenizer] a token id must be below {len(self._kinds)} but is {id}")

    def _with_special(self, ids: list[int]) -> list[int]:
        ids[:0] = self.vocabulary.prefix_ids  # in place: the list may have millions
        ids += self.vocabulary.suffix_ids
        return ids

    @cached_property
    def _id_of_text(self) -> dict[str, int]:
        return {text: id for id, text in enumerate(self.vocabulary.texts)}

    @cached_property
    def _all_bytes(self) -> list[bytes]:
        return [self._encoder.token_bytes(id) for id in range(self.n_vocab)]

    @cached_property
    def _shown_bytes(self) -> list[bytes]:
        marked = (TokenKind.CONTROL, TokenKind.UNKNOWN)
        return [b"" if kind in marked else self._encoder.token_bytes(id) for id, kind in enumerate(self._kinds)]
