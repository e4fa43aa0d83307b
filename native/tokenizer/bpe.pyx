# cython: language_level=3, boundscheck=False, wraparound=False
"""Byte-level byte-pair encoding: see python/quire/_tokenizer/bpe.pyi."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, uint64_t
from libc.string cimport memcpy
from libcpp cimport bool as cbool
from libcpp.string cimport string
from libcpp.vector cimport vector
from passes cimport Pass, read_passes
from texts cimport (
    AddedToken, Control, MatchRules, PyUnicode_DecodeUTF8, Range, added_token, check_length, is_long, join_segments,
    list_of, string_view, view_of,
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
    cdef cppclass BytePairModel:
        vector[Pass] passes
        cbool ignore_merges
        int32_t unknown_id
        void reserve(size_t, size_t, size_t)
        void add_token(string_view, TokenKind) except +ValueError
        void end_tokens()
        void add_added_token(const AddedToken &, cbool)
        void add_merge(string_view, string_view) except +ValueError
        void end_merges()
        size_t n_tokens()
        TokenKind kind(size_t)
        string_view bytes(size_t)
        void encode(string_view, const MatchRules &, Stage, vector[int32_t] &) except +

cdef extern from *:
    """
    #include "bpe.h"
    struct Fragments {  // pieces of text and, where `id` is not -1, tokens between them
        std::vector<int32_t> ids;
        std::vector<quire::tokenizer::Range> ranges;
    };
    static Fragments fragments_of(const quire::tokenizer::BytePairModel &model, std::string_view text,
                                  const quire::tokenizer::MatchRules &rules) {
        Fragments out;
        model.partition(
            text, rules,
            [&](size_t begin, size_t end) { out.ids.push_back(-1), out.ranges.push_back({begin, end}); },
            [&](int32_t id) { out.ids.push_back(id), out.ranges.push_back({0, 0}); });
        return out;
    }
    static bool is_utf8(std::string_view text) {
        for (size_t at = 0; at < text.size();) {
            const quire::tokenizer::Code c = quire::tokenizer::code_at(text.data(), at, text.size());
            if (c.code == quire::tokenizer::not_a_code) return false;
            at += c.n_bytes;
        }
        return true;
    }
    """
    cdef cppclass Fragments:
        vector[int32_t] ids
        vector[Range] ranges
    cbool is_utf8(string_view)
    Fragments fragments_of(const BytePairModel &, string_view, const MatchRules &) except +


cdef class _PackedReader:
    """Strings one after another, each its length in 8 bytes and its text."""
    cdef bytes data
    cdef size_t at

    def __init__(self, bytes data not None):
        self.data = data
        self.at = 0

    cdef string_view next(self) except *:
        cdef const char *begin = PyBytes_AS_STRING(self.data)
        cdef size_t left = PyBytes_GET_SIZE(self.data) - self.at
        cdef uint64_t size = 0
        if left >= 8:
            memcpy(&size, begin + self.at, 8)
        if left < 8 or size > left - 8:
            raise ValueError("packed strings must not end early")
        self.at += 8 + size
        return string_view(begin + self.at - size, size)


def unpacked(data, n, only=None):
    cdef _PackedReader packed = _PackedReader(data)
    cdef string_view text
    cdef size_t i, size = n
    found = []
    for i in range(size):
        text = packed.next()
        if only is not None and i not in only:
            continue
        found.append(PyUnicode_DecodeUTF8(text.data(), text.size(), "surrogateescape"))
    return found


cdef class BytePairEncoder:
    cdef BytePairModel model

    def __init__(self, tokens, kinds, merges, *, passes, ignore_merges=False, unknown_id=None, added=()):
        cdef Py_ssize_t n = len(tokens), n_bytes = 0
        cdef string_view view
        cdef object text, merge
        if len(kinds) != n:
            raise LoadError(f"[tokenizer] kinds must have one entry per token but has {len(kinds)} for {n} tokens")
        self.model.ignore_merges = ignore_merges
        self.model.unknown_id = -1 if unknown_id is None else unknown_id
        try:
            read_passes(passes, self.model.passes)
        except ValueError as error:
            raise UnsupportedError(f"[tokenizer] the pre-tokenizer must be known but {error}") from None
        try:
            self.model.reserve(n, 8 * n, len(merges))
            if isinstance(tokens, PackedStrings):
                self._add_packed_tokens(_PackedReader(tokens.data), kinds, n)
            else:
                for text, kind in zip(tokens, kinds):
                    self.model.add_token(view_of(text), <TokenKind>(<int32_t>kind))
            self.model.end_tokens()
            if isinstance(merges, PackedStrings):
                self._add_packed_merges(_PackedReader(merges.data), merges.n)
            else:
                for merge in merges:
                    self._add_merge(merge)
            self.model.end_merges()
        except RequestError:
            raise LoadError("[tokenizer] tokens and merges must be UTF-8 but one is not") from None
        except ValueError as error:
            raise LoadError(f"[tokenizer] {error}") from None
        self._add_added(added)

    cdef _add_merge(self, object merge):
        cdef string_view view, right
        if not isinstance(merge, str):
            left_text, right_text = merge
            view, right = view_of(left_text), view_of(right_text)
            self.model.add_merge(view, right)
            return
        self._add_joined_merge(view_of(merge))

    cdef _add_joined_merge(self, string_view view):
        """A merge as two words with a space between; the first may begin with a space of its own."""
        cdef const char *data = view.data()
        cdef size_t at = 1
        while at < view.size() and data[at] != 32:
            at += 1
        if at >= view.size():
            merge = PyUnicode_DecodeUTF8(data, view.size(), "replace")
            raise ValueError(f"a merge must be two words with a space between but is {merge!r}")
        self.model.add_merge(string_view(data, at), string_view(data + at + 1, view.size() - at - 1))

    cdef _add_packed_tokens(self, _PackedReader packed, kinds, Py_ssize_t n):
        cdef Py_ssize_t id
        cdef string_view text
        for id in range(n):
            text = packed.next()
            if not is_utf8(text):
                raise LoadError("[tokenizer] tokens and merges must be UTF-8 but one is not")
            self.model.add_token(text, <TokenKind>(<int32_t>kinds[id]))

    cdef _add_packed_merges(self, _PackedReader packed, size_t n):
        cdef size_t i
        for i in range(n):
            self._add_joined_merge(packed.next())

    cdef _add_added(self, object added):
        """Control and user-defined tokens are matched as they stand; `added` says how where that is not plain."""
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
        cdef string_view view = view_of(text)
        cdef MatchRules rules
        rules.control = Control.parsed if parse_control else Control.plain
        rules.literal = NULL
        return self._encode(view, rules, Stage.second if normalized else Stage.both)

    def encode_segments(self, segments):
        cdef string joined
        cdef vector[Range] literal
        cdef MatchRules rules
        join_segments(segments, joined, literal)
        rules.control = Control.parsed
        rules.literal = &literal
        return self._encode(string_view(joined.data(), joined.size()), rules, Stage.both)

    def split_added(self, text, parse_control=False):
        cdef string_view view = view_of(text)
        cdef MatchRules rules
        cdef Fragments parts
        rules.control = Control.parsed if parse_control else Control.plain
        rules.literal = NULL
        parts = fragments_of(self.model, view, rules)
        found = []
        for i in range(parts.ids.size()):
            if parts.ids[i] >= 0:
                found.append(parts.ids[i])
            else:
                found.append(PyUnicode_DecodeUTF8(view.data() + parts.ranges[i].begin,
                                                  parts.ranges[i].end - parts.ranges[i].begin, "strict"))
        return found

    cdef list _encode(self, string_view view, const MatchRules &rules, Stage stage):
        cdef vector[int32_t] ids
        check_length(view)
        if is_long(view.size()):
            with nogil:
                ids.reserve(view.size())  # only what is used is ever taken from the system
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
            raise RequestError(f"[tokenizer] a token id must be below {self.model.n_tokens()} but is {id}")
        return id
