# Functions that the tokenizer modules share: views of texts, matching rules, lists of ids.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.ref cimport Py_INCREF, PyObject
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t
from libcpp cimport bool as cbool
from libcpp.string cimport string
from libcpp.vector cimport vector

from quire.errors import RequestError

cdef extern from "<string_view>" namespace "std" nogil:
    cdef cppclass string_view:
        string_view()
        string_view(const char *, size_t)
        const char *data()
        size_t size()

cdef extern from "unicode.h" namespace "quire::tokenizer" nogil:
    cbool is_utf8(string_view)

cdef extern from "added_tokens.h" namespace "quire::tokenizer" nogil:
    cdef enum class Control:
        plain
        parsed
    cdef cppclass Range:
        size_t begin
        size_t end
    cdef cppclass Fragment:
        int32_t id
        Range text
    cdef cppclass MatchRules:
        Control control
        const vector[Range] *literal
    cdef cppclass AddedToken:
        int32_t id
        cbool control
        cbool left_strip
        cbool right_strip
        cbool single_word

cdef extern from "core/large_pages.h" namespace "quire" nogil:
    void advise_large_pages(void *, size_t)

cdef extern from "Python.h":
    ctypedef struct PyListObject:
        PyObject **ob_item
    void Py_SET_SIZE(PyListObject *, Py_ssize_t)

# Longer texts are encoded without the GIL.
cdef inline cbool is_long(size_t n_bytes) noexcept nogil:
    return n_bytes > 2048


cdef inline string_view view_of(object text) except *:
    """Return a view of a str or bytes object, valid as long as the object lives."""
    cdef Py_ssize_t size
    cdef const char *data
    if isinstance(text, bytes):
        return string_view(PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
    try:
        data = PyUnicode_AsUTF8AndSize(text, &size)
    except UnicodeEncodeError as error:
        raise RequestError(
            f"[tokenizer] lone surrogate at character {error.start} of the text"
        ) from None
    return string_view(data, size)


cdef inline list list_of(const vector[int32_t] &ids):
    """Return the ids as a list.  Ids that repeat soon share an object, because creating millions of objects is slow.

    The list has room for a few more ids before and after a text, because growing would copy it.
    """
    cdef Py_ssize_t room = 8
    cdef list found = PyList_New(<Py_ssize_t>ids.size() + room)
    cdef PyObject *recent[256]  # borrowed from the list
    cdef int32_t recent_ids[256]
    cdef size_t i, slot
    cdef object id
    Py_SET_SIZE(<PyListObject *>found, <Py_ssize_t>ids.size())
    advise_large_pages((<PyListObject *>found).ob_item, ids.size() * sizeof(void *))
    for slot in range(256):
        recent_ids[slot] = -1
    for i in range(ids.size()):
        slot = <size_t>ids[i] & 255
        if recent_ids[slot] == ids[i] and ids[i] >= 0:
            id = <object>recent[slot]
        else:
            id = ids[i]
            recent[slot] = <PyObject *>id
            recent_ids[slot] = ids[i]
        Py_INCREF(id)  # PyList_SET_ITEM takes over the reference
        PyList_SET_ITEM(found, i, id)
    return found


cdef inline int check_length(string_view view) except -1:
    if view.size() > 0x7fffffff:
        raise RequestError(f"[tokenizer] text too long: {view.size()} bytes, the limit is 2 GiB")
    return 0


cdef inline int join_segments(object segments, string &joined, vector[Range] &literal) except -1:
    """Join the texts of (text, is_template) pairs, and list the ranges that are not from the template."""
    cdef Range part
    cdef string_view view
    for text, is_template in segments:
        view = view_of(text)
        part.begin = joined.size()
        joined.append(view.data(), view.size())
        part.end = joined.size()
        if not is_template and part.end > part.begin:
            literal.push_back(part)
    return 0


cdef inline AddedToken added_token(size_t id, cbool control, object rule):
    """Make an added token; `rule`, or None, has its options."""
    cdef AddedToken token
    token.id = <int32_t>id
    token.control = control
    token.left_strip = rule is not None and rule.left_strip
    token.right_strip = rule is not None and rule.right_strip
    token.single_word = rule is not None and rule.single_word
    return token


cdef inline MatchRules rules_of(object parse_control, const vector[Range] *literal) noexcept:
    """Make the matching rules; `literal`, or NULL, has the ranges in which control tokens are not matched."""
    cdef MatchRules rules
    rules.control = Control.parsed if parse_control else Control.plain
    rules.literal = literal
    return rules


cdef inline list list_of_fragments(const vector[Fragment] &parts, string_view text):
    """Return the pieces of a text and the ids of the added tokens between them; invalid UTF-8 becomes U+FFFD."""
    cdef size_t i
    found = []
    for i in range(parts.size()):
        if parts[i].id >= 0:
            found.append(parts[i].id)
        else:
            found.append(PyUnicode_DecodeUTF8(
                text.data() + parts[i].text.begin, parts[i].text.end - parts[i].text.begin, "replace"))
    return found
