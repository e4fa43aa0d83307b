"""The tokenizer, which converts text to ids and back."""

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
    """Two texts in one prompt; ``second_text`` is the position of the second text's first token."""

    token_ids: list[int]
    second_text: int


class Tokenizer(TokenizerCalls):
    """Converts text to token ids and back.  It is immutable and usable from any thread.

    There are several types of tokens:

    - *normal* tokens, which the rules of the family make from text;
    - *byte* tokens, for characters without another token;
    - *user-defined* tokens, which are matched literally in every text;
    - *control* tokens (turn marks, end of text), which are matched only if the caller asks for it;
    - *unused* tokens, which never appear.

    Decoding does not clean up text.  ``decode(encode(text)) == text`` holds for all families except WordPiece and
    SentencePiece with a character map, which change the text.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Make a tokenizer.  Raises LoadError if the vocabulary is inconsistent."""
        self.vocabulary = vocabulary
        self._kinds = vocabulary.kinds
        self._encoder = encoder_of(vocabulary)

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[Vocabulary]]:
        """Pickle the vocabulary only; the native parts are rebuilt from it."""
        return (type(self), (self.vocabulary,))

    @classmethod
    def from_gguf(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """Read the tokenizer from the metadata of a GGUF file.

        Raises:
            LoadError: The file is malformed.
            UnsupportedError: The family or pre-tokenizer is unsupported; the message lists the supported ones.
        """
        from quire.tokenizer.from_gguf import read_gguf

        return cls(read_gguf(path))

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str]) -> Tokenizer:
        """Read the tokenizer of a checkpoint folder.

        The folder has ``tokenizer.json`` or ``tokenizer.model``, and perhaps ``tokenizer_config.json``.

        Raises:
            LoadError: A file is missing or malformed.
            UnsupportedError: The tokenizer uses a feature that Quire does not support; the message names it.
        """
        from quire.tokenizer.from_pretrained import read_pretrained

        return cls(read_pretrained(folder))

    @property
    def n_vocab(self) -> int:
        """The number of ids; also ``len(tokenizer)``."""
        return len(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)

    def __repr__(self) -> str:
        return f"Tokenizer({self.vocabulary.family.name.lower()}, {len(self._kinds)} tokens)"

    @property
    def bos_id(self) -> int | None:
        """The beginning-of-sequence token."""
        return self.vocabulary.special_ids.get("bos")

    @property
    def eos_id(self) -> int | None:
        """The end-of-sequence token; ``eog_ids`` has every token that ends an answer."""
        return self.vocabulary.special_ids.get("eos")

    @property
    def pad_id(self) -> int | None:
        """The padding token."""
        return self.vocabulary.special_ids.get("pad")

    @property
    def bos_token_id(self) -> int | None:
        """``bos_id`` under transformers' name."""
        return self.bos_id

    @property
    def eos_token_id(self) -> int | None:
        """``eos_id`` under transformers' name."""
        return self.eos_id

    @property
    def pad_token_id(self) -> int | None:
        """``pad_id`` under transformers' name."""
        return self.pad_id

    @property
    def chat_template(self) -> str | None:
        """The source of the default chat template."""
        return self.vocabulary.chat_templates.get("default")

    @property
    def special_texts(self) -> dict[str, str]:
        """The texts of the special tokens, by their names in chat templates (``bos_token``, ``eos_token``, ...)."""
        known = self.vocabulary.special_ids
        named = {f"{name}_token": known[name] for name in ("bos", "eos", "unk", "sep", "pad", "mask") if name in known}
        ids = sorted(set(named.values()))
        texts = dict(zip(ids, picked(self.vocabulary.texts, ids), strict=True))
        return {name: texts[id] for name, id in named.items()}

    @cached_property
    def eog_ids(self) -> frozenset[int]:
        """The ids that end an answer: those the file names, and tokens with well-known names."""
        vocabulary = self.vocabulary
        return end_of_generation_ids(vocabulary.texts, vocabulary.kinds, vocabulary.special_ids, vocabulary.end_ids)

    @cached_property
    def control_tokens(self) -> dict[str, int]:
        """The ids of all control tokens by their texts."""
        marked = (TokenKind.CONTROL, TokenKind.UNKNOWN)
        ids = [id for id, kind in enumerate(self._kinds) if kind in marked]
        return dict(zip(picked(self.vocabulary.texts, ids), ids, strict=True))

    def encode(self, text: str | bytes, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Return the ids of a text.

        Args:
            text: Bytes need not be UTF-8; invalid ones are encoded as they are.
            add_special: Add the vocabulary's tokens before and after a text, often a beginning of sequence.
            parse_special: Turn the names of control tokens into these tokens; otherwise they are plain text.

        Raises:
            RequestError: A str has lone surrogates.
        """
        if not isinstance(text, str | bytes):
            raise RequestError(f"[tokenizer] text is {text!r:.40}: give a string or bytes")
        ids = self._encoder.encode(text, parse_special)
        return self._with_special(ids) if add_special else ids

    def encode_batch(
        self, texts: Sequence[str | bytes], add_special: bool = True, parse_special: bool = False, threads: int = 1
    ) -> list[list[int]]:
        """Encode several texts on ``threads`` threads; the native code for long texts runs in parallel."""
        if threads <= 1 or len(texts) <= 1:
            return [self.encode(text, add_special, parse_special) for text in texts]
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(lambda text: self.encode(text, add_special, parse_special), texts))

    def encode_pair(self, first: str, second: str) -> TextPair:
        """Encode two texts as one, separated by the end token: once for BERT's word pieces, twice for RoBERTa's.

        Raises:
            UnsupportedError: The vocabulary puts no tokens before and after a text.
        """
        return self.join_pair(self.encode(first, add_special=False), self.encode(second, add_special=False))

    def join_pair(self, first: Sequence[int], second: Sequence[int]) -> TextPair:
        """Join two encoded texts like :meth:`encode_pair`."""
        before, after = self.vocabulary.prefix_ids, self.vocabulary.suffix_ids
        if not before or not after:
            raise UnsupportedError("[tokenizer] cannot join texts: the vocabulary adds no tokens around a text")
        doubled = self.vocabulary.doubles_separator
        if doubled is None:
            doubled = self.vocabulary.family is not Family.WORD_PIECE
        start = [*before, *first, *after * (2 if doubled else 1)]
        return TextPair([*start, *second, *after], len(start))

    def encode_segments(self, segments: Iterable[tuple[str, bool]], add_special: bool = False) -> list[int]:
        """Return the ids of the joined text of (text, is_template) pairs.

        The text is tokenized as a whole, but a control token is matched only if all of its text is from the template:
        a user's text never becomes one, not even together with the template's.
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
        """Render a conversation with the default chat template, to ids, or to text if ``tokenize`` is False.

        The text of messages never becomes control tokens.

        Args:
            messages: The conversation.
            tools: Tools the model may call.
            add_generation_prompt: Append the start of the answer.
            tokenize: Return ids instead of text.
            values: Further variables of the template.

        Raises:
            UnsupportedError: The vocabulary has no chat template.
        """
        segments = self._template.render_segments(messages, tools, add_generation_prompt, **values)
        return self.encode_segments(segments) if tokenize else "".join(text for text, _ in segments)

    @cached_property
    def _template(self) -> ChatTemplate:
        from quire.chat import ChatTemplate

        return ChatTemplate.from_tokenizer(self)

    def decode(self, ids: Iterable[int] | int, skip_special: bool = True) -> str:
        """Return the text of ids; invalid UTF-8 becomes U+FFFD.

        Args:
            ids: A list of ids, or one id.
            skip_special: Omit control tokens.

        Raises:
            RequestError: An id is outside the vocabulary.
        """
        return self.decode_bytes(ids, skip_special).decode("utf-8", "replace")

    def decode_bytes(self, ids: Iterable[int] | int, skip_special: bool = True) -> bytes:
        """Return the bytes of ids; see :meth:`decode`."""
        if isinstance(ids, int):
            ids = (ids,)
        elif not isinstance(ids, Iterable):
            raise RequestError(f"[tokenizer] ids is {ids!r:.40}: give a list of ints")
        try:
            return self._encoder.decode(ids, skip_special)
        except OverflowError:
            raise RequestError("[tokenizer] ids has a negative token id") from None

    def detokenizer(self, skip_special: bool = True) -> Detokenizer:
        """Return a new streaming decoder, whose ``push(id)`` and ``finish()`` together give the text of ``decode``."""
        table = self._shown_bytes if skip_special else self._all_bytes
        return Detokenizer(table, strip_first_space=self._encoder.strips_first_space)

    def token_bytes(self, id: int) -> bytes:
        """Return the bytes of a token, b"" for a control token.  Raises RequestError for an unknown id."""
        return b"" if self.is_control(id) else self._encoder.token_bytes(id)

    def all_token_bytes(self) -> list[bytes]:
        """Return ``token_bytes`` of every id, for the native engine."""
        return list(self._shown_bytes)

    def token_text(self, id: int) -> str:
        """Return a token as the vocabulary writes it.  Raises RequestError for an unknown id."""
        self._check(id)
        return self.vocabulary.texts[id]

    def token_id(self, text: str) -> int | None:
        """Return the id of a token, given as the vocabulary writes it, or None."""
        return self._id_of_text.get(text)

    def is_control(self, id: int) -> bool:
        """Return True if a token has no text.  Raises RequestError for an unknown id."""
        self._check(id)
        return self._kinds[id] in (TokenKind.CONTROL, TokenKind.UNKNOWN)

    def _check(self, id: int) -> None:
        if not 0 <= id < len(self._kinds):
            raise RequestError(f"[tokenizer] token id {id} is out of range: the vocabulary has {self.n_vocab} tokens")

    def _with_special(self, ids: list[int]) -> list[int]:
        ids[:0] = self.vocabulary.prefix_ids  # in place, because the list may have millions of ids
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
