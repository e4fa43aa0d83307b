"""Text that is safe to show, against a plain Python oracle at every place where the bytes may be cut."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from quire._native.testing import StopMatcher
from quire.errors import RequestError


def expected(data: bytes, stops: list[str], include: bool) -> tuple[str, int | None]:
    """Return the text up to the stop string that ends first (the longest, at a tie), and its index."""
    text = data.decode(errors="replace")
    for end in range(1, len(text) + 1):
        ending = [(len(stop), stop) for stop in stops if text[:end].endswith(stop)]
        if ending:
            length, stop = max(ending)
            return text[: end if include else end - length], stops.index(stop)
    return text, None


def longest_held(text: str, stops: list[str]) -> int:
    """Return how many characters at the end may still become a stop string."""
    return max((n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)


def check(data: bytes, cuts: list[int], stops: list[str], include: bool) -> None:
    matcher = StopMatcher(stops, include_stop=include)
    text, which = expected(data, stops, include)
    shown = ""
    for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        shown += matcher.push(data[begin:end])
        assert text.startswith(shown)  # shown text is final
        so_far = data[:end].decode(errors="ignore")
        if not matcher.stopped and so_far.encode() == data[:end]:
            assert len(shown) == len(so_far) - longest_held(so_far, stops)  # no more is held back than needed
    shown += matcher.finish()
    assert (shown, matcher.matched) == (text, which)
    assert matcher.stopped == (which is not None)
    assert matcher.push(b"more") == ("" if which is not None else "more"[: 4 - longest_held("more", stops)])


TEXTS = [
    "Hello, wörld! 😀 stop here STOP",
    "aaaaab aaab aab ab b",
    "</s></s",
    "日本語のテキスト。終わり",
    "👩‍👩‍👧 family",
]
STOPS = [[], ["STOP"], ["aab", "aaab"], ["</s>"], ["本語", "終わり!"], ["👧"], ["b", "ab", "aab"], ["ababac", "abab"]]


@pytest.mark.parametrize("stops", STOPS, ids=str)
@pytest.mark.parametrize("text", TEXTS)
def test_every_cut(text, stops):
    data = text.encode()
    for include in (False, True):
        for cut in range(len(data) + 1):
            check(data, [cut], stops, include)
        check(data, list(range(1, len(data))), stops, include)


def test_every_ill_formed_pair_and_cut():
    """All lead bytes with edge continuations.  Oracle: the replacements of Python's decoder."""
    edges = [
        0x00,
        0x41,
        0x7F,
        0x80,
        0x8F,
        0x90,
        0x9F,
        0xA0,
        0xBF,
        0xC0,
        0xC1,
        0xC2,
        0xE0,
        0xED,
        0xEF,
        0xF0,
        0xF4,
        0xF5,
        0xFF,
    ]
    for first in range(0x80, 0x100):
        for second in edges:
            for third in (0x80, 0xBF, 0x41, 0xE2):
                data = bytes([0x61, first, second, third, 0x82, 0x62])
                whole = StopMatcher([])
                assert whole.push(data) + whole.finish() == data.decode(errors="replace")
                single = StopMatcher([])
                assert "".join(single.push(bytes([b])) for b in data) + single.finish() == data.decode(errors="replace")


def test_incomplete_end_is_replaced():
    for whole in ("é", "日", "😀"):
        for n in range(1, len(whole.encode())):
            data = b"x" + whole.encode()[:n]
            matcher = StopMatcher([])
            assert matcher.push(data) == "x"
            assert matcher.finish() == data.decode(errors="replace")[1:] == "\ufffd"


pieces = st.sampled_from(["a", "b", "ab", "ba", "é", "日", "😀", "\n"])


@settings(max_examples=400, deadline=None)
@given(
    data=st.lists(pieces.map(str.encode) | st.binary(min_size=1, max_size=2), max_size=14).map(b"".join),
    stops=st.lists(st.lists(pieces, min_size=1, max_size=4).map("".join), max_size=4, unique=True),
    include=st.booleans(),
    chunks=st.lists(st.integers(0, 40), max_size=6),
)
@example(data=b"\xf0\x9f", stops=["\ufffd"], include=False, chunks=[1])
def test_any_text_any_cuts(data, stops, include, chunks):
    check(data, sorted(min(cut, len(data)) for cut in chunks), stops, include)


def test_empty_stop_is_refused():
    with pytest.raises(RequestError, match="stop"):
        StopMatcher(["a", ""])
