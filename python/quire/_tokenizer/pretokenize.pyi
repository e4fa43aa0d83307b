"""Pre-tokenizers alone, without a vocabulary."""

from collections.abc import Iterable

unicode_version: str
"""The version of Unicode whose categories the pre-tokenizers use."""

def split(text: str | bytes, passes: Iterable[str]) -> list[bytes]:
    """The words that a pre-tokenizer, given by the names of its passes, cuts a text into (UTF-8).

    Raises ValueError for an unknown pass.
    """
