# cython: language_level=3
"""Pre-tokenizers alone: see python/quire/_tokenizer/pretokenize.pyi."""

from libcpp.vector cimport vector

cdef extern from *:
    """
    #include "pretokenize.h"
    static std::vector<size_t> piece_ends(const std::vector<quire::tokenizer::Pass> &passes, const char *text,
                                          size_t size) {
        std::vector<size_t> ends;
        quire::tokenizer::split(passes, 0, text, 0, size, [&](size_t, size_t end) { ends.push_back(end); });
        return ends;
    }
    static quire::tokenizer::Pass pass_of(const char *name) { return quire::tokenizer::pass_named(name); }
    """
    cdef enum class Pass "quire::tokenizer::Pass":
        pass
    const char *version "quire::tokenizer::unicode_version"
    vector[size_t] piece_ends(const vector[Pass] &, const char *, size_t) except +
    Pass pass_of(const char *) except +ValueError

unicode_version = version.decode()


def split(text, passes):
    cdef vector[Pass] scanners
    cdef bytes data = text.encode() if isinstance(text, str) else text
    cdef size_t begin = 0, end
    for name in passes:
        scanners.push_back(pass_of(name.encode()))
    pieces = []
    for end in piece_ends(scanners, data, len(data)):
        pieces.append(data[begin:end])
        begin = end
    return pieces
