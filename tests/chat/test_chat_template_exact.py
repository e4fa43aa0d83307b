"""Every template renders what transformers renders, and only the template writes control tokens.

Oracle: transformers' ``apply_chat_template``.  A second rendering, with another text in the place of a token in the
template, shows which control tokens the template wrote.
"""

from __future__ import annotations

import os
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from quire.chat import ChatTemplate, sandbox

pytestmark = pytest.mark.python_only

pytest.importorskip("transformers", reason="transformers is absent")
REFERENCES = Path(__file__).resolve().parents[1] / "references"
sys.path.insert(0, str(REFERENCES))
from chat_cases import CASES, DEPARTURES, HOSTILE, SPECIAL_TEXTS  # noqa: E402
from transformers_chats import Frozen, frozen, rendered, rendered_as_given  # noqa: E402

TEMPLATES = Path(os.environ.get("QUIRE_SHARED", Path(__file__).resolve().parents[3] / "shared")) / "templates"
TOKEN, OTHER = "[/INST]", "(~QWZ^)"
CONTROLS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|eot_id|>", "[INST]", TOKEN, "<|end|>", "<|user|>", "STOP"]


@pytest.fixture(autouse=True)
def same_day(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sandbox, "datetime", Frozen)
    with frozen():
        yield


def known_to(template: ChatTemplate, case: dict[str, Any]) -> dict[str, Any]:
    """Return the case without values that the template does not read, which Quire refuses."""
    known = {"messages", "tools", "add_generation_prompt"} | template.variables
    return {name: value for name, value in case.items() if name in known}


@pytest.mark.parametrize("path", sorted(TEMPLATES.glob("*.jinja")), ids=lambda path: path.stem)
def test_published_templates(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    template = ChatTemplate(source, SPECIAL_TEXTS, CONTROLS)
    compared = 0
    for name, case in CASES.items():
        expected = rendered(source, case)
        if expected is None or name in DEPARTURES.get(path.name, ()):
            continue
        assert template.render(**known_to(template, case)) == expected, name
        compared += 1
    assert compared >= 10 or path.name in DEPARTURES


SIGNS = re.compile(r"<\|[^|<>\s{}']+\|>|<｜[^｜<>\s{}']+｜>|</?[a-z_]+>|\[/?[A-Z_]+\]")


@pytest.mark.parametrize("path", sorted(TEMPLATES.glob("*.jinja")), ids=lambda path: path.stem)
def test_published_templates_keep_their_tokens_and_no_others(path: Path) -> None:
    """Every text of the conversation has the template's tokens in it, whole and cut.

    A rendering of a source with one letter of each token changed shows which ones are the template's.
    """
    source = path.read_text(encoding="utf-8")
    tokens = sorted({sign for sign in SIGNS.findall(source) if len(sign) > 3})
    changed = SIGNS.sub(lambda match: match[0][:-2] + "Ꙩ" + match[0][-1] if match[0] in tokens else match[0], source)
    whole = re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or "(?!)")
    template = ChatTemplate(source, SPECIAL_TEXTS, tokens, keeps_turns=True)
    texts = ["".join(tokens), "x".join(token[:-1] for token in tokens), "".join(token[1:] for token in tokens), "plain"]
    compared = 0
    for text in texts:
        for case in (conversation(lambda: text), {"messages": [{"role": "user", "content": text}]}):  # noqa: B023
            shown, other = rendered(source, case), rendered(changed, case)
            if shown is None:
                continue
            segments = template.render_segments(**known_to(template, case))
            assert "".join(part for part, _ in segments) == shown
            if other is None or len(other) != len(shown):
                continue  # the template searches users' texts for its tokens
            assert all(ours == theirs or theirs == "Ꙩ" for ours, theirs in zip(shown, other, strict=True))
            at = n_found = 0
            for part, is_template in segments:
                n_tokens = len(whole.findall(part)) if is_template else 0
                assert n_tokens == other[at : at + len(part)].count("Ꙩ"), part
                n_found += n_tokens
                at += len(part)
            compared += n_found > 0
    assert compared or not any("|" in token for token in tokens)


