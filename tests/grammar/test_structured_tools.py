"""Tool calls follow the tools' schemas.

Oracles: the published chat templates, which write calls as their models do; the parsers of the wire formats
(tests/chat/test_chat_tools.py) on random walks through the grammars; ``jsonschema`` on the arguments.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grammar_texts import allows_source
from quire.chat import AnswerFormat, ChatTemplate, parse_answer
from quire.chat.tools import TOOL_FORMATS, tool_format
from quire.chat.tools.call_syntax import CallSyntax, Notation
from quire.chat.tools.calls import ToolFormat
from quire.cli.main import main
from quire.engine import LLM, AsyncLLM
from quire.errors import RequestError, UnsupportedError
from quire.grammar import (
    AnswerLayout,
    Compiler,
    CompilerLimits,
    ReasoningTags,
    TokenVocabulary,
    ToolUse,
    answer_source,
    grammar_source,
)
from quire.params.sampling import SamplingParams
from quire.params.structured import StructuredOutputsParams

jsonschema = pytest.importorskip("jsonschema")


def tool(name: str, properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": "d", "parameters": parameters, **more}}


WEATHER = tool(
    "weather", {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "maximum": 9}}, strict=True
)
CLOCK = tool("get-time.v2", {}, strict=True)
TOOLS = [WEATHER, CLOCK]
NAMED = {"type": "function", "function": {"name": "weather"}}
CALL_SYNTAXES = {name: tool_format(name).syntaxes for name in TOOL_FORMATS}
ONE_BY_ONE = [name for name, syntaxes in CALL_SYNTAXES.items() if syntaxes[0].argument]
VARIANTS = [(name, i) for name, syntaxes in CALL_SYNTAXES.items() for i in range(len(syntaxes))]


def layout(name: str, variant: int = 0, **more: Any) -> AnswerLayout:
    form = tool_format(name)
    return AnswerLayout(
        format_name=name,
        frames_content=form.frames_content,
        starts=form.starts,
        syntaxes=form.syntaxes,
        template=form.syntaxes[variant].hint,
        **more,
    )


def layout_of(form: ToolFormat, template: str) -> AnswerLayout:
    return AnswerLayout(None, form.name, form.syntaxes, form.frames_content, form.starts, template)


def call(number: int, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"id": f"abcdefgh{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def test_every_parsed_format_can_be_enforced_and_others_are_refused_by_name():
    assert all(CALL_SYNTAXES.values())
    with pytest.raises(UnsupportedError, match="format other"):
        answer_source(AnswerLayout(format_name="other"), None, ToolUse(TOOLS, "required"))


# Calls in templates


def templates(folder: Path) -> list[Path]:
    return sorted((folder / "templates").glob("*.jinja"))


def test_calls_as_published_templates_write_them(shared):
    """Models are trained on the history that their template writes, so a grammar allows it."""
    seen = set()
    one, two = call(1, "weather", {"city": "Paris", "days": 2}), call(2, "get-time.v2", {})
    for path in templates(shared):
        template = ChatTemplate(path.read_text(encoding="utf-8"), {"bos_token": "<s>", "eos_token": "</s>"})
        form = AnswerFormat.detect(template.source)
        if form.tools is None or form.tools.name not in CALL_SYNTAXES or form.tools.name == "kimi_k2":
            continue  # the sandbox stops Kimi K2's template
        for calls in ([one], [one, two]):
            if len(calls) == 2 and form.tools.name in ("llama3", "gigachat"):
                continue  # their templates write one call only
            text = text_of_calls(template, calls)
            # The text between the end of reasoning and the end of the turn.
            if form.tools.name in ONE_BY_ONE and form.tools.name != "muse":
                text = text[min(text.index(start) for start in form.tools.starts if start in text) :].rstrip()
            source = answer_source(
                layout_of(form.tools, template.source),
                None,
                ToolUse(TOOLS, "required"),
            )
            assert source is not None
            assert allows_source(source, text), (path.name, text)
            cut = answer_source(
                layout_of(form.tools, template.source),
                None,
                ToolUse([CLOCK], "required"),
            )
            assert cut is not None
            assert not allows_source(cut, text)
            seen.add(form.tools.name)
    assert len(seen) >= 19
    assert seen >= set(ONE_BY_ONE) - {"minimax_m3", "seed_oss"}  # formats without a template


def text_of_calls(template: ChatTemplate, calls: list[dict[str, Any]]) -> str:
    asked = [{"role": "user", "content": "Hi"}]
    answered = [*asked, {"role": "assistant", "content": "", "tool_calls": calls}]
    prompt = "".join(text for text, _ in template.render_segments(asked, TOOLS, True))
    whole = "".join(text for text, _ in template.render_segments(answered, TOOLS, False))
    n_shared = next((i for i, (a, b) in enumerate(zip(prompt, whole, strict=False)) if a != b), len(prompt))
    text = whole[n_shared:]
    # If a mark begins like the prompt ends, its beginning is in the prefix.
    for mark in ("<｜tool▁calls▁begin｜>", "<|START_ACTION|>", "<TOOLCALL>", "<|tool_call>"):
        if 0 <= (at := whole.find(mark, n_shared - len(mark) + 1)) < n_shared:
            text = whole[at:]
    ends = ("<|im_end|>", "</s>", "<|eot_id|>", "<|END_OF_TURN_TOKEN|>", "<｜end▁of▁sentence｜>", "<|end_of_text|>")
    ends += (
        "<|message_sep|>",
        "<SPECIAL_12>",
        "\n\n<sep>",
        "[e~[",
        "<|role_end|>",
        "</assistant>",
        "<｜hy_eos",
        "<|end_of_msg|>",
        "<|eot|>",
    )
    ends += ("<|tool_response>",)
    return text[: min((at for end in ends if (at := text.find(end)) >= 0), default=len(text))]


# Texts that grammars allow


@cache
def compiler(control: bool) -> Compiler:
    """Return a compiler for single bytes, with or without the formats' marks as control tokens."""
    marks = ["<think>", "</think>"]
    for name in CALL_SYNTAXES:
        form = tool_format(name)
        marks += [mark for mark in (*form.visible,) if mark.startswith(("<|", "<｜", "[T", "[A", "[C"))]
    names = ["<eog>", *(sorted(set(marks) - {"<|call|>", "<|return|>"}) if control else [])]
    return Compiler(
        lambda: TokenVocabulary(
            [bytes([i]) for i in range(256)] + [name.encode() for name in names],
            {name: 256 + i for i, name in enumerate(names)},
            [256],
            list,
        ),
        CompilerLimits(deadline_s=20.0),
    )


