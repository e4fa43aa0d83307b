# cython: language_level=3, boundscheck=False, wraparound=False
"""Tokenizers of pieces of text: see python/quire/_tokenizer/pieces.pyi."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t
from libcpp cimport bool as cbool
from libcpp.string cimport string
from libcpp.vector cimport vector
from packed cimport MergeSink, add_merges
from passes cimport Pass, read_passes
from texts cimport (
    AddedToken, Fragment, MatchRules, Range, added_token, check_length, is_long, join_segments, list_of,
    list_of_fragments, rules_of, string_view, view_of,
)

from quire._tokenizer.packed import PackedStrings  # noqa: F401  packed.pxd asks for it here
from quire.errors import LoadError, RequestError, UnsupportedError

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
        ranked_merges
        unigram
        word_piece
        longest_match
        least_cost
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
    cdef cppclass RankedRules:
        vector[Pass] passes
        cbool whole_newlines
        size_t n_merges
    cdef cppclass PieceTokenizer(MergeSink):
        PieceTable table
        TextNormalizer normalizer
        RankedRules ranked
        cbool drops_marks
        void end_tokens(Family, const vector[float] &) except +ValueError
        void end_merges()
        void add_added_token(string_view, const AddedToken &) except +
        void encode(string_view, const MatchRules &, vector[int32_t] &) except +
    vector[Fragment] fragments_of(const PieceTokenizer &, string_view, const MatchRules &) except +

FAMILIES = {"llama": <int>Family.scored_merges, "gemma4": <int>Family.ranked_merges, "t5": <int>Family.unigram,
            "bert": <int>Family.word_piece, "rwkv": <int>Family.longest_match,
            "plamo2": <int>Family.least_cost}
PREFIXES = {"none": <int>Prefix.none, "first": <int>Prefix.first, "every": <int>Prefix.every}


cdef int read_scores(object scores, Py_ssize_t n, vector[float] &found) except -1:
    cdef float score
    found.reserve(n)
    for value in scores:
        score = value
        if score - score != 0:
            raise LoadError(f"[tokenizer] a token has the score {score}: expected a finite number")
        found.push_back(score)
    if found.size() < <size_t>n:
        raise LoadError(f"[tokenizer] {len(scores)} scores for {n} tokens: expected one per token")
    return 0


cdef class PieceEncoder:
    cdef PieceTokenizer tokenizer

    def __init__(self, family, matched, kinds, scores, *, texts, spaces, character_map=b"", unknown_id=None, added=(),
                 drops_marks=False, merges=(), pre_tokenizer=None):
        cdef Py_ssize_t n = len(matched)
        cdef vector[float] native_scores
        if len(kinds) != n or len(texts) != n:
            raise LoadError(f"[tokenizer] {len(kinds)} token types for {n} tokens: expected one per token")
        self.tokenizer.table.unknown_id = -1 if unknown_id is None else unknown_id
        self.tokenizer.drops_marks = drops_marks
        self._set_spaces(spaces)
        read_scores(scores, n, native_scores)
        if pre_tokenizer is not None:
            self._set_merging(merges, pre_tokenizer)
        try:
            if character_map:
                self.tokenizer.normalizer.map = CharacterMap(view_of(character_map))
            self.tokenizer.table.reserve(n)
            for text, number in zip(matched, kinds):
                self.tokenizer.table.add_token(view_of(text), <PieceKind>(<int32_t>number))
            self.tokenizer.end_tokens(<Family><int>FAMILIES[family], native_scores)
            if family == "gemma4":
                add_merges(merges, &self.tokenizer)
                self.tokenizer.end_merges()
        except RequestError:
            raise LoadError("[tokenizer] a token or merge is not UTF-8") from None
        except ValueError as error:
            raise LoadError(f"[tokenizer] {error}") from None
        self._add_added(texts, kinds, added)

    cdef _set_spaces(self, spaces):
        self.tokenizer.normalizer.spaces.prefix = <Prefix><int>PREFIXES[spaces.prefix]
        self.tokenizer.normalizer.spaces.suffix = spaces.suffix
        self.tokenizer.normalizer.spaces.merge_extra = spaces.merge_extra
        self.tokenizer.normalizer.spaces.write_spaces = spaces.write_spaces
        self.tokenizer.normalizer.spaces.prefix_once = spaces.prefix_once

    cdef _set_merging(self, merges, pre_tokenizer):
        self.tokenizer.ranked.n_merges = len(merges)
        self.tokenizer.ranked.whole_newlines = pre_tokenizer.whole_newlines
        try:
            read_passes(pre_tokenizer.passes, self.tokenizer.ranked.passes)
        except ValueError as error:
            raise UnsupportedError(f"[tokenizer] unsupported pre-tokenizer: {error}") from None

    cdef _add_added(self, texts, kinds, added):
        """Register control and user-defined tokens, which are matched literally; `added` has their options."""
        cdef PieceKind kind
        cdef Py_ssize_t id
        rules = {rule.id: rule for rule in added}
        for id in range(len(kinds)):
            kind = <PieceKind>(<int32_t>kinds[id])
            if kind == PieceKind.control or kind == PieceKind.unknown or kind == PieceKind.user_defined:
                self.tokenizer.add_added_token(
                    view_of(texts[id]), added_token(id, kind != PieceKind.user_defined, rules.get(id)))

    def encode(self, text, parse_control=False):
        return self._encode(view_of(text), rules_of(parse_control, NULL))

    def encode_segments(self, segments):
        cdef string joined
        cdef vector[Range] literal
        join_segments(segments, joined, literal)
        return self._encode(string_view(joined.data(), joined.size()), rules_of(True, &literal))

    def split_added(self, segments, parse_control=False):
        cdef string joined
        cdef vector[Range] literal
        cdef string_view view
        join_segments(segments, joined, literal)
        view = string_view(joined.data(), joined.size())
        return list_of_fragments(fragments_of(self.tokenizer, view, rules_of(parse_control, &literal)), view)

    cdef list _encode(self, string_view view, const MatchRules &rules):
        cdef vector[int32_t] ids
        check_length(view)
        if is_long(view.size()):
            with nogil:
                ids.reserve(view.size())  # unused memory is never touched, so it costs nothing
                self.tokenizer.encode(view, rules, ids)
        else:
            self.tokenizer.encode(view, rules, ids)
        return list_of(ids)
