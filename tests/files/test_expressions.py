"""Expressions of files and users: what they match is what Python's ``re`` matches; steps are bounded."""

from __future__ import annotations

import random
import re
import warnings

import pytest
from quire.errors import LoadError, RequestError, UnsupportedError
from quire.expressions import Expression, Steps

LETTERS = "aab.1_\n A"
ATOMS = ("a", "b", ".", r"\.", r"\d", r"\w", r"\s", r"\D", r"\W", "[ab]", "[^a]", "[a-z.]", r"[^\d_]", "1", "_", "A")
PLACES = ("^", "$", r"\b", r"\B", r"\A", r"\Z")
COUNTS = ("*", "+", "?", "{2}", "{1,2}", "{0,3}", "{2,}", "*?", "+?", "??")
# Of names that published configurations describe.
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
    """An expression of a few parts."""
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


def test_matches_are_pythons() -> None:
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


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "(a|a)*$", "(a|aa)+$", "(.*)*x", "((a*)*)*b", "(a?){99}(a){99}$", ".*.*.*.*.*.*.*.*x", "(((a{0,9}){0,9}){0,9})*$"]
)  # fmt: skip
def test_no_expression_takes_exponentially_long(pattern: str) -> None:
    """Python's own matching would take 2^200 steps or 200^8 for most of them."""
    text = "a" * 200 + "!"
    steps = Steps()
    assert not Expression(pattern, "it", steps=steps).fullmatch(text)
    assert steps.most - steps.left < 50_000
    assert Expression(pattern.rstrip("$xb"), "it").match(text)


def test_what_is_refused() -> None:
    for pattern, words in {
        "(": r"\[x\] 'y' must be an expression but '\(' is none: missing \)",
        "a{2,1}": "min repeat greater", "(?<=a*)b": "look-behind requires", "a{99999999999}": "too large",
        "(" * 5000 + ")" * 5000: "must be (an expression|nested)", "a" * 20000: "of 16384 characters at most but has 20000",
    }.items():  # fmt: skip
        with warnings.catch_warnings(), pytest.raises((RequestError, UnsupportedError), match=words):
            Expression(pattern, "[x] 'y'", RequestError)
    refused = [r"(a)\1", "(a)?(?(1)b|c)", *(["(?>a)", "a*+"] if hasattr(re, "NOFLAG") else [])]
    for pattern in refused:
        with pytest.raises(UnsupportedError, match="must have no back-references and possessive"):
            Expression(pattern, "it")
    shared = Steps(3000)
    first, other = Expression("(a|b)*c", "it", steps=shared), Expression("(ab)*c", "[x] 'y'", steps=shared)
    assert not first.match("ab" * 60)
    assert 0 < shared.left < 3000
    with pytest.raises(LoadError, match=r"\[x\] 'y' must match in 3000 steps but '\(ab\)\*c' takes more"):
        other.match("ab" * 2000)