def walk(source: Any, control: bool, seed: int, most: int = 3000, end: str = "") -> str | None:
    """Return a text drawn from the grammar's masks, or None if it did not end in time.

    ``end`` is written now and then, as far as it is allowed, because chance alone would never end a free text.
    """
    made = compiler(control)
    matcher = made.compile(source).matcher()
    shown = made._vocabulary.open().token_bytes
    r, text = random.Random(seed), b""
    mask = np.zeros((len(shown) + 31) // 32, np.uint32)
    wanted = b""
    for _ in range(most):
        matcher.fill(mask)
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[: len(shown)])
        assert len(allowed)
        assert (256 in allowed) == matcher.is_complete
        rare = [token for token in allowed if token > 256 or chr(token) in '"}],<']
        token = int(r.choice(rare if rare and r.random() < 0.3 else allowed))
        wanted = wanted[1:] or (end.encode() if r.random() < 0.1 else b"")
        if wanted and wanted[0] in allowed:
            token = wanted[0]
        else:
            wanted = b""
        if token == 256 or (256 in allowed and r.random() < 0.5):
            return text.decode(errors="replace")
        text += shown[token]
        matcher.advance(token)
    return None


def check_calls(calls: Any) -> None:
    schemas = {entry["function"]["name"]: entry["function"]["parameters"] for entry in TOOLS}
    for made in calls:
        jsonschema.validate(json.loads(made.function.arguments), schemas[made.function.name])


