# cython: language_level=3, boundscheck=False, wraparound=False
"""Byte-level byte-pair encoding: see python/quire/_tokenizer/bpe.pyi."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t
from libcpp cimport bool as cbool
from libcpp.string cimport string
from libcpp.vector cimport vector
from packed cimport MergeSink, add_merges, next_packed
from passes cimport Pass, read_passes
from texts cimport (
    AddedToken, Fragment, MatchRules, PyUnicode_DecodeUTF8, Range, added_token, check_length, is_long, is_utf8,
    join_segments, list_of, list_of_fragments, rules_of, string_view, view_of,
)

from quire._tokenizer.packed import PackedStrings
from quire.errors import LoadError, RequestError, UnsupportedError

cdef extern from "bpe.h" namespace "quire::tokenizer" nogil:
    cdef enum class TokenKind(int32_t):
        normal
        unknown
        control
        user_defined
        unused
    cdef enum class Stage:
        both
        second
    cdef cppclass BytePairModel(MergeSink):
        vector[Pass] passes
        cbool ignore_merges
        int32_t unknown_id
        void reserve(size_t, size_t, size_t)
        void add_token(string_view, TokenKind) except +ValueError
        void end_tokens() except +ValueError
        void add_added_token(const AddedToken &, cbool)
        void end_merges()
        size_t n_tokens()
        TokenKind kind(size_t)
        string_view bytes(size_t)
        void encode(string_view, const MatchRules &, Stage, vector[int32_t] &) except +
    vector[Fragment] fragments_of(const BytePairModel &, string_view, const MatchRules &) except +

def unpacked(data, n, only=None):
    cdef bytes packed = data
    cdef size_t at = 0, i = 0
    cdef size_t wanted
    cdef string_view text
    found = []
    for number in range(n) if only is None else only:
        wanted = number
        if wanted >= <size_t>n:
            raise ValueError(f"no string {wanted}: there are {n} packed strings")
        while i <= wanted:
            text = next_packed(packed, &at)
            i += 1
        found.append(PyUnicode_DecodeUTF8(text.data(), text.size(), "surrogateescape"))
    return found


cdef class BytePairEncoder:
    cdef BytePairModel model

    def __init__(self, tokens, kinds, merges, *, passes, ignore_merges=False, unknown_id=None, added=()):
        cdef Py_ssize_t n = len(tokens)
        cdef object text
        if len(kinds) != n:
            raise LoadError(f"[tokenizer] {len(kinds)} token types for {n} tokens: expected one per token")
        self.model.ignore_merges = ignore_merges
        self.model.unknown_id = -1 if unknown_id is None else unknown_id
        try:
            read_passes(passes, self.model.passes)
        except ValueError as error:
            raise UnsupportedError(f"[tokenizer] unsupported pre-tokenizer: {error}") from None
        try:
            self.model.reserve(n, 8 * n, len(merges))
            if isinstance(tokens, PackedStrings):
                self._add_packed_tokens(tokens.data, kinds, n)
            else:
                for text, kind in zip(tokens, kinds):
                    self.model.add_token(view_of(text), <TokenKind>(<int32_t>kind))
            self.model.end_tokens()
            add_merges(merges, &self.model)
            self.model.end_merges()
        except RequestError:
            raise LoadError("[tokenizer] a token or merge is not UTF-8") from None
        except ValueError as error:
            raise LoadError(f"[tokenizer] {error}") from None
        self._add_added(added)

    cdef _add_packed_tokens(self, bytes packed, kinds, Py_ssize_t n):
        cdef Py_ssize_t id
        cdef size_t at = 0
        cdef string_view text
        for id in range(n):
            text = next_packed(packed, &at)
            if not is_utf8(text):
                raise LoadError("[tokenizer] a token or merge is not UTF-8")
            self.model.add_token(text, <TokenKind>(<int32_t>kinds[id]))

    cdef _add_added(self, object added):
        """Register control and user-defined tokens, which are matched literally; `added` has their options."""
        cdef TokenKind kind
        cdef size_t id
        rules = {rule.id: rule for rule in added}
        for id in range(self.model.n_tokens()):
            kind = self.model.kind(id)
            if kind == TokenKind.normal or kind == TokenKind.unused:
                continue
            rule = rules.get(id)
            self.model.add_added_token(
                added_token(id, kind != TokenKind.user_defined, rule), rule is not None and rule.normalized)

    @property
    def n_tokens(self):
        return self.model.n_tokens()

    def encode(self, text, parse_control=False, normalized=False):
        return self._encode(view_of(text), rules_of(parse_control, NULL), Stage.second if normalized else Stage.both)

    def encode_segments(self, segments):
        cdef string joined
        cdef vector[Range] literal
        join_segments(segments, joined, literal)
        return self._encode(string_view(joined.data(), joined.size()), rules_of(True, &literal), Stage.both)

    def split_added(self, text, parse_control=False):
        cdef string_view view = view_of(text)
        return list_of_fragments(fragments_of(self.model, view, rules_of(parse_control, NULL)), view)

    cdef list _encode(self, string_view view, const MatchRules &rules, Stage stage):
        cdef vector[int32_t] ids
        check_length(view)
        if is_long(view.size()):
            with nogil:
                ids.reserve(view.size())  # unused memory is never touched, so it costs nothing
                self.model.encode(view, rules, stage, ids)
        else:
            self.model.encode(view, rules, stage, ids)
        return list_of(ids)

    def token_bytes(self, size_t id):
        cdef string_view view = self.model.bytes(self._checked(id))
        return PyBytes_FromStringAndSize(view.data(), view.size())

    def decode(self, ids, skip_control=True):
        cdef string out
        cdef string_view view
        cdef TokenKind kind
        cdef size_t id
        for id in ids:
            kind = self.model.kind(self._checked(id))
            if skip_control and (kind == TokenKind.control or kind == TokenKind.unknown):
                continue
            view = self.model.bytes(id)
            out.append(view.data(), view.size())
        return PyBytes_FromStringAndSize(out.data(), out.size())

    cdef size_t _checked(self, size_t id) except? 0:
        if id >= self.model.n_tokens():
            raise RequestError(f"[tokenizer] token id {id} is out of range: there are {self.model.n_tokens()} tokens")
        return id
