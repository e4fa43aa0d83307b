"""Expressions from files and users: they match like Python's ``re``, in bounded time."""

from __future__ import annotations

import contextlib
import random
import re
import time

import pytest
from quire.errors import LoadError, RequestError, UnsupportedError
from quire.files.expressions import Expression, MatchTime

LETTERS = "aab.1_\n A"
ATOMS = ("a", "b", ".", r"\.", r"\d", r"\w", r"\s", r"\D", r"\W", "[ab]", "[^a]", "[a-z.]", r"[^\d_]", "1", "_", "A")
PLACES = ("^", "$", r"\b", r"\B", r"\A", r"\Z")
COUNTS = ("*", "+", "?", "{2}", "{1,2}", "{0,3}", "{2,}", "*?", "+?", "??")
# Names that published configurations use.
PUBLISHED = (
    r"model\.layers\.\d+\.mlp\.gate$", r".*\.(q|k|v|o)_proj", r"(?!.*lm_head).*proj$", r".*self_attn\.(?!o_proj).*",
    r"(?:.*?(?:language|text).*?(?:self_attn|attention|mlp).*?(?:q_proj|down_proj).*?)|(?:\bmodel\.layers\.[\d]{1,}\.(?:self_attn|mlp)"
    r"\.(?:(?:q_proj|down_proj)))", r"^(?:(?!vision).)*\.(?:up|down)_proj$", r"(?i)MODEL\.layers\.[0-3]\..*", r"(?<!vision\.)model",
)  # fmt: skip
NAMES = (
    "model.layers.0.mlp.gate", "model.layers.12.self_attn.q_proj", "model.layers.4.self_attn.o_proj", "lm_head",
    "vision.model.blocks.3.mlp.down_proj", "language_model.model.layers.7.mlp.down_proj", "model.embed_tokens", "",
)  # fmt: skip


def made(source: random.Random, depth: int = 0) -> str:
    """A random expression of a few parts."""
    parts = []
    for _ in range(source.randint(1, 3)):
        kind = source.random()
        if kind < 0.12:
            parts.append(source.choice(PLACES))
            continue
        if kind < 0.5 and depth < 2:
            inner = "|".join(made(source, depth + 1) for _ in range(source.randint(1, 2)))
            part = source.choice(["(", "(?:", "(?i:", "(?s:"]) + inner + ")"
            if source.random() < 0.2:
                parts.append(source.choice(["(?=", "(?!"]) + inner + ")")
                continue
        elif kind < 0.56:
            parts.append(source.choice(["(?<=a)", "(?<!b)", "(?<=a.)", r"(?<!\w\w)"]))
            continue
        else:
            part = source.choice(ATOMS)
        parts.append(part + (source.choice(COUNTS) if source.random() < 0.5 else ""))
    return "".join(parts)


def check(pattern: str, text: str) -> None:
    ours, theirs = Expression(pattern, "it"), re.compile(pattern)
    for how in ("match", "fullmatch", "search"):
        assert getattr(ours, how)(text) == (getattr(theirs, how)(text) is not None), (how, pattern, text)


def test_matches_equal_pythons() -> None:
    source = random.Random(7)
    for _ in range(1500):
        pattern = source.choice(["", "", "(?i)", "(?s)", "(?m)", "(?a)"]) + made(source)
        for _ in range(6):
            check(pattern, "".join(source.choice(LETTERS) for _ in range(source.randint(1, 7))))
    for pattern in PUBLISHED:
        for name in NAMES:
            check(pattern, name)
    for pattern, text in ((r"(?i)[^K-Z]x", "kX"), (r"\w\d\s", "é٣\u2003"), (r"(?a)\w\d\s", "é٣\u2003"), ("(?i)É", "é")):
        check(pattern, text)


# Python's own matching would take 2^200 steps or 200^8 for most of them.
@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "(a|a)*$", "(a|aa)+$", "(.*)*x", "((a*)*)*b", "(a?){99}(a){99}$", ".*.*.*.*.*.*.*.*x", "(((a{0,9}){0,9}){0,9})*$"]
)  # fmt: skip
def test_no_expression_takes_exponentially_long(pattern: str) -> None:
    """Each gives an answer or an error within its share of processor time."""
    begin_s = time.process_time()
    with contextlib.suppress(LoadError):
        assert not Expression(pattern, "it").fullmatch("a" * 200 + "!")
    assert time.process_time() - begin_s < 2
    assert Expression(pattern.rstrip("$xb"), "it").match("a" * 200 + "!")


@pytest.mark.parametrize(
    "pattern", ["((a{300}){300}){300}", "((a{9999}){9999}){9999}", "(?:" + "a|b" * 2000 + "){50}", "a{999999}"]
)
def test_no_expression_takes_much_memory_to_compile(pattern: str) -> None:
    """`regex` would take seconds and gigabytes for the first."""
    with pytest.raises(LoadError, match="repeats too much"):
        Expression(pattern, "it")


def test_back_references_match_as_pythons_do() -> None:
    for pattern, text in ((r"(a)\1b", "aab"), (r"(a)\1b", "ab"), ("(a)?(?(1)b|c)", "ab"), ("(a)?(?(1)b|c)", "ac")):
        check(pattern, text)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(", r"\[x\] 'y' .* '\(' \(missing \)"), ("a{2,1}", "min repeat greater"), ("(?<=a*)b", "look-behind requires"),
        ("a{99999999999}", "too large"), ("(" * 5000 + ")" * 5000, r"'\(\(\("), ("a" * 20000, "20000 characters: .* 16384"),
        ("(?:ab){e<=1}", "brace"), ("a{i}", "brace"), ("(?R)", "R"), (r"\p{L}", "bad escape"),
    ],
)  # fmt: skip
def test_invalid_expressions_are_errors(pattern: str, words: str) -> None:
    with pytest.raises((RequestError, UnsupportedError), match=words):
        Expression(pattern, "[x] 'y'", RequestError)


def test_expressions_share_their_time() -> None:
    shared = MatchTime(1e-9)
    Expression("(a|b)*c", "it", match_time=shared)
    with contextlib.suppress(LoadError):
        Expression("(a|aa)+$", "it", match_time=shared).match("ab" * 60)
    assert shared.left_s < 0
    with pytest.raises(LoadError, match=r"\[x\] 'y' .*'\(ab\)\*c'"):
        Expression("(ab)*c", "[x] 'y'", match_time=shared).match("abc")