@pytest.mark.python_only  # llguidance computes its masks
@pytest.mark.parametrize("control", [False, True], ids=["text", "control tokens"])
@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_parsers_find_forced_calls(name, variant, control):
    form = AnswerFormat(tools=tool_format(name))
    n_calls, n_done = 0, 0
    for choice, parallel in [("required", True), ("required", False), (NAMED, True)]:
        source = answer_source(layout(name, variant), None, ToolUse(TOOLS, choice, parallel))
        for seed in range(4):
            text = walk(source, control, seed)
            if text is None:
                continue
            message = parse_answer(text, form, TOOLS)
            assert message.tool_calls, text
            assert not (message.content or "").strip(), text
            check_calls(message.tool_calls)
            assert parallel or len(message.tool_calls) == 1
            assert choice != NAMED or {made.function.name for made in message.tool_calls} == {"weather"}
            n_calls, n_done = n_calls + len(message.tool_calls), n_done + 1
    assert n_done >= 6


@pytest.mark.python_only  # llguidance computes its masks
@pytest.mark.parametrize("control", [False, True], ids=["text", "control tokens"])
@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_calls_in_free_answers_are_valid(name, variant, control):
    """Everything that a parser takes for a call in an answer with strict tools is valid."""
    form = AnswerFormat(tools=tool_format(name))
    source = answer_source(layout(name, variant), None, ToolUse(TOOLS, "auto"))
    n_done = 0
    for seed in range(8):
        text = walk(source, control, seed, 600)
        if text is not None:
            check_calls(parse_answer(text, form, TOOLS).tool_calls)
            n_done += 1
    assert n_done >= 2
    syntax = CALL_SYNTAXES[name][variant]
    before, behind = syntax.content or ("", "")
    assert allows_source(source, f"{before}It is sunny.{behind}")
    good, bad = written(syntax, {"city": "Paris", "days": 2}), written(syntax, {"city": "Paris"})
    assert allows_source(source, good)
    assert not allows_source(source, bad)
    if syntax.trigger:
        assert allows_source(source, "Let me see.\n" + good)
        assert not allows_source(source, "Let me see.\n" + bad)


def written(syntax: CallSyntax, arguments: dict[str, Any]) -> str:
    """Return a call of weather."""
    text = json.dumps(arguments)
    if syntax.notation is Notation.PYTHON:
        text = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    if syntax.notation is Notation.MARKED:
        mark = syntax.string_mark
        shown = {key: mark + value + mark if isinstance(value, str) else value for key, value in arguments.items()}
        text = ",".join(f"{key}:{value}" for key, value in shown.items())
    if syntax.argument:
        text = "".join(
            syntax.argument.replace("{key}", key)
            .replace("{value}", value if isinstance(value, str) else json.dumps(value))
            .replace("{type}", "string" if isinstance(value, str) else "number")
            .replace("{is_text}", "true" if isinstance(value, str) else "false")
            for key, value in arguments.items()
        )
    call = syntax.call.replace("{name}", "weather").replace("{number}", "0").replace("{id}", "abcdefgh1")
    whole = f"{syntax.opening}{call}{syntax.closing}".replace("{id_member}", "").replace("{arguments}", text)
    return whole.replace("{space}", "")


def test_loose_tools_are_free_and_need_no_grammar():
    loose = tool("weather", {"city": {"not": {"const": 1}}})
    assert answer_source(layout("hermes"), None, ToolUse([loose], "auto")) is None
    assert answer_source(layout("qwen3_coder"), None, ToolUse([loose], "auto")) is None
    source = answer_source(layout("hermes"), None, ToolUse([loose, CLOCK], "auto"))
    made = '<tool_call>\n{{"name": "{}", "arguments": {{"a": 1}}}}\n</tool_call>'
    assert allows_source(source, made.format("weather"))
    assert not allows_source(source, made.format("get-time.v2"))
    called = answer_source(layout("hermes"), None, ToolUse([loose], "required"))
    assert called is not None
    assert called.notes == ("weather.json_schema#/properties/city/not",)
    strict = tool("weather", {"city": {"not": {"const": 1}}}, strict=True)
    with pytest.raises(UnsupportedError, match=r"'not' .*weather"):
        answer_source(layout("hermes"), None, ToolUse([strict], "required"))


