"""Translating GBNF to Lark.

Oracles: texts that each grammar allows and refuses, decided by hand or by Python's ``re`` over the same language.
"""

from __future__ import annotations

import itertools
import re

import pytest
from grammar_texts import allows
from hypothesis import given, settings
from hypothesis import strategies as st
from quire.errors import RequestError, UnsupportedError
from quire.grammar.gbnf import gbnf_to_lark, is_gbnf
from quire.params.structured import StructuredOutputsParams

JSON = r"""
# JSON, written for this test
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,15})? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"""


def matches(grammar: str, text: str) -> bool:
    return allows(StructuredOutputsParams(grammar=grammar), text)


@pytest.mark.parametrize(
    ("grammar", "allowed", "refused"),
    [
        (r'root ::= "\u0041" [\u00e9-\u00ff]', ["Aé", "Aÿ"], ["A", "Ae", "é"]),
        (r'root ::= "\x41\U0001F600\t"', ["A😀\t"], ["A😀"]),
        ('root ::= "a" . "b"', ["a\nb", "axb", "aéb"], ["ab", "axxb"]),
        (r'root ::= [^"\n]+ "\""', ['ab"'], ['"', 'a\n"', "ab"]),
        ('root ::= "a"{2,3} "b"? "c"{2} "d"{1,}', ["aaccd", "aaabccdd"], ["accd", "aaaaccd", "aacd", "aacc"]),
        ('root ::= ("a" | "ab") "bc"', ["abc", "abbc"], ["ac", "ab"]),
        ('root ::= [a-z]+ "x"', ["abx", "xx"], ["x", "abc"]),
        ('root ::= "" | "a" root', ["", "a", "aaa"], ["b"]),
        (r'root ::= [a\-z] [\]x] [\[] "/" [-+] [x-]', ["-][/+-", "zx[/-x"], ["b][/+-"]),
        ('root ::= (\n "a" |\n "b"\n) # a comment\n\n# another\n', ["a", "b"], ["", "ab"]),
        ('root ::= foo-bar\nfoo-bar ::= "x"\nFoo-bar ::= "y"', ["x"], ["y"]),
        ('root ::= "a" |\n  "b"\n', ["a", "b"], ["ab"]),
        ('root ::= "(" root ")" | "x"{0,2}', ["((xx))", "", "(())"], ["(", "(x))"]),
        ('root ::= root "+" root | [0-9]', ["1", "1+2+3"], ["1+", "+1"]),
        ('root ::= ws "a" ws\nws ::= | " " ws', ["a", " a  "], ["b"]),
        ('root ::= ([a-z] ("," root)?)*', ["a,b,c", ""], [","]),
        ("root ::= [^]", ["x", "\n"], ["", "xy"]),
        ('root ::= ("a" | [b] | "c"+)? "é/\\"\\\\"', ['é/"\\', 'ccé/"\\'], ['é/"']),
    ],
)
def test_allowed_and_refused_texts(grammar, allowed, refused):
    assert is_gbnf(grammar)
    for text in allowed:
        assert matches(grammar, text), text
    for text in refused:
        assert not matches(grammar, text), text


def test_json_grammar():
    for text in ['{"a": [1, -2.5e3, {"b": null}], "c\\u00e9\\n": "x"}', "{}", '{"a":\n  true}']:
        assert matches(JSON, text), text
    for text in ["[1]", '{"a": }', '{"a": 01}', '{"a" 1}', '{"a": "\x01"}', '{"a": 1', "{}}"]:
        assert not matches(JSON, text), text


node = st.recursive(
    st.sampled_from(["a", "b", "ab", "[ab]", "[^a]", "."]),
    lambda inner: st.one_of(
        st.tuples(st.just("seq"), st.lists(inner, min_size=1, max_size=3)),
        st.tuples(st.just("alt"), st.lists(inner, min_size=1, max_size=3)),
        st.tuples(st.just("rep"), inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,}"])),
    ),
    max_leaves=6,
)


def both(tree: object) -> tuple[str, str]:
    """Return the tree in GBNF and as a regular expression of Python."""
    if isinstance(tree, str):
        return (tree, tree) if tree[0] in "[." else (f'"{tree}"', tree)
    assert isinstance(tree, tuple)
    if tree[0] == "rep":
        gbnf, regex = both(tree[1])
        return f"({gbnf}){tree[2]}", f"(?:{regex}){tree[2]}"
    parts = [both(inner) for inner in tree[1]]
    joint = (
        ("(" + " ".join(g for g, _ in parts) + ")") if tree[0] == "seq" else "(" + "|".join(g for g, _ in parts) + ")"
    )
    regex = "".join(r for _, r in parts) if tree[0] == "seq" else "|".join(r for _, r in parts)
    return joint, f"(?:{regex})"


@settings(max_examples=60, deadline=None)
@given(node)
def test_regular_grammars_match_as_re_does(tree):
    gbnf, regex = both(tree)
    # A rule of its own changes nothing.
    grammar = f"root ::= {gbnf} inner\ninner ::= {gbnf} | [b]"
    pattern = re.compile(f"{regex}(?:{regex}|b)", re.DOTALL)
    for n in range(5):
        for letters in itertools.product("abc", repeat=n):
            text = "".join(letters)
            assert matches(grammar, text) == bool(pattern.fullmatch(text)), (grammar, text)


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ('foo ::= "a"', "root"),
        ('root ::= "a"\n  | "b"', "line 2: "),
        ("root ::= foo", "line 1: .*foo"),
        ('root ::= "a"\nroot ::= "b"', "line 2: .*root"),
        ('root ::= "a', "string"),
        ("root ::= [a", "class"),
        ("root ::= []", "class is empty"),
        ("root ::= [z-a]", "'z' to 'a'"),
        ('root ::= ("a"', r"\)"),
        ('root ::= "a")', r"'\)'"),
        (r'root ::= "\q"', r"\\q"),
        (r'root ::= "\u12"', r"4 .*\\u"),
        (r'root ::= "\ud800"', "d800"),
        (r'root ::= "\U00110000"', "110000"),
        ('root ::= "a"{3,2}', r"\{3,2\}"),
        ('root ::= "a"{x}', "bounds"),
        ('root ::= "a"{1000000000}', "10000"),
        ("root ::= " + "(" * 30_000, "64 deep"),
    ],
)
def test_malformed_grammars_are_refused(grammar, reason):
    with pytest.raises(RequestError, match=reason):
        gbnf_to_lark(grammar)


@pytest.mark.parametrize("token", ["<think>", "<[1000]>", "!<think>"])
def test_tokens_are_refused(token):
    with pytest.raises(UnsupportedError, match="tokens"):
        gbnf_to_lark(f"root ::= {token}")