def test_there_are_published_templates() -> None:
    if not TEMPLATES.exists():
        pytest.skip(f"shared test data is absent: {TEMPLATES}")
    assert len(list(TEMPLATES.glob("*.jinja"))) >= 35
    assert len(CASES) >= 25


OPERATIONS = [
    "messages | string", "messages", "u | e", "u | escape | string", "u | replace('<', '(')", "u | replace('<|', '', 1)",
    "'<' in u", "'<|im_end|>' in u", "'</think>' in u", "u.split('<')", "u.rsplit('|', 2)", "u.count('<')",
    "u.find('<|im_end|>')", "u.index('<')", "u | sort | join", "[u, '<a', 'z'] | sort", "'%r' % u", "'%r' % [u]",
    "'%s|%5.3s' % (u, u)", "u[2:9]", "u[::-1]", "u[0] == '<'", "u | upper", "u.title()", "u.swapcase()", "u | tojson",
    "u | tojson(ensure_ascii=true)", "[u] | tojson(indent=2)", "u | length", "u | list", "u | first", "u | last",
    "u | reverse", "u.startswith('<|')", "u.partition('>')", "u.splitlines()", "u.strip('<')", "u | trim", "u | wordcount",
    "u | indent(3)", "u | truncate(9)", "u | center(300)", "u | title", "u | capitalize", "u.isprintable()",
    "u ~ '<|im_end|>' ~ u", "'<' + u + '>'", "(u + '|>') | replace('|>', '')", "u == '<s>'", "u < '<|im_end|>'", "u is lower",
    "u | unique | join", "u | batch(3) | list", "{u: u}", "{u: 1}[u]", "dict([(u, 2)])", "u in {u: 1}", "u | max", "u | int",
    "'{}-{!r}'.format(u, u)", "u.replace('<', '<<')", "u | safe", "('<' + u) | safe | e",
    "u | safe ~ '<'", "'<&' + (u | safe)", "(u | safe) + '<&' + u", "messages | map(attribute='content') | join('<')",
    "messages | groupby('role')", "messages | selectattr('content', 'eq', u) | list",
    "'%r' % (u | safe)", "'{!r}'.format('<' + (u | safe))", "tools | tojson", "documents", "style ~ style", "namespace(a=u).a", "u | default('<')", "'' | default(u, true)",
    "u.zfill(300)", "u.ljust(300, '<')", "u.removeprefix('<')", "u | dictsort if u is mapping else u", "u * 2",
]  # fmt: skip
TEXTS = [
    HOSTILE,
    "plain",
    "",
    "<",
    "<|im_end|>",
    " <s>\n",
    "a<b>c",
    "\ue000<\uf8ff",
    "STOP",
    "é< \u2028>",
    "'\"<\\",
    "%s{}<|",
]


def conversation(text: Any) -> dict[str, Any]:
    """Return a conversation with text in every place that a client controls."""
    id = text() or "id"
    call = {
        "id": id,
        "type": "function",
        "function": {"name": text(), "arguments": {text(): [text()], "a": text()}},
    }
    parameters = {"type": "object", "properties": {text(): {"type": "string", "enum": [text()]}}}
    return {
        "messages": [
            {"role": "user", "content": text()},
            {"role": "assistant", "content": text(), "tool_calls": [call], "reasoning_content": text()},
            {"role": "tool", "content": text(), "name": text(), "tool_call_id": id},
        ],
        "tools": [{"type": "function", "function": {"name": text(), "description": text(), "parameters": parameters}}],
        "documents": [{"title": text(), "text": text()}],
        "style": text(),
    }


@pytest.mark.parametrize("operation", OPERATIONS)
def test_operations_render_as_in_transformers(operation: str) -> None:
    source = "{% set u = messages[0].content %}{{ " + operation + " }}{# documents style tools #}{{ style }}"
    source += "{{ documents[0].text }}"
    template = ChatTemplate(source, SPECIAL_TEXTS, CONTROLS, keeps_turns=True)
    for text in TEXTS:
        case = conversation(lambda: text)  # noqa: B023
        expected = rendered_as_given(source, case)
        if expected is None:
            assert operation in ("u.index('<')", "u[0] == '<'", "u | max", "u | first", "u | last")
        else:
            assert template.render(**case) == expected, text


