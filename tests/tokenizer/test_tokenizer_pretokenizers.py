"""The compiled expressions against the same ones in Hugging Face `tokenizers` (Oniguruma)."""

from __future__ import annotations

import itertools
import random

import pytest
import tokenizers
from quire._tokenizer.pretokenize import split, unicode_version
from quire.errors import UnsupportedError
from quire.tokenizer.pretokenizers import BY_NAME, EXPRESSIONS, THREES, Pass, PreTokenizer, gguf_name, named
from token_texts import every_character, random_texts
from tokenizers import pre_tokenizers

BEHAVIORS = ["isolated", "removed", "merged_with_previous", "merged_with_next", "contiguous"]
# Unicode 16.0 has characters that are unknown to an older Oniguruma.
same_unicode = tuple(map(int, tokenizers.__version__.split(".")[:2])) >= (0, 22)


def published(passes: tuple[Pass, ...]) -> pre_tokenizers.PreTokenizer:
    steps = []
    for step in passes:
        expression = step.expression if step.expression is not None else THREES[step.behavior]
        behavior = step.behavior if step.expression is not None else "isolated"
        steps.append(pre_tokenizers.Split(tokenizers.Regex(expression), behavior, step.inverted))
    return pre_tokenizers.Sequence(steps)


def pieces_of(oracle: pre_tokenizers.PreTokenizer, text: str) -> list[str]:
    return [piece for piece, _ in oracle.pre_tokenize_str(text)]


def check(passes: tuple[Pass, ...], texts: object) -> None:
    oracle = published(passes)
    for text in texts:  # type: ignore[attr-defined]
        assert [piece.decode() for piece in split(text, passes)] == pieces_of(oracle, text), ascii(text)


@pytest.mark.slow  # random expressions and whole sequences cover the same code
@pytest.mark.parametrize("name", sorted(EXPRESSIONS))
def test_expressions_equal_oniguruma(name: str) -> None:
    check((Pass(EXPRESSIONS[name]),), random_texts(250, seed=1))


DIFFERENT = {pre_tokenizer.passes: name for name, pre_tokenizer in BY_NAME.items() if len(pre_tokenizer.passes) > 1}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(DIFFERENT.values()))
def test_sequences_equal_oniguruma(name: str) -> None:
    rng = random.Random(11)
    pictures = [
        "<sentinel:12>",
        "IMGIMGABZ",
        "IMGIMGABCDEZ",
        "12",
        "345",
        "6789012345",
        "x",
        " ",
        "\n",
        "²",
        "_",
        "½",
        "५",
        "Ⅷ",
    ]
    joined = ("".join(rng.choice(pictures) for _ in range(rng.randint(1, 8))) for _ in range(300))
    check(named(name).passes, itertools.chain(random_texts(150, seed=12), joined))


@pytest.mark.parametrize("inverted", [False, True])
@pytest.mark.parametrize("behavior", BEHAVIORS)
def test_behaviors_equal_hugging_face(behavior: str, inverted: bool) -> None:
    for expression in (r"\p{N}", r"[a-c]+|-", EXPRESSIONS["gpt2"]):
        check((Pass(expression, behavior, inverted),), random_texts(60, seed=13))
        check((Pass(expression, behavior, inverted),), ["", "1", "a-1", "--", "1a1a", "-a--b-", "x1", "1x"])


@pytest.mark.slow
@pytest.mark.skipif(not same_unicode, reason="needs a tokenizers package with Unicode 16")
# Together these distinguish all categories that expressions use.
@pytest.mark.parametrize("expression", [
    r"[\p{L}\s]+", r"[\p{Lu}\p{Lt}\p{M}\d\p{Han}]+", r"[\p{Ll}\p{M}\p{N}\p{S}\p{Lt}]+", r"[\p{Lm}\p{N}\p{P}\p{Lt}]+",
])  # fmt: skip
def test_every_character_has_the_published_class(expression: str) -> None:
    assert unicode_version == "16.0.0"
    check((Pass(expression),), every_character())


ATOMS = ["a", "b", "[ab]", "[^a]", r"\s", r"\n", r"\p{L}", "(?:a|ab)", "(?:ab|a)", "(b|c)", "[a-c&&[^b]]", r"\S", "."]
ENDINGS = ["", "", "", "*", "+", "?", "{2}", "{1,3}", "{2,}", "{1,2}+", "*"]
TAILS = ["", "", r"(?!\S)", "(?=a)", "$", "(?!b)"]


def test_random_expressions_equal_oniguruma() -> None:
    """Alternatives are chosen in the order of a backtracking machine."""
    rng = random.Random(7)
    n_known = 0
    for _ in range(600):
        branches = []
        for _ in range(rng.randint(1, 3)):
            parts = [rng.choice(ATOMS) + rng.choice(ENDINGS) for _ in range(rng.randint(1, 4))]
            branches.append("".join(parts) + rng.choice(TAILS))
        expression = "|".join(branches)
        texts = ["".join(rng.choice("aabbc \n") for _ in range(rng.randint(1, 12))) for _ in range(12)]
        try:
            split("", [Pass(expression)])
        except ValueError as error:
            assert "empty string" in str(error)  # noqa: PT017
            continue
        n_known += 1
        check((Pass(expression),), texts)
    assert n_known > 300


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (r"\bx", r"the escape \\b"), ("x*", "empty string"), ("(?<=a)b", "unsupported kind"),
        ("a*?b", "a lazy repeat"), ("(?=ab)c", "more than one character"), ("^a", r"a '\^'"), ("[a", "unclosed"),
        ("(a", "unclosed"), ("a)", r"unmatched '\)'"), (r"\p{Greek}", "the property 'Greek'"), ("*", "of nothing"),
        ("a{2000}", "above 1024"), ("a{3,2}", "malformed count"), ("[b-a]", "malformed range"), ("a++b?a", "excludes"),
        ("(ab)++c", "of a group"), ("(?i:é)", "ignores the case"), ("(" * 100 + "a" + ")" * 100, "too deep"),
        ("(?:a{1000}){1000}", "too many parts"), (r"[[:alpha:]]", "POSIX"), ("a\\", "at its end"), (r"(a)\1", "escape"),
        ("(?:a|b)*a(?:a|b){12}", "too many states"),
    ],
)  # fmt: skip
def test_unsupported_expressions_are_errors(expression: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        split("x", [Pass(expression)])


def test_invalid_utf8_is_kept() -> None:
    data = b"ab\xff\xfe 12\xe4\xb8 \xf0\x9f\x98x\xc0\x80\n"
    for pre_tokenizer in BY_NAME.values():
        drops_spaces = any(step.behavior == "removed" for step in pre_tokenizer.passes)
        pieces = split(data, pre_tokenizer.passes)
        assert b"".join(pieces) == (data.translate(None, b" \n") if drops_spaces else data)
        assert all(pieces)


def test_names() -> None:
    assert len(BY_NAME) >= 45
    assert named("llama-bpe").ignore_merges
    assert gguf_name(named("starcoder")) == "starcoder"
    assert gguf_name(PreTokenizer((Pass(EXPRESSIONS["llama3"]),))) in ("smaug-bpe", "dbrx")
    with pytest.raises(UnsupportedError, match=r"'tekken-9'.*gpt-2, .*starcoder"):
        named("tekken-9")
    with pytest.raises(UnsupportedError, match="GGUF has no name"):
        gguf_name(PreTokenizer((Pass("x"),)))
