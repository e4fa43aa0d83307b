"""Tokenizers of pieces of text: byte-pair encoding over characters, by scores (SentencePiece) or listed merges, the
unigram model, WordPiece, longest match, PLaMo's search."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from .bpe import AddedRule
from .pretokenize import PassRule

FAMILIES: dict[str, int]
"""The families by GGUF's names: llama, gemma4, t5, bert, rwkv, plamo2."""
PREFIXES: dict[str, int]
"""The stretches of text between added tokens that get a space in front: none, first, every."""

class SpaceRules(Protocol):
    """The treatment of spaces before tokenization (SentencePiece's normalizer)."""

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
    """The splitting of text into words before listed merges."""

    @property
    def passes(self) -> Iterable[PassRule]: ...
    @property
    def whole_newlines(self) -> bool: ...

class PieceEncoder:
    """A tokenizer of pieces: added tokens, normalization, model.

    It is immutable, so any number of threads may use it; long texts are encoded without the GIL.  Time is linear in the
    text (times the longest token, 1024 bytes at most).
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
        """Make an encoder.

        Args:
            family: A key of ``FAMILIES``.
            matched: The text of each token by id in normalized text.
            kinds: Token types by id, in GGUF's numbers.
            scores: Logarithms by id.
            texts: By id, the text that a control or user-defined token matches before normalization.
            spaces: The treatment of spaces.
            character_map: SentencePiece's precompiled character map.
            unknown_id: The token, of that type, for text without a token; None drops such text.
            added: Options of added tokens.
            drops_marks: WordPiece: drop combining marks.
            merges: For the family gemma4: in order of decreasing precedence.
            pre_tokenizer: For the family gemma4: the splitting into words.

        Raises:
            LoadError: The arguments are inconsistent.
        """

    def encode(self, text: str | bytes, parse_control: bool = False) -> list[int]:
        """Return the ids of a text.  Bytes need not be UTF-8.  Raises RequestError for a str with lone surrogates."""

    def encode_segments(self, segments: Iterable[tuple[str, bool]]) -> list[int]:
        """Return the ids of the joined text of (text, is_template) pairs.

        A control token is matched only if all of its text is from the template.
        """

    def split_added(self, segments: Iterable[tuple[str, bool]], parse_control: bool = False) -> list[str | int]:
        """Return pieces of the joined text and the ids of the added tokens between them."""