def spans(segments: list[tuple[str, bool]]) -> list[tuple[int, str]]:
    """Return the places and names of the template's tokens."""
    found = []
    at = 0
    for text, is_template in segments:
        if is_template:
            found += [(at + match.start(), match[0]) for match in re.finditer(re.escape(TOKEN), text)]
            assert text.replace(TOKEN, "") == ""
        at += len(text)
    return found


def written(source: str, token: str) -> str:
    """Return a source with the token for ``@``, and its halves for ``‹`` and ``›``."""
    return source.replace("@", token).replace("‹", token[:4]).replace("›", token[4:])


def check_authors(source: str, case: dict[str, Any], *, all_found: bool) -> int | None:
    """Compare text and authorship with transformers'; return how many tokens are the template's.

    None for a source that cannot be rendered, or that treats the other token differently.
    """
    text = rendered_as_given(written(source, TOKEN), case)
    other = rendered_as_given(written(source, OTHER), case)
    if text is None or other is None:
        return None
    template = ChatTemplate(written(source, TOKEN), SPECIAL_TEXTS, [TOKEN], keeps_turns=True)
    segments = template.render_segments(**known_to(template, case))
    assert "".join(part for part, _ in segments) == text, source
    expected = [(match.start(), TOKEN) for match in re.finditer(re.escape(OTHER), other)]
    if len(text) != len(other) or any(text[at : at + len(TOKEN)] != TOKEN for at, _ in expected):
        assert not all_found, source
        return None
    found = spans(segments)
    assert set(found) <= set(expected), source
    assert not all_found or found == expected, source
    return len(found)


# Operations that track what the template wrote, and those after which all text counts as a user's.
KNOWING = [
    "X + Y", "X ~ Y", "X ~ 5 ~ Y", "[X, Y] | join('@')", "[X, Y] | join", "'@'.join([X, Y])", "X.join([Y, '@'])", "X | trim",
    "X.strip('xe ')", "X.lstrip()", "X.rstrip('x')", "X[1:]", "X[:-1]", "X[3:] ~ Y[:5]", "X[::2]", "X | replace('x', '@')",
    "X.replace('e', Y)", "X | replace('x', Y, 2)", "X.split('x') | join(Y)", "X.split() | join('@')", "X.rsplit('x', 2) | join('@')",
    "X.splitlines() | join('@')", "X.splitlines(true) | join", "X.partition('x') | join('@')", "X.rpartition('e')[2] ~ Y",
    "'%s@%s' % (X, Y)", "'@%5s' % X", "X ~ '@%%@' % ()", "'%(a)s@' % {'a': X}", "'{}@{}'.format(X, Y)", "'{b}{0}@'.format(X, b=Y)",
    "'@{{}}{:>3}'.format(X)", "'%s@' | format(X)", "X | string", "X | default(Y)", "X * 2", "X if Y else '@'", "namespace(a=X).a",
    "[X, Y][0]", "{'a': X}['a']", "[X, Y] | first", "[X, Y] | last", "X | list | join", "X | first", "(X | safe) ~ Y",
    "X.removeprefix('x') ~ '@'", "X.removesuffix('e') ~ '@'", "'@' | upper | lower ~ X", "'@'.center(11) ~ X", "'@' | center(13) ~ X",
    "X[0] ~ X[1:]",
]  # fmt: skip
FORGETTING = [
    "X | e", "X | tojson", "[X, Y] | string", "'%r' % X", "X | indent(2)", "(X ~ Y) | title", "X.upper()", "X | reverse",
    "(X ~ Y) | center(90)", "X.zfill(90)", "{X: Y} | tojson", "X | truncate(5)", "'%.4s' % X", "'{!r:.9}'.format(X)", "X | escape ~ Y",
    "(X | safe) + Y", "Y + (X | safe)", "[X, Y] | map('upper') | join", "X | unique | join", "X.capitalize()",
]  # fmt: skip
ATOMS = [
    "messages[0].content", "messages[1].content", "messages[1].tool_calls[0].function.name", "messages[2].content",
    "messages[1].tool_calls[0].function.arguments.a", "tools[0].function.description", "documents[0].text", "style",
    "messages[2].name", "messages[1].reasoning_content", "'@'", "'@'", "'a@b@'", "'‹'", "'›'", "'‹' ~ '›'", "'x e\\n'", "''",
]  # fmt: skip
AROUND = [
    "{{ E }}", "@{{ E }}@", "{% set z = E %}{{ z }}", "{% set z %}@{{ E }}{% endset %}{{ z ~ z }}",
    "{% macro m(a) %}@{{ a }}{% endmacro %}{{ m(E) }}", "{% for c in [E, '@'] %}{{ c }}@{% endfor %}",
    "{% set n = namespace(a='@') %}{% for i in [1, 2] %}{% set n.a = n.a + E %}{% endfor %}{{ n.a }}",
    "{% filter trim %} @{{ E }} {% endfilter %}", "{% generation %}{{ E }}@{% endgeneration %}",
    "{% macro m() %}{{ caller() }}@{% endmacro %}{% call m() %}{{ E }}{% endcall %}",
    "{% set l = ['@'] %}{% set _ = l.append(E) %}{{ l | join }}",
]  # fmt: skip
READ = "{#{{ style }}{{ documents }}#}{% if style and documents %}{% endif %}"


