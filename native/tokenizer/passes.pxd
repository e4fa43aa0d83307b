# Conversion of pre-tokenizer passes from Python: (expression, behavior, inverted), or (None, name of digit groups,
# False).

from libc.stdint cimport int32_t
from libcpp cimport bool as cbool
from libcpp.vector cimport vector
from texts cimport string_view, view_of

cdef extern from "pretokenize.h" namespace "quire::tokenizer" nogil:
    cdef enum class Behavior(int32_t):
        isolated
        removed
        merged_with_previous
        merged_with_next
        contiguous
    cdef enum class DigitGroups(int32_t):
        cuts
        word_ends
        numbers
    cdef cppclass Pass:
        pass

cdef extern from *:
    """
    #include "pretokenize.h"
    static void add_pass(std::vector<quire::tokenizer::Pass> &passes, std::string_view expression,
                         quire::tokenizer::Behavior behavior, bool inverted) {
        passes.emplace_back(expression, behavior, inverted);
    }
    static void add_digits(std::vector<quire::tokenizer::Pass> &passes, quire::tokenizer::DigitGroups groups) {
        passes.emplace_back(groups);
    }
    """
    void add_pass(vector[Pass] &, string_view, Behavior, cbool) except +ValueError
    void add_digits(vector[Pass] &, DigitGroups) except +ValueError


cdef inline int read_passes(object passes, vector[Pass] &found) except -1:
    """Convert passes; raises ValueError for an unsupported expression."""
    behaviors = {
        "isolated": <int>Behavior.isolated,
        "removed": <int>Behavior.removed,
        "merged_with_previous": <int>Behavior.merged_with_previous,
        "merged_with_next": <int>Behavior.merged_with_next,
        "contiguous": <int>Behavior.contiguous,
    }
    groups = {"cuts": <int>DigitGroups.cuts, "word_ends": <int>DigitGroups.word_ends,
              "numbers": <int>DigitGroups.numbers}
    for step in passes:
        if step.expression is None:
            add_digits(found, <DigitGroups><int32_t>groups[step.behavior])
        else:
            add_pass(found, view_of(step.expression), <Behavior><int32_t>behaviors[step.behavior], step.inverted)
    return 0
