"""Tokenizers of pieces of text: byte-pair encoding over characters, by scores (SentencePiece) or listed merges, the
unigram model, WordPiece, longest match."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from .bpe import AddedRule
from .pretokenize import PassRule

FAMILIES: dict[str, int]
"""GGUF's names of the families: llama, gemma4, t5, bert, rwkv."""
PREFIXES: dict[str, int]
"""Which stretches of text between added tokens get a space before them: none, first, every."""

class SpaceRules(Protocol):
    """What is done to spaces before the model sees a text (SentencePiece's normalizer)."""

    @property
    def prefix(self) -> str: ...
    @property
    def suffix(self) -> bool: ...
    @property
    def merge_extra(self) -> bool: ...
    @property
    def write_spaces(self) -> bool: ...
    @property
    def prefix_once(self) -> bool: ...

class WordRules(Protocol):
    """How text falls into words before listed merges."""

    @property
    def passes(self) -> Iterable[PassRule]: ...
    @property
    def whole_newlines(self) -> bool: ...

class PieceEncoder:
    """Added tokens, normalization, model.

    Constant once made: any number of threads may use it; long texts are encoded without the global lock.  Time is
    linear in the text (times the longest token, 1024 bytes at most).
    """

    def __init__(
        self,
        family: str,
        matched: Sequence[str | bytes],
        kinds: Sequence[int],
        scores: Sequence[float],
        *,
        texts: Sequence[str],
        spaces: SpaceRules,
        character_map: bytes = b"",
        unknown_id: int | None = None,
        added: Iterable[AddedRule] = (),
        drops_marks: bool = False,
        merges: Sequence[str | tuple[str, str] | list[str]] = (),
        pre_tokenizer: WordRules | None = None,
    ) -> None:
        """``matched[id]`` is what a token stands for in normalized text, ``texts[id]`` how control and user-defined
        tokens are found in text as it came, ``kinds`` by GGUF's numbers, ``scores`` by token (logarithms);
        ``merges`` by falling precedence and ``pre_tokenizer`` for the family gemma4.

        ``unknown_id``, of that kind, is what text without a token becomes; without it that is left out.

        Raises LoadError where entries do not fit together.
        """

    def encode(self, text: str | bytes, parse_control: bool = False) -> list[int]:
        """Ids of ``text``.  Bytes need not be UTF-8.  Raises RequestError for a str with lone surrogates."""

    def encode_segments(self, segments: Iterable[tuple[str, bool]]) -> list[int]:
        """Ids of the joined text of (text, is_template) pairs; a control token is matched only where it lies in
        template text from end to end."""

    def split_added(self, segments: Iterable[tuple[str, bool]], parse_control: bool = False) -> list[str | int]:
        """Pieces of the joined text and the ids of the added tokens between them."""