def test_small_tools_of_models_without_tools_follow_their_schemas():
    """Otherwise a model that was not trained on the tags invents arguments."""
    made = '<tool_call>\n{{"name": "weather", "arguments": {}}}\n</tool_call>'
    loose = tool("weather", {"city": {"type": "string"}, "tags": {"type": "array", "uniqueItems": True}})
    source = answer_source(layout("hermes"), None, ToolUse([loose], "auto", always=True))
    assert allows_source(source, made.format('{"city": "Rome", "tags": []}'))
    assert not allows_source(source, made.format('{"ARGUMENT": "VALUE"}'))
    assert allows_source(source, "Hello.")
    large = tool("weather", {"city": {"type": "string", "description": "x" * 9000}})
    malformed = {"type": "function", "function": {"name": "weather", "parameters": {"properties": {"city": 3}}}}
    for free in (large, malformed):
        source = answer_source(layout("hermes"), None, ToolUse([free], "auto", always=True))
        assert allows_source(source, made.format('{"a": 1}'))


def test_no_more_than_one_call():
    source = answer_source(layout("hermes"), None, ToolUse(TOOLS, "auto", parallel=False))
    made = '<tool_call>\n{"name": "get-time.v2", "arguments": {}}\n</tool_call>'
    assert allows_source(source, made + " Done.")
    assert not allows_source(source, made + "\n" + made)
    named = {"type": "function", "function": {"name": "get-time.v2"}}
    source = answer_source(layout("hermes"), None, ToolUse(TOOLS, named))
    assert allows_source(source, made)
    assert not allows_source(source, made + "\n" + made)
    assert allows_source(answer_source(layout("hermes"), None, ToolUse(TOOLS, "required")), made + "\n" + made)


@pytest.mark.parametrize(
    ("tools", "choice", "kind", "reason"),
    [
        ([], "required", RequestError, "'required'"),
        (TOOLS, {"type": "function", "function": {"name": "x"}}, RequestError, "names 'x'"),
        (TOOLS, {"type": "allowed_tools"}, RequestError, "allowed_tools"),
        (TOOLS, "any", RequestError, "'any'"),
        ([WEATHER, WEATHER], "required", RequestError, "'weather'"),
        ([tool("a b", {})], "required", UnsupportedError, "'a b'"),
        ([{"type": "function"}], "required", RequestError, "tool 0"),
        ([WEATHER] * 1025, "auto", RequestError, "1024"),
        ([tool("a", {"x": {"enum": ["y" * 9000] * 40}})], "required", RequestError, "262144 bytes"),
    ],
)
def test_invalid_tools_are_refused(tools, choice, kind, reason):
    with pytest.raises(kind, match=reason):
        answer_source(layout("hermes"), None, ToolUse(tools, choice))


# Reasoning and structured answers


TAGS = {"start": "<think>", "end": "</think>"}
YES = grammar_source(StructuredOutputsParams(choice=["yes", "no"]))


