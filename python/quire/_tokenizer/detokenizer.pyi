"""Streaming decoder of tokens."""

class Detokenizer:
    """Decodes tokens one at a time, never splitting a character.

    Invalid bytes become U+FFFD, as in ``bytes.decode("utf-8", errors="replace")``: the parts joined are the same as
    decoding everything at once.
    """

    def __init__(self, table: list[bytes], strip_first_space: bool = False) -> None:
        """Make a decoder.

        Args:
            table: The bytes of each token by id, b"" for tokens to skip.
            strip_first_space: Drop a space at the start of the text.
        """

    def push(self, id: int) -> str:
        """Return the text that this token completes, often "" in the middle of a character.

        Raises RequestError for an id outside the table.
        """

    def finish(self) -> str:
        """Return U+FFFD for an unfinished character, otherwise ""; reset the decoder."""

    @property
    def n_pending(self) -> int:
        """The number of bytes held back, at most three."""
