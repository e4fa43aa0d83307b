# Vocabularies in the form of GGUF files: contiguous strings, each its length in 8 bytes and its text.  A merge is two
# words separated by a space.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport uint64_t
from libc.string cimport memcpy
from texts cimport string_view, view_of

from quire._tokenizer.packed import PackedStrings

cdef extern from "merger.h" namespace "quire::tokenizer" nogil:
    cdef cppclass MergeSink:
        void add_merge(string_view, string_view) except +ValueError


cdef inline string_view next_packed(bytes data, size_t *at) except *:
    """Return the string at `at`, and move `at` past it."""
    cdef const char *begin = PyBytes_AS_STRING(data)
    cdef size_t left = PyBytes_GET_SIZE(data) - at[0]
    cdef uint64_t size = 0
    if left >= 8:
        memcpy(&size, begin + at[0], 8)
    if left < 8 or size > left - 8:
        raise ValueError("the packed strings are truncated")
    at[0] += 8 + size
    return string_view(begin + at[0] - size, size)


cdef inline int add_joined_merge(string_view merge, MergeSink *sink) except -1:
    """Add a merge of two words with a space between; the first word may itself start with a space."""
    cdef const char *data = merge.data()
    cdef size_t at = 1
    while at < merge.size() and data[at] != 32:
        at += 1
    if at >= merge.size():
        text = PyUnicode_DecodeUTF8(data, merge.size(), "replace")
        raise ValueError(f"malformed merge {text!r}: expected two words separated by a space")
    sink.add_merge(string_view(data, at), string_view(data + at + 1, merge.size() - at - 1))
    return 0


cdef inline int add_merges(object merges, MergeSink *sink) except -1:
    """Add merges in order of decreasing precedence: packed strings, or each a joined text or a pair."""
    cdef size_t at = 0, i
    cdef string_view left, right
    if isinstance(merges, PackedStrings):
        for i in range(<size_t>merges.n):
            add_joined_merge(next_packed(merges.data, &at), sink)
        return 0
    for merge in merges:
        if isinstance(merge, str):
            add_joined_merge(view_of(merge), sink)
        else:
            left_text, right_text = merge
            left, right = view_of(left_text), view_of(right_text)
            sink.add_merge(left, right)
    return 0