@pytest.mark.parametrize("form", ["answer", "calls"])
def test_structured_answers_after_reasoning(form):
    """Reasoning that the prompt has opened must end; otherwise it is optional."""
    body = YES if form == "answer" else None
    use = ToolUse() if form == "answer" else ToolUse(TOOLS, "required")
    text = "yes" if form == "answer" else '<tool_call>\n{"name": "get-time.v2", "arguments": {}}\n</tool_call>'
    opened = answer_source(layout("hermes", reasoning=ReasoningTags(**TAGS, opened=True)), body, use)
    maybe = answer_source(layout("hermes", reasoning=ReasoningTags(**TAGS, opened=False)), body, use)
    assert allows_source(opened, f"Hm, <tool_call> or {{?\n</think>\n\n{text}")
    assert not allows_source(opened, text)
    assert not allows_source(opened, f"Hm</think>\n\nWell, {text}")
    assert allows_source(maybe, text)
    assert allows_source(maybe, f"<think>\nHm.\n</think>\n\n{text}")
    assert not allows_source(maybe, f"Hm.\n</think>\n\n{text}")
    assert not allows_source(maybe, "<think>\nHm.")


def test_framed_answers():
    """Formats whose plain answers have marks keep them around a structured text."""
    for name, variant, text, refused in [
        ("harmony", 0, "<|channel|>final<|message|>yes", "yes"),
        ("harmony", 0, "<|channel|>analysis<|message|>Hm?<|end|><|start|>assistant<|channel|>final<|message|>no", "no"),
        ("command_r", 0, "<|START_RESPONSE|>yes<|END_RESPONSE|>", "yes"),
        ("functionary", 0, "all\nyes", "yes"),
        ("command_r", 2, "yes", "<|START_RESPONSE|>yes"),
        ("kimi_k3", 0, "<|open|>response<|sep|>yes<|close|>response<|sep|>", "yes"),
        ("muse", 0, " to=self<|message|>Hm?<|eom|><|start|>assistant to=user<|message|>no", "no"),
    ]:
        source = answer_source(layout(name, variant), YES, ToolUse())
        assert allows_source(source, text), name
        assert not allows_source(source, refused), name
        message = parse_answer(text, AnswerFormat(tools=tool_format(name)))
        assert message.content in ("yes", "no")
    assert answer_source(layout("hermes"), YES, ToolUse()) is YES


def test_a_structured_answer_or_calls():
    source = answer_source(layout("hermes"), YES, ToolUse([CLOCK], "auto"))
    made = '<tool_call>\n{"name": "get-time.v2", "arguments": {}}\n</tool_call>'
    assert allows_source(source, "yes")
    assert allows_source(source, made)
    assert not allows_source(source, "yes" + made)
    for choice in ("required", {"type": "function", "function": {"name": "get-time.v2"}}):  # only texts are structured
        required = answer_source(layout("hermes"), YES, ToolUse([CLOCK], choice))
        assert allows_source(required, made)
        assert not allows_source(required, "yes")
    later = grammar_source(StructuredOutputsParams(choice=["yes"], after="so:"))
    assert answer_source(layout("hermes", reasoning=ReasoningTags(**TAGS, opened=True)), later, ToolUse()) is later


# Through the front ends


@pytest.fixture(scope="module")
def llm():
    """The model in the package, whose format is Hermes."""
    with LLM(threads=1, n_ctx=1024, kv_dtype="f32") as model:
        yield model


HELLO = [{"role": "user", "content": "Hello, who are you?"}]


def sampling(**more: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 200, "temperature": 1.0, "seed": 1, **more})


@pytest.mark.parametrize(
    "more", [{}, {"n": 3}, {"temperature": 0.0}, {"stop": ["Paris"], "seed": 5}, {"logprobs": 1}], ids=str
)
@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_a_chat_can_be_forced_to_call(llm, more, choice):
    answer = llm.chat(HELLO, sampling(max_tokens=600, **more), tools=TOOLS, tool_choice=choice)
    for one in answer.choices:
        assert one.finish_reason == "tool_calls"
        assert not one.message.content
        check_calls(one.message.tool_calls)
        assert choice == "required" or {made.function.name for made in one.message.tool_calls} == {"weather"}


def test_strict_tools_change_no_free_answer(llm):
    """A greedy answer without calls, or with valid ones, is the model's own."""
    free = [tool("weather", WEATHER["function"]["parameters"]["properties"])]
    for text in ("Hello, who are you?", "Tell me a story."):
        messages = [{"role": "user", "content": text}]
        strict = llm.chat(messages, sampling(temperature=0.0), tools=[WEATHER])
        usual = llm.chat(messages, sampling(temperature=0.0), tools=free)
        assert strict.token_ids == usual.token_ids


