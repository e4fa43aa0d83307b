"""ECMA-262 patterns of JSON Schema are translated exactly, or refused by name.

Oracle: RegExp of Node.js with the flag ``u``, or without it if the flag makes the pattern an error.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence

import pytest
from grammar_texts import allows
from quire.errors import QuireError, RequestError, UnsupportedError
from quire.grammar import check_schema
from quire.grammar.ecma import whole_text_pattern
from quire.params.structured import StructuredOutputsParams

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="node, the oracle for ECMA-262's regular expressions, is absent")

PROGRAM = r"""
const asked = JSON.parse(require('fs').readFileSync(0, 'utf8'));
console.log(JSON.stringify(asked.map(([pattern, texts]) => {
  let regex = null;
  for (const flags of ['u', '']) {
    try { regex = regex || new RegExp(pattern, flags); } catch (error) {}
  }
  return regex && texts.map((text) => regex.test(text));
})));
"""


def in_node(asked: Sequence[tuple[str, list[str]]]) -> list[list[bool] | None]:
    """Return whether Node.js finds each pattern in each of its texts; None for an invalid pattern."""
    assert NODE is not None
    done = subprocess.run([NODE, "-e", PROGRAM], input=json.dumps(asked), capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert isinstance(found, list)
    return found


def form(pattern: str) -> StructuredOutputsParams:
    return StructuredOutputsParams(json={"type": "string", "pattern": pattern}, disable_any_whitespace=True)


def is_allowed(wanted: StructuredOutputsParams, text: str) -> bool:
    return allows(wanted, json.dumps(text, ensure_ascii=False))


def is_refused(pattern: str) -> bool:
    """Return whether the grammar is refused because it allows nothing."""
    try:
        is_allowed(form(pattern), "")
    except RequestError:
        return True
    return False


# Characters that some pattern distinguishes, and that JSON can write without \uXXXX.
CHARACTERS = [
    *"aAbzZ09_-./ ,:]}[{^$&|\\\"\n\t\r\b\f", "\u00a0", "\u2028", "\ufeff", "\u200b", "\u0085", "\u180e", "\u0661", "é", "ß",
    "一", "😀", "\U0010ffff", "\u017f", "\u212a",
]  # fmt: skip

PATTERNS = [
    r"[[:alpha:]]", r"[a-z&&[^b]]", r"[a&&b]", r"[a--b]", r"[a~~b]", r"^\s$", r"^\S$", r"^\d$", r"^\D+$", r"^\w$", r"^\W$", r"^.$",
    r"^.*$", r"a|^b|c$", r"^(?:a|b)$", r"(^a|b)c", r"(a$|b)", r"^$", r"^", r"$", r"$^", r"a^", r"$a", r"a?^b", r"(^|,)a($|,)",
    r"(?<year>[0-9]{2})-(?<day>\d)", r"^\p{L}$", r"^\P{L}$", r"^[\p{L}\d]+$", r"^[^\p{Lu}]$", r"^\p{Script=Han}$", r"^\p{sc=Latin}$",
    r"^\p{Uppercase_Letter}$", r"^\p{General_Category=Lu}$", r"^\p{Alphabetic}$", r"^\p{ASCII}$", r"^\P{ASCII}$", r"^\p{Any}$",
    r"^\p{White_Space}$", r"^\p{Emoji}$", r"^\cJ$", r"^\ci$", r"^[\cJ]$", r"^\/a\/$", r"^[\b]$", r"^\t$", r"^\x41$", r"^\u0041$", r"^\u{1F600}$",
    r"^\uD83D\uDE00$", r"^[\u{1F600}]$", r"^[^]$", r"^[^a]$", r"^[\d-z]$", r"^[\w-.]+$", r"^[a\-z]$", r"^[-a]$", r"^[a-]$", r"^[\]]$",
    r"^]$", r"^}$", r"^a{2}$", r"^a{2,}$", r"^a{1,2}?$", r"^a{,2}$", r"^a{$", r"^{a}$", r"^a*?b+?$", r"^(a|)$", r"^(?:)*$", r"^()$",
    r"^[\s\S]*$", r"^[\W_]$", r"^[^\s]$", r"^[^\W]$", r"^\-\_?$", r"^\"$", r"^\\$", r"^a\.b$", r"^[.]$", r"^[$^]$", r"^[a^]$", r"a{0}b",
    r"^(a{2}){2}$", r"^#$", r"^a b$", r"^a # b$", r"^%&~<>!;'`=@$", r"(a|b$)?c*", r"(?:^a)?b", r"^[A-z]$", r"^[_-a]$", r"^[ -~]$", r"^[!-\/]$",
]  # fmt: skip


@needs_node
def test_patterns_match_as_in_javascript() -> None:
    texts = [*CHARACTERS, "", "ab", "ba", "aa", "aaa", "bc", "ac", "xbc", "xac", "21-3", "a,b", ",a,", "x,a", "alpha:]", "a]", "&]", "c]",
             "/a/", "b]", "a&b", "a.b", "a b", "a # b", "{a}", "a{,2}", "a{", "aaaa", "abc", "a-z", "%&~<>!;'`=@", "\n\n", "a\n", "-_"]  # fmt: skip
    n_enforced = 0
    for pattern, wanted in zip(PATTERNS, in_node([(pattern, texts) for pattern in PATTERNS]), strict=True):
        if wanted is None:
            with pytest.raises(QuireError):
                check_schema({"pattern": pattern})
            continue
        with contextlib.suppress(UnsupportedError):
            check_schema({"pattern": pattern})
            assert [is_allowed(form(pattern), text) for text in texts] == wanted, pattern
            n_enforced += 1
    assert n_enforced > len(PATTERNS) - 8


def random_pattern(rng: random.Random, depth: int = 0) -> str:
    kinds: list[Callable[[], str]] = [
        lambda: rng.choice("abAZ09_- ,:é一😀&"),
        lambda: rng.choice([r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", ".", r"\.", r"\/", r"\-", r"\t", r"\cJ", r"\x61", r"\u00e9", r"\p{L}", r"\P{Lu}"]),
        lambda: rng.choice(["^", "$", "^", "$", ""]),
        lambda: random_set(rng),
    ]  # fmt: skip
    if depth < 3:
        kinds += [
            lambda: f"({rng.choice(['', '?:', f'?<n{rng.randrange(10**9)}>'])}{random_pattern(rng, depth + 1)})",
            lambda: f"{random_pattern(rng, depth + 1)}|{random_pattern(rng, depth + 1)}" if depth else "a|b",
        ]
    parts = []
    for _ in range(rng.randint(1, 4)):
        part = rng.choice(kinds)()
        if part not in ("", "^", "$") and "|" not in part[1:2]:
            part += (
                rng.choice(["", "", "", "*", "+", "?", "{2}", "{1,2}", "{0,}", "*?", "{0}"]) if len(part) < 40 else ""
            )
        parts.append(part)
    return "".join(parts)


def random_set(rng: random.Random) -> str:
    members = [rng.choice(["a-z", "0-9", "A-Z", *"ab_&:[.^$|]-", r"\d", r"\W", r"\s", r"\]", r"\\", r"\b", r"\p{L}", "&&", "--", "é-一", r"\-"])
               for _ in range(rng.randint(0, 4))]  # fmt: skip
    return f"[{rng.choice(['', '', '^'])}{''.join(member if member != ']' else '' for member in members)}]"


@needs_node
def test_random_patterns_match_as_in_javascript() -> None:
    rng = random.Random(51)
    asked = []
    for _ in range(350):
        texts = [
            "".join(rng.choice(CHARACTERS[:30] if rng.random() < 0.5 else "ab09_ -") for _ in range(rng.randint(0, 5)))
            for _ in range(12)
        ]
        asked.append((random_pattern(rng), ["", "a", "ab", *texts]))  # fmt: skip
    n_compared = n_found = 0
    for (pattern, texts), wanted in zip(asked, in_node(asked), strict=True):
        try:
            check_schema({"pattern": pattern})
        except UnsupportedError:
            continue
        except RequestError:
            assert wanted is None, pattern
            continue
        assert wanted is not None, pattern
        if not any(wanted) and is_refused(pattern):
            continue  # it matches no text that can be written
        found = [is_allowed(form(pattern), text) for text in texts]
        assert found == wanted, (pattern, [text for text, a, b in zip(texts, found, wanted, strict=True) if a != b])
        if n_compared < 40:  # translating the translation changes nothing
            again = form(whole_text_pattern(pattern, "#"))
            assert [is_allowed(again, text) for text in texts] == wanted, pattern
        n_compared, n_found = n_compared + 1, n_found + sum(wanted)
    assert n_compared > 150
    assert n_found > 300


@pytest.mark.parametrize(
    ("pattern", "error", "reason"),
    [
        ("(?=a)b", UnsupportedError, "a lookahead is not supported"),
        ("(?!a)b", UnsupportedError, "a negative lookahead"),
        ("(?<=a)b", UnsupportedError, "a lookbehind"),
        ("(?<!a)b", UnsupportedError, "a negative lookbehind"),
        (r"\bword\b", UnsupportedError, r"the word boundary \\b"),
        (r"\B", UnsupportedError, r"the word boundary \\B"),
        (r"(a)\1", UnsupportedError, "a back reference"),
        (r"(?<n>a)\k<n>", UnsupportedError, "a back reference"),
        ("(?i:a)", UnsupportedError, r"a group that begins with \(\?"),
        ("(?i)a", UnsupportedError, r"a group that begins with \(\?"),
        (r"\p{Bidi_Mirrored}", UnsupportedError, r"the property \\p\{Bidi_Mirrored\}"),
        (r"\p{Greek}", UnsupportedError, r"the property \\p\{Greek\}"),
        (r"\uD83D", UnsupportedError, "half a surrogate pair"),
        ("(^a)+", UnsupportedError, "an anchor that is repeated"),
        ("[]", UnsupportedError, "an empty set of characters"),
        (r"\01", UnsupportedError, "an octal escape"),
        ("(" * 51 + ")" * 51, UnsupportedError, "nesting deeper than 50"),
        ("a{1000000}", UnsupportedError, "a count above"),
        ("(^|a)" * 33, UnsupportedError, "more than 32 parts with anchors"),
        ("(", RequestError, r"a \( without its \)"),
        (")", RequestError, r"a \) without its \("),
        ("[a", RequestError, "ends too early"),
        ("a**", RequestError, "repeats a count"),
        ("a*+", RequestError, "repeats a count"),
        ("*a", RequestError, "has nothing to repeat"),
        ("{2}", RequestError, "has nothing to repeat"),
        ("^*", RequestError, "repeats an anchor"),
        ("[z-a]", RequestError, "a range from more to less"),
        ("a{2,1}", RequestError, "counts from more to less"),
        (r"\q", RequestError, r"escape \\q"),
        (r"\x4", RequestError, "hexadecimal digits"),
        (r"\u{110000}", RequestError, "above 10FFFF"),
        (r"\c1", RequestError, r"\\c before"),
        ("\\", RequestError, "ends too early"),
        ("(?<a>x)(?<a>y)", RequestError, "twice"),
        (r"\p{L}\-", UnsupportedError, "flag u"),
        (r"[\p{L}-_]", UnsupportedError, "flag u"),
        (r"\u{61}]", UnsupportedError, "flag u"),
    ],
)
def test_patterns_that_cannot_be_enforced_are_refused_by_name_and_place(
    pattern: str, error: type[QuireError], reason: str
) -> None:
    for schema in ({"pattern": pattern}, {"patternProperties": {pattern: True}}):
        with pytest.raises(error, match=rf"the pattern '.* at #/properties/a/{next(iter(schema))} .*{reason}"):
            check_schema({"properties": {"a": schema}})


def test_patterns_are_translated_in_every_place() -> None:
    wanted = StructuredOutputsParams(
        json={
            "type": "object",
            "properties": {"pattern": {"$ref": "#/$defs/word"}},
            "patternProperties": {
                r"^x\d$": {
                    "type": "object",
                    "patternProperties": {r"^\w$": {"pattern": r"^[a&&b]$"}},
                    "additionalProperties": False,
                }
            },
            "additionalProperties": False,
            "$defs": {"word": {"type": "string", "pattern": r"^\S+$"}},
        },
        disable_any_whitespace=True,
    )
    assert allows(wanted, '{"pattern":"a\u200b","x1":{"_":"&"}}')
    for text in ('{"pattern":"a\ufeff"}', '{"x\u0661":{}}', '{"x1":{"é":"a"}}', '{"x1":{"_":"&&"}}'):
        assert not allows(wanted, text), text
    led = {"type": "array", "patternProperties": {"a": {"const": 1}}, "items": {"$ref": "#/patternProperties/a"}}
    assert allows(StructuredOutputsParams(json=led), "[1]")
    assert not allows(StructuredOutputsParams(json=led), "[2]")
    with pytest.raises(UnsupportedError, match="'patternProperties'"):
        allows(StructuredOutputsParams(json={"patternProperties": {"[a]": {}, "[aa]": {}}}), "{}")


def test_time_is_linear_in_the_pattern() -> None:
    """The limit is generous: quadratic time would be a hundred times as long."""
    for unit in ("a", "(a|b)", "a|", "[a-z]", "^", "(^a|b)|", r"\d*"):
        begin = time.process_time()
        whole_text_pattern(unit * (30_000 // len(unit)) + "x", "#") if unit != "^" else None
        assert time.process_time() - begin < 5, unit
    with pytest.raises(UnsupportedError, match="32768 bytes"):
        check_schema({"anyOf": [{"pattern": "a" * 20_000}, {"pattern": "b" * 20_000}]})
