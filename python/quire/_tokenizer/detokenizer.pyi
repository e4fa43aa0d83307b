"""Streaming decoder of tokens."""

class Detokenizer:
    """Turns tokens into text one at a time and never splits a character.

    Invalid bytes become U+FFFD, as in ``bytes.decode("utf-8", errors="replace")``: the parts joined are the same as
    decoding everything at once.
    """

    def __init__(self, table: list[bytes], strip_first_space: bool = False) -> None:
        """``table[id]`` is what a token shows: b"" for tokens to be skipped.  ``strip_first_space``: a space that the
        text begins with is left out."""

    def push(self, id: int) -> str:
        """The text that is complete with this token, often "" in the middle of a character.

        Raises RequestError for an id outside the table.
        """

    def finish(self) -> str:
        """What is left of an unfinished character, as U+FFFD, or ""; begins anew."""

    @property
    def n_pending(self) -> int:
        """Bytes held back: at most three."""