def test_one_call_at_most(llm):
    for seed in range(4):
        answer = llm.chat(
            HELLO, sampling(seed=seed, min_tokens=60), tools=TOOLS, tool_choice="required", parallel_tool_calls=False
        )
        assert len(answer.message.tool_calls) == 1


def test_streamed_calls_are_the_same(llm):
    whole = llm.chat(HELLO, sampling(), tools=TOOLS, tool_choice="required").message
    deltas = list(llm.chat_stream(HELLO, sampling(), tools=TOOLS, tool_choice="required"))
    assert deltas[-1].finish_reason == "tool_calls"
    streamed = [made for delta in deltas for made in delta.tool_calls]
    assert [(made.name, made.arguments) for made in streamed] == [
        (made.function.name, made.function.arguments) for made in whole.tool_calls
    ]


def test_structured_answers(llm):
    """The four ways to ask for a structure, in each method of ``LLM`` and ``AsyncLLM``."""
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    schema["additionalProperties"] = False
    asked: list[tuple[dict[str, Any], str]] = [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}},
            r'\{\s*"ok".*\}',
        ),
        ({"regex": "[a-c]{3}"}, "[a-c]{3}"),
        ({"choice": ["yes", "no"]}, "yes|no"),
        ({"grammar": 'root ::= "a" [0-9]'}, "a[0-9]"),
    ]

    async def texts(options: dict[str, Any]) -> list[str]:
        model = await asyncio.to_thread(AsyncLLM, threads=1, n_ctx=512)
        async with model:
            return [
                (await model.generate("x", sampling(), **options))[0].text,
                (await model.chat(HELLO, sampling(), **options)).text,
                "".join([delta.text async for delta in model.stream("x", sampling(), **options)]),
                "".join([delta.text async for delta in model.chat_stream(HELLO, sampling(), **options)]),
            ]

    for options, pattern in asked:
        found = [
            llm.generate("x", sampling(), **options)[0].text,
            llm.chat(HELLO, sampling(), **options).message.content,
            "".join(delta.text for delta in llm.stream("x", sampling(), **options)),
            "".join(delta.text for delta in llm.chat_stream(HELLO, sampling(), **options)),
            *asyncio.run(texts(options)),
        ]
        assert all(re.fullmatch(pattern, text, re.DOTALL) for text in found), found
    assert llm.generate("x", sampling(max_tokens=3), response_format={"type": "text"})[0].token_ids


def test_conflicting_structures_are_refused(llm):
    with pytest.raises(RequestError, match="given twice"):
        llm.generate("x", sampling(structured_outputs=StructuredOutputsParams(regex="a")), regex="b")
    with pytest.raises(RequestError, match="regex and choice"):
        llm.generate("x", sampling(), regex="b", choice=["a"])
    with pytest.raises(RequestError, match=r"response_format .*regex"):
        llm.generate("x", sampling(), response_format={"type": "text"}, regex="a")
    with pytest.raises(RequestError, match="response_format"):
        llm.generate("x", sampling(), response_format="json")
    with pytest.raises(TypeError, match="regexp"):
        llm.generate("x", sampling(), regexp="a")
    with pytest.raises(RequestError, match="ignore_eos"):
        llm.chat(HELLO, sampling(ignore_eos=True), tools=TOOLS, tool_choice="required")
    with pytest.raises(RequestError, match="tool_choice"):
        llm.chat(HELLO, sampling(), tool_choice="required")
    with pytest.raises(RequestError, match="parallel_tool_calls"):
        llm.chat(HELLO, sampling(), parallel_tool_calls=1)