def expression(rng: random.Random, operations: list[str], depth: int) -> str:
    if depth == 0:
        return rng.choice(ATOMS)
    made = rng.choice(operations)
    for name in "XY":
        made = made.replace(name, f"({expression(rng, operations, depth - 1)})")
    return made


def hostile_text(rng: random.Random) -> str:
    pieces = [TOKEN, TOKEN, "[/IN", "ST]", "[", "]", "x", "e", " ", "\n", "INST", "é", "\ue000", ""]
    return "".join(rng.choice(pieces) for _ in range(rng.randint(1, 6)))


@pytest.mark.parametrize("operation", KNOWING)
def test_each_operation_tracks_what_the_template_wrote(operation: str) -> None:
    rng = random.Random(operation)
    many = "messages[0].content ~ '@' ~ style ~ '@' ~ 'x ' ~ '@' ~ style ~ '@' ~ '\\n@' ~ messages[2].content ~ '@'"
    n_found = 0
    for i in range(24):
        around = ("('x ' ~ '@' ~ ", "('  ' ~ '@' ~ ")[i % 2] + many + (" ~ 'x')", " ~ 'ex ')")[i % 2]
        source = READ + "{{ " + operation.replace("Y", "('@e' ~ messages[2].name)").replace("X", around) + " }}"
        n_found += check_authors(source, conversation(lambda: hostile_text(rng)), all_found=True) or 0
    assert n_found > 0 or operation in ("X | first", "X[::2]")


@pytest.mark.parametrize("seed", range(4))
def test_control_tokens_are_those_that_the_template_wrote(seed: int) -> None:
    rng = random.Random(seed)
    found: list[int] = []
    while len(found) < 150:
        source = READ + rng.choice(AROUND).replace("E", f"({expression(rng, KNOWING, rng.randint(0, 2))})")
        case = conversation(lambda: hostile_text(rng))
        if (n_found := check_authors(source, case, all_found=True)) is not None:
            found.append(n_found)
    assert sum(found) > 150


@pytest.mark.parametrize("seed", range(4))
def test_text_of_unknown_origin_is_a_users(seed: int) -> None:
    rng = random.Random(seed)
    found: list[int] = []
    while len(found) < 100:
        source = READ + rng.choice(AROUND).replace("E", f"({expression(rng, KNOWING + FORGETTING * 2, 2)})")
        case = conversation(lambda: hostile_text(rng))
        if (n_found := check_authors(source, case, all_found=False)) is not None:
            found.append(n_found)
    assert sum(found) > 50
