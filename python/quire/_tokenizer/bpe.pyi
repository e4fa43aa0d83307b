"""Byte-level byte-pair encoding."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from .pretokenize import PassRule

class AddedRule(Protocol):
    """The options of an added token."""

    @property
    def id(self) -> int: ...
    @property
    def left_strip(self) -> bool: ...
    @property
    def right_strip(self) -> bool: ...
    @property
    def single_word(self) -> bool: ...
    @property
    def normalized(self) -> bool: ...

def unpacked(data: bytes, n: int, only: Sequence[int] | None = None) -> list[str]:
    """Unpack strings, all ``n`` of them or those with the ascending indices ``only``.

    Bytes that are not UTF-8 become lone surrogates.

    Raises:
        ValueError: The data is truncated, or an index is out of range.
    """

class BytePairEncoder:
    """Byte-level byte-pair encoding (Sennrich et al. 2016, with GPT-2's byte alphabet).

    It is immutable, so any number of threads may use it; long texts are encoded without the GIL.  Time is n log n in
    the longest word and linear in everything else.
    """

    def __init__(
        self,
        tokens: Sequence[str],
        kinds: Sequence[int],
        merges: Sequence[str | tuple[str, str] | list[str]],
        *,
        passes: Iterable[PassRule],
        ignore_merges: bool = False,
        unknown_id: int | None = None,
        added: Iterable[AddedRule] = (),
    ) -> None:
        """Make an encoder.

        Args:
            tokens: Texts by id, in the byte-level alphabet; control, unknown and user-defined tokens literally.
            kinds: Token types by id, in GGUF's numbers.
            merges: In order of decreasing precedence.
            passes: The passes of the pre-tokenizer.
            ignore_merges: Take words that are tokens whole, without merging.
            unknown_id: The token for bytes without a token; None drops these bytes before merging.
            added: Options of added tokens.

        Raises:
            LoadError: A merge is malformed, a token is duplicate, or the unknown token has another type.
        """

    @property
    def n_tokens(self) -> int: ...
    def encode(self, text: str | bytes, parse_control: bool = False, normalized: bool = False) -> list[int]:
        """Return the ids of a text.

        Args:
            text: Bytes need not be UTF-8.
            parse_control: Match control tokens.
            normalized: The text is normalized: match only the added tokens that are matched after normalization.

        Raises:
            RequestError: A str has lone surrogates.
        """

    def encode_segments(self, segments: Iterable[tuple[str, bool]]) -> list[int]:
        """Return the ids of the joined text of (text, is_template) pairs.

        A control token is matched only if all of its text is from the template.
        """

    def split_added(self, text: str, parse_control: bool = False) -> list[str | int]:
        """Return pieces of text and the ids of the added tokens between them (those matched before normalization)."""

    def token_bytes(self, id: int) -> bytes:
        """Return the bytes of a token; those of a control token are its name."""

    def decode(self, ids: Iterable[int], skip_control: bool = True) -> bytes:
        """Return the bytes of a list of ids.  Raises RequestError for an id outside the vocabulary."""