@pytest.mark.parametrize("form", ["regex", "calls"])
def test_the_structure_begins_after_reasoning(llm, monkeypatch, form):
    """A template opens reasoning, which the package's model was not trained on; a budget ends it."""
    monkeypatch.setattr(llm._prompts, "_template", ChatTemplate(llm.tokenizer.chat_template + "<think>\n"))
    asked: dict[str, Any] = {"reasoning_format": "think", "reasoning_budget": 6}
    asked |= {"regex": "[0-9]{3}"} if form == "regex" else {"tools": TOOLS, "tool_choice": "required"}
    for seed in range(3):
        answer = llm.chat(HELLO, sampling(seed=seed, max_tokens=600), **asked)
        assert answer.message.reasoning_content
        assert "</think>" in answer.text
        if form == "regex":
            assert re.fullmatch("[0-9]{3}", answer.message.content or "")
        else:
            assert answer.finish_reason == "tool_calls"
            check_calls(answer.message.tool_calls)
    asked.pop("reasoning_budget")
    cut = llm.chat(HELLO, sampling(max_tokens=20), **asked)
    assert (cut.finish_reason, cut.message.content or "", cut.message.tool_calls) == ("length", "", [])


def test_forced_calls_share_prefixes_and_survive_preemption():
    """Eight simultaneous answers have the same tokens in a large pool and in one that is too small."""
    with LLM(threads=1, n_ctx=512, n_blocks=18) as small, LLM(threads=1, n_ctx=512) as large:
        options: dict[str, Any] = {"tools": TOOLS, "tool_choice": "required"}
        params = sampling(n=8, max_tokens=120)
        expected = large.chat(HELLO, params, **options)
        found = small.chat(HELLO, params, **options)
        assert [one.token_ids for one in found.choices] == [one.token_ids for one in expected.choices]
        assert small.stats().n_preemptions > 0
        assert small.chat(HELLO, params, **options).n_cached_tokens > 0
        for one in found.choices:
            if one.finish_reason == "tool_calls":
                check_calls(one.message.tool_calls)


# The command line


def test_options_of_the_commands(tmp_path, capsys):
    """Runs in this process; other tests cover the effect of the options."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["run", "-n", "60", "--temp", "1", "-s", "3", "-t", "1", "-c", "256", "hi", *arguments])
        return (code, *capsys.readouterr())

    schema, grammar = tmp_path / "schema.json", tmp_path / "grammar.gbnf"
    schema.write_text('{"type": "integer", "minimum": 10, "maximum": 99}', encoding="utf-8")
    grammar.write_text('root ::= "é" [0-9]', encoding="utf-8")
    for arguments, pattern in [
        (["--grammar", 'root ::= "a" [0-9]'], "a[0-9]"),
        (["--grammar-file", str(grammar)], "é[0-9]"),
        (["-j", schema.read_text()], "[1-9][0-9]"),
        (["--json-schema", schema.read_text(), "--raw"], "[1-9][0-9]"),
        (["-jf", str(schema)], "[1-9][0-9]"),
        (["--json-schema-file", str(schema)], "[1-9][0-9]"),
        (["--regex", "[x-z]{4}"], "[x-z]{4}"),
        (["--choice", "left", "--choice", "right"], "left|right"),
    ]:
        code, out, err = run(*arguments)
        assert code == 0, err
        assert re.fullmatch(pattern, out.strip()), (arguments, out)
    grammar.write_bytes(b"\xff")
    for arguments, words in [
        (["--grammar", 'root ::= "a"', "--regex", "a"], "regex"),
        (["--grammar", 'root ::= "a"', "--grammar-file", str(schema)], "grammar"),
        (["--grammar-file", str(grammar)], "UTF-8"),
        (["-jf", str(tmp_path / "absent")], "does not exist"),
        (["-j", "{"], "json"),
        (["--regex", "a", "--ignore-eos"], "ignore_eos"),
    ]:
        code, _, err = run(*arguments)
        assert code == 2
        assert words in err
    code, _, err = run("-j", '{"not": {}}')
    assert code == 1
    assert "'not' at #/" in err
