# cython: language_level=3
"""Pre-tokenizers alone: see python/quire/_tokenizer/pretokenize.pyi."""

from libcpp.vector cimport vector
from passes cimport Pass, read_passes
from texts cimport Range

cdef extern from *:
    """
    #include "added_tokens.h"
    #include "pretokenize.h"
    static std::vector<quire::tokenizer::Range> piece_ranges(const std::vector<quire::tokenizer::Pass> &passes,
                                                             const char *text, size_t size) {
        std::vector<quire::tokenizer::Range> found;
        quire::tokenizer::split(passes, 0, text, 0, size,
                                [&](size_t begin, size_t end) { found.push_back({begin, end}); });
        return found;
    }
    """
    const char *version "quire::tokenizer::unicode_version"
    vector[Range] piece_ranges(const vector[Pass] &, const char *, size_t) except +

unicode_version = version.decode()


cdef class Splitter:
    cdef vector[Pass] passes

    def __init__(self, passes):
        read_passes(passes, self.passes)

    def split(self, text):
        cdef bytes data = text.encode() if isinstance(text, str) else text
        cdef Range part
        return [data[part.begin:part.end] for part in piece_ranges(self.passes, data, len(data))]


def split(text, passes):
    return Splitter(passes).split(text)
