# cython: language_level=3, boundscheck=False, wraparound=False
"""Tokenizers of pieces of text: see python/quire/_tokenizer/pieces.pyi."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t
from libcpp cimport bool as cbool
from libcpp.string cimport string
from libcpp.vector cimport vector
from texts cimport (
    AddedToken, Control, MatchRules, PyUnicode_DecodeUTF8, Range, added_token, check_length, is_long, join_segments,
    list_of, string_view, view_of,
)

from quire.errors import LoadError, RequestError

cdef extern from "piece_tokenizer.h" namespace "quire::tokenizer" nogil:
    cdef enum class PieceKind(int32_t):
        undefined
        normal
        unknown
        control
        user_defined
        unused
        byte
    cdef enum class Family(int32_t):
        scored_merges
        unigram
        word_piece
        longest_match
    cdef enum class Prefix(int32_t):
        none
        first
        every
    cdef cppclass SpaceRules:
        Prefix prefix
        cbool suffix
        cbool merge_extra
        cbool write_spaces
        cbool prefix_once
    cdef cppclass CharacterMap:
        CharacterMap()
        CharacterMap(string_view) except +ValueError
    cdef cppclass TextNormalizer:
        SpaceRules spaces
        CharacterMap map
    cdef cppclass PieceTable:
        int32_t unknown_id
        void reserve(size_t)
        void add_token(string_view, PieceKind) except +ValueError
        size_t n_tokens()
    cdef cppclass PieceTokenizer:
        PieceTable table
        TextNormalizer normalizer
        cbool drops_marks
        void end_tokens(Family, const vector[float] &) except +ValueError
        void add_added_token(string_view, const AddedToken &) except +
        void encode(string_view, const MatchRules &, vector[int32_t] &) except +

cdef extern from *:
    """
    #include "piece_tokenizer.h"
    struct PieceFragments {  // pieces of text and, where `id` is not -1, tokens between them
        std::vector<int32_t> ids;
        std::vector<quire::tokenizer::Range> ranges;
    };
    static PieceFragments piece_fragments(const quire::tokenizer::PieceTokenizer &tokenizer, std::string_view text,
                                          const quire::tokenizer::MatchRules &rules) {
        PieceFragments out;
        tokenizer.partition(
            text, rules,
            [&](size_t begin, size_t end) { out.ids.push_back(-1), out.ranges.push_back({begin, end}); },
            [&](int32_t id) { out.ids.push_back(id), out.ranges.push_back({0, 0}); });
        return out;
    }
    """
    cdef cppclass PieceFragments:
        vector[int32_t] ids
        vector[Range] ranges
    PieceFragments piece_fragments(const PieceTokenizer &, string_view, const MatchRules &) except +

FAMILIES = {"llama": <int>Family.scored_merges, "t5": <int>Family.unigram, "bert": <int>Family.word_piece,
            "rwkv": <int>Family.longest_match}
PREFIXES = {"none": <int>Prefix.none, "first": <int>Prefix.first, "every": <int>Prefix.every}


cdef class PieceEncoder:
    cdef PieceTokenizer tokenizer

    def __init__(self, family, matched, kinds, scores, *, texts, spaces, character_map=b"", unknown_id=None, added=(),
                 drops_marks=False):
        cdef Py_ssize_t n = len(matched), id
        cdef vector[float] native_scores
        cdef float score
        cdef PieceKind kind
        if len(kinds) != n or len(texts) != n:
            raise LoadError(f"[tokenizer] kinds must have one entry per token but has {len(kinds)} for {n} tokens")
        self.tokenizer.table.unknown_id = -1 if unknown_id is None else unknown_id
        self.tokenizer.normalizer.spaces.prefix = <Prefix><int>PREFIXES[spaces.prefix]
        self.tokenizer.normalizer.spaces.suffix = spaces.suffix
        self.tokenizer.normalizer.spaces.merge_extra = spaces.merge_extra
        self.tokenizer.normalizer.spaces.write_spaces = spaces.write_spaces
        self.tokenizer.normalizer.spaces.prefix_once = spaces.prefix_once
        self.tokenizer.drops_marks = drops_marks
        native_scores.reserve(n)
        for value in scores:
            score = value
            if score - score != 0:
                raise LoadError(f"[tokenizer] scores must be finite but one is {score}")
            native_scores.push_back(score)
        if native_scores.size() < <size_t>n:
            raise LoadError(f"[tokenizer] scores must have one entry per token but has {len(scores)} for {n} tokens")
        try:
            if character_map:
                self.tokenizer.normalizer.map = CharacterMap(view_of(character_map))
            self.tokenizer.table.reserve(n)
            for text, number in zip(matched, kinds):
                self.tokenizer.table.add_token(view_of(text), <PieceKind>(<int32_t>number))
            self.tokenizer.end_tokens(<Family><int>FAMILIES[family], native_scores)
        except RequestError:
            raise LoadError("[tokenizer] tokens must be UTF-8 but one is not") from None
        except ValueError as error:
            raise LoadError(f"[tokenizer] {error}") from None
        rules = {rule.id: rule for rule in added}
        for id in range(n):
            kind = <PieceKind>(<int32_t>kinds[id])
            if kind == PieceKind.control or kind == PieceKind.unknown or kind == PieceKind.user_defined:
                self.tokenizer.add_added_token(
                    view_of(texts[id]), added_token(id, kind != PieceKind.user_defined, rules.get(id)))

    def encode(self, text, parse_control=False):
        cdef MatchRules rules
        rules.control = Control.parsed if parse_control else Control.plain
        rules.literal = NULL
        return self._encode(view_of(text), rules)

    def encode_segments(self, segments):
        cdef string joined
        cdef vector[Range] literal
        cdef MatchRules rules
        join_segments(segments, joined, literal)
        rules.control = Control.parsed
        rules.literal = &literal
        return self._encode(string_view(joined.data(), joined.size()), rules)

    def split_added(self, segments, parse_control=False):
        cdef string joined
        cdef vector[Range] literal
        cdef MatchRules rules
        cdef PieceFragments parts
        cdef size_t i
        join_segments(segments, joined, literal)
        rules.control = Control.parsed if parse_control else Control.plain
        rules.literal = &literal
        parts = piece_fragments(self.tokenizer, string_view(joined.data(), joined.size()), rules)
        found = []
        for i in range(parts.ids.size()):
            if parts.ids[i] >= 0:
                found.append(parts.ids[i])
            else:
                found.append(PyUnicode_DecodeUTF8(joined.data() + parts.ranges[i].begin,
                                                  parts.ranges[i].end - parts.ranges[i].begin, "replace"))
        return found

    cdef list _encode(self, string_view view, const MatchRules &rules):
        cdef vector[int32_t] ids
        check_length(view)
        if is_long(view.size()):
            with nogil:
                ids.reserve(view.size())  # only what is used is ever taken from the system
                self.tokenizer.encode(view, rules, ids)
        else:
            self.tokenizer.encode(view, rules, ids)
        return list_of(ids)
