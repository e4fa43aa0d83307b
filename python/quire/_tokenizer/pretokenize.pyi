"""Pre-tokenizers alone, without a vocabulary."""

from collections.abc import Iterable
from typing import Protocol, final

unicode_version: str
"""The version of Unicode whose categories the pre-tokenizers use."""

class PassRule(Protocol):
    """One step of a pre-tokenizer: see ``quire.tokenizer.pretokenizers.Pass``."""

    @property
    def expression(self) -> str | None: ...
    @property
    def behavior(self) -> str: ...
    @property
    def inverted(self) -> bool: ...

@final
class Splitter:
    """Splits texts into words (UTF-8) with the passes of a pre-tokenizer, compiled once."""

    def __init__(self, passes: Iterable[PassRule]) -> None:
        """Compile the passes.

        Raises:
            ValueError: An expression is unsupported.
        """

    def split(self, text: str | bytes) -> list[bytes]:
        """Return the words of a text."""

def split(text: str | bytes, passes: Iterable[PassRule]) -> list[bytes]:
    """Split a text into words (UTF-8) with the passes of a pre-tokenizer.

    Raises:
        ValueError: An expression is unsupported.
    """
