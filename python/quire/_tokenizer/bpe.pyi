"""Byte-level byte-pair encoding."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from .pretokenize import PassRule

class AddedRule(Protocol):
    """How an added token is matched, where that is not plain."""

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
    """The strings of packed ones, all or those of some ascending numbers; bytes that are no UTF-8 as lone surrogates.

    Raises ValueError where they end early, or for a number beyond them.
    """

class BytePairEncoder:
    """Byte-level byte-pair encoding (Sennrich et al. 2016, with GPT-2's byte alphabet).

    Constant once made: any number of threads may use it; long texts are encoded without the global lock.  Time is
    n log n in the longest word and linear in everything else.
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
        """``tokens[id]`` in the byte-level alphabet (control, unknown and user-defined ones as they show), ``kinds``
        by GGUF's numbers, ``merges`` by falling precedence, ``passes`` of the pre-tokenizer.

        ``unknown_id`` is what bytes without a token become; without it they are left out before merging.

        Raises LoadError where a merge is malformed, a token is there twice, or the unknown one is of another kind.
        """

    @property
    def n_tokens(self) -> int: ...
    def encode(self, text: str | bytes, parse_control: bool = False, normalized: bool = False) -> list[int]:
        """Ids of ``text``.  ``normalized``: match only the added tokens that are matched after normalization.

        Bytes need not be UTF-8.  Raises RequestError for a str with lone surrogates.
        """

    def encode_segments(self, segments: Iterable[tuple[str, bool]]) -> list[int]:
        """Ids of the joined text of (text, is_template) pairs; a control token is matched only where it lies in
        template text from end to end."""

    def split_added(self, text: str, parse_control: bool = False) -> list[str | int]:
        """Pieces of text and the ids of the added tokens between them (those matched before normalization)."""

    def token_bytes(self, id: int) -> bytes:
        """The bytes the token stands for; a control token's are its name."""

    def decode(self, ids: Iterable[int], skip_control: bool = True) -> bytes:
        """The bytes of a list of ids.  Raises RequestError for an id outside the vocabulary."""
