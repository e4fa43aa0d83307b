# cython: language_level=3
"""Streaming decoder: see python/quire/_tokenizer/detokenizer.pyi."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8Stateful

from quire.errors import RequestError


cdef class Detokenizer:
    """Decodes tokens one at a time, never splitting a character.

    Invalid bytes become U+FFFD, as in ``bytes.decode("utf-8", errors="replace")``: the parts joined are the same as
    decoding everything at once.
    """

    cdef list table
    cdef bytes pending
    cdef bint strips, at_start

    def __init__(self, list table not None, strip_first_space=False):
        self.table = table
        self.pending = b""
        self.strips = self.at_start = strip_first_space

    def push(self, id):
        """Return the text that this token completes, often "" in the middle of a character.

        Raises RequestError for an id outside the table.
        """
        cdef Py_ssize_t consumed
        cdef bytes data
        if not 0 <= id < len(self.table):
            raise RequestError(f"[detokenizer] token id {id} is out of range: there are {len(self.table)} tokens")
        data = self.table[id]
        if self.at_start and data:
            self.at_start = False
            if data.startswith(b" "):
                data = data[1:]
        if self.pending:
            data = self.pending + data
        # Python 3.10 to 3.10.12 and 3.11 to 3.11.4 do not set the count if all bytes are ASCII (gh-99612).
        consumed = len(data)
        text = PyUnicode_DecodeUTF8Stateful(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), "replace", &consumed)
        self.pending = data[consumed:]
        return text

    def finish(self):
        """Return U+FFFD for an unfinished character, otherwise ""; reset the decoder."""
        data, self.pending = self.pending, b""
        self.at_start = self.strips
        return data.decode("utf-8", "replace")

    @property
    def n_pending(self):
        """The number of bytes held back, at most three."""
        return len(self.pending)
