"""Structured answers through ``LLM`` and ``AsyncLLM``.

Oracles: Python's ``re`` and ``json`` on the answers; each request run alone; and, for draws that a grammar does not
change, the same request without one.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from quire.engine import LLM, AsyncLLM
from quire.errors import InternalError, RequestError, UnsupportedError
from quire.grammar import Matcher
from quire.params.sampling import SamplingParams
from quire.params.structured import StructuredOutputsParams

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "pets": {"type": "array", "items": {"enum": ["cat", "dog"]}, "maxItems": 3},
    },
    "required": ["name", "age", "pets"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    """The model in the package."""
    with LLM(threads=1, n_ctx=512, kv_dtype="f32") as model:
        yield model


def params(sampling: dict[str, object] | None = None, **form: object) -> SamplingParams:
    options = {"max_tokens": 120, "seed": 1, **(sampling or {})}
    return SamplingParams(**options, structured_outputs=StructuredOutputsParams(**form))  # type: ignore[arg-type]


def is_person(text: str) -> bool:
    value = json.loads(text)
    return (
        list(value) == ["name", "age", "pets"]
        and isinstance(value["name"], str)
        and len(value["name"]) <= 12
        and value["age"] in range(121)
        and len(value["pets"]) <= 3
        and all(pet in ("cat", "dog") for pet in value["pets"])
    )


# Parameters


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ({}, "json, json_object, regex, choice, grammar"),
        ({"regex": "a", "choice": ["b"]}, "regex and choice"),
        ({"regex": ""}, "regex"),
        ({"regex": 3}, "regex .*3"),
        ({"choice": []}, "choice .*16384"),
        ({"choice": "ab"}, "choice"),
        ({"choice": ["a", 3]}, "choice .*3"),
        ({"json": "{"}, "json"),
        ({"json": {"a": float("nan")}}, "json"),
        ({"json": {"a": object()}}, "json"),
        ({"json": '{"type": "null", "type": "string"}'}, "json"),
        ({"json": 3}, "json .*3"),
        ({"json": '{"items":' * 20_000 + "{}" + "}" * 20_000}, "json .*nested"),
        ({"json": {"enum": ["x" * 300_000]}}, "json .*262144"),
        ({"grammar": "\ud800"}, "grammar .*Unicode"),
        ({"json_object": 1}, "json_object"),
        ({"regex": "a", "disable_any_whitespace": True}, "disable_any_whitespace"),
        ({"json_object": True, "disable_any_whitespace": True, "whitespace_pattern": " "}, "whitespace_pattern"),
    ],
)
def test_invalid_parameters(form, reason):
    with pytest.raises(RequestError, match=reason):
        StructuredOutputsParams(**form)


def test_parameters_in_sampling_parameters():
    form = StructuredOutputsParams(regex="a")
    with pytest.raises(RequestError, match="ignore_eos"):
        SamplingParams(ignore_eos=True, structured_outputs=form)
    with pytest.raises(RequestError, match="structured_outputs"):
        SamplingParams(structured_outputs="regex")  # type: ignore[arg-type]
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    kept = StructuredOutputsParams(json=schema)
    schema.clear()
    assert json.loads(str(kept.json)) == {"type": "object", "properties": {"b": {}, "a": {}}}
    assert hash(kept) == hash(StructuredOutputsParams(json='{"type":"object","properties":{"b":{},"a":{}}}'))


def test_openai_response_format():
    read = StructuredOutputsParams.from_response_format
    assert read({"type": "text"}) is None
    assert read({"type": "json_object"}) == StructuredOutputsParams(json_object=True)
    for anything in ({}, None):
        assert read({"type": "json_object", "schema": anything}) == StructuredOutputsParams(json_object=True)
    assert read({"type": "json_object", "schema": PERSON}) == StructuredOutputsParams(json=PERSON)
    schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    assert read(schema, after="</think>") == StructuredOutputsParams(json=PERSON, after="</think>")
    assert read({"type": "json_schema", "name": "person", "schema": PERSON}) == StructuredOutputsParams(json=PERSON)
    tags = {"type": "array", "items": {"type": "string"}}
    unique = {"type": "object", "properties": {"uniqueItems": {**tags, "uniqueItems": True}}}
    model = type("Model", (), {"model_json_schema": staticmethod(lambda: unique)})
    assert read(model) == StructuredOutputsParams(json=unique)
    model.model_validate_json = staticmethod(json.loads)  # one that parses, as Pydantic's do
    assert read(model) == StructuredOutputsParams(json={"type": "object", "properties": {"uniqueItems": tags}})
    for wrong, kind, reason in [
        ({"type": "xml"}, UnsupportedError, "type .*'xml'"),
        ({}, UnsupportedError, "None"),
        ({"type": "text", "schema": {}}, UnsupportedError, "'schema'"),
        ({"type": "json_object", "schema": "{}"}, RequestError, r"schema .*'\{\}'"),
        ({"type": "json_object", "strict": True}, UnsupportedError, "'strict'"),
        ({"type": "json_schema"}, RequestError, "json_schema"),
        ({"type": "json_schema", "json_schema": {"name": "a"}}, RequestError, "schema"),
        ({"type": "json_schema", "json_schema": {"schema": {}, "lenient": 1}}, UnsupportedError, "'lenient'"),
    ]:
        with pytest.raises(kind, match=reason):
            read(wrong)


# Answers


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "more",
    [{}, {"min_p": 0.1, "top_k": 5}, {"repetition_penalty": 1.5, "logprobs": 2}, {"mirostat": 2}, {"min_tokens": 60}],
    ids=lambda more: "+".join(more) or "plain",
)
def test_every_sampling_option_follows_the_grammar(llm, temperature, more):
    sampling = {"temperature": temperature, **more}
    answers = llm.generate(["Once upon a time"] * 4, [params({**sampling, "seed": i}, json=PERSON) for i in range(4)])
    for answer in answers:
        assert answer.finish_reason == "stop"
        assert is_person(answer.text)
        assert answer.token_ids[-1] in llm.tokenizer.eog_ids


def test_each_kind_of_grammar(llm):
    for form, pattern in [
        ({"choice": ["red", "green", 'blu"e\n']}, r'red|green|blu"e\n'),
        ({"regex": r"[a-f]{3,6}/\d\d"}, r"[a-f]{3,6}/\d\d"),
        ({"regex": "^(yes|no)$"}, "yes|no"),
        ({"grammar": 'root ::= "<" [a-z]{1,9} ">" | "-"'}, "<[a-z]{1,9}>|-"),
        ({"grammar": 'start: "n=" N\nN: /[0-9]{2}/'}, r"n=\d\d"),
        ({"grammar": 'start: "n=" %json {"type": "integer", "minimum": 7, "maximum": 9}'}, r"n=[789]"),
    ]:
        for seed in range(4):
            text = llm.generate("The answer is", params({"seed": seed}, **form))[0].text
            assert re.fullmatch(pattern, text), (form, text)
    assert isinstance(json.loads(llm.generate("{", params({"temperature": 0.0}, json_object=True))[0].text), dict)


def test_a_grammar_that_allows_everything_changes_no_draw(llm):
    """It allows everything but control tokens and parts of characters, which the model would not have drawn."""
    free = llm.generate("Once upon a time", SamplingParams(max_tokens=40, seed=3))[0]
    formed = llm.generate("Once upon a time", params({"max_tokens": 40, "seed": 3}, regex="(?s:.*)"))[0]
    assert formed.token_ids == free.token_ids


def test_logprobs_are_the_models_own(llm):
    prompt = llm.tokenizer.encode("The answer is")
    answer = llm.generate([prompt], params({"logprobs": 1}, choice=["zebra"]))[0]
    logits = llm.logits([*prompt, *answer.token_ids])[len(prompt) - 1 : -1].astype(np.float64)
    shifted = logits - logits.max(-1, keepdims=True)
    expected = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    assert answer.logprobs is not None
    for row, token, drawn in zip(expected, answer.token_ids, answer.logprobs, strict=True):
        assert drawn.logprob == pytest.approx(row[token], abs=2e-3)


def test_batched_equals_alone_with_choices_and_neighbours(llm):
    wanted = [params({"seed": i, "n": 1 + i % 3}, json=PERSON) for i in range(6)]
    wanted += [SamplingParams(max_tokens=30, seed=9)] * 2
    prompts = ["Tell me about Mia. " * (1 + i % 2) for i in range(8)]
    alone = [llm.generate(prompt, one)[0] for prompt, one in zip(prompts, wanted, strict=True)]
    batched = llm.generate(prompts, wanted)
    for a, b in zip(alone, batched, strict=True):
        assert [choice.token_ids for choice in a.choices] == [choice.token_ids for choice in b.choices]
    for answer in batched[:6]:
        assert all(is_person(choice.text) for choice in answer.choices)
    assert len({choice.text for choice in batched[5].choices}) == 3


def test_preemption_changes_no_answer():
    with LLM(threads=1, n_ctx=256, n_blocks=12) as small, LLM(threads=1, n_ctx=256) as large:
        wanted = [params({"seed": i}, json=PERSON) for i in range(10)]
        prompts = [f"Number {i}: tell me about Mia and her pets, please. " * 3 for i in range(10)]
        found = [answer.token_ids for answer in small.generate(prompts, wanted)]
        assert small.stats().n_preemptions > 0
        assert found == [answer.token_ids for answer in large.generate(prompts, wanted)]


def test_stop_strings_and_length_may_cut_an_answer(llm):
    cut = llm.generate("x", params({"stop": '"age"'}, json=PERSON))[0]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", '"age"')
    assert cut.text.startswith("{")
    assert "age" not in cut.text
    short = llm.generate("x", params({"max_tokens": 5}, json=PERSON))[0]
    assert (short.finish_reason, len(short.token_ids)) == ("length", 5)


def test_streams_give_the_same_answer(llm):
    whole = llm.generate("x", params(json=PERSON))[0].text
    assert "".join(delta.text for delta in llm.stream("x", params(json=PERSON))) == whole

    async def ask() -> str:
        model = await asyncio.to_thread(AsyncLLM, threads=1, n_ctx=256, kv_dtype="f32")
        async with model:
            return (await model.generate("x", params(json=PERSON)))[0].text

    assert asyncio.run(ask()) == whole


def test_logits_processors_run_before_the_mask(llm):
    def prefer_z(token_ids, logits):
        changed = np.array(logits)
        changed[llm.tokenizer.encode("z")] += 50.0
        return changed

    answer = llm.generate("x", params({"temperature": 0.0, "logits_processors": [prefer_z]}, regex="[a-z]z[0-9]"))[0]
    assert re.fullmatch("zz[0-9]", answer.text)


# Grammars that start after a trigger


@pytest.mark.parametrize("seed", range(6))
def test_grammar_starts_after_a_text(llm, seed):
    """The text after the trigger follows the grammar from its first character on, wherever tokens end."""
    form = {"json": {"type": "integer"}, "after": "."}
    answer = llm.generate("Once upon a time", params({"seed": seed, "max_tokens": 200}, **form))[0]
    before, trigger, rest = answer.text.partition(".")
    assert trigger
    assert before
    if answer.finish_reason == "stop":
        assert re.fullmatch(r"\s{0,8}-?(0|[1-9]\d*)", rest)


def test_grammar_starts_after_a_control_token(llm):
    start = llm.tokenizer.control_tokens["<|im_start|>"]
    sampling = {"max_tokens": 60, "logit_bias": {start: 30.0}}
    answer = llm.generate("Once upon a time", params(sampling, choice=["yes", "no"], after="<|im_start|>"))[0]
    assert answer.finish_reason == "stop"
    at = answer.token_ids.index(start)
    assert llm.tokenizer.decode(answer.token_ids[at:]).strip() in ("yes", "no")


def test_no_end_before_the_trigger(llm):
    """Without the trigger, an answer ends only at its maximum length."""
    eog = dict.fromkeys(sorted(llm.tokenizer.eog_ids), 100.0)
    answer = llm.generate("Hello.", params({"max_tokens": 20, "logit_bias": eog}, choice=["1"], after="</think>"))[0]
    assert (answer.finish_reason, len(answer.token_ids)) == ("length", 20)


# Errors


def test_invalid_grammars_are_refused_before_anything_runs(llm):
    before = llm.stats().n_steps
    for form, kind, reason in [
        ({"json": {"uniqueItems": True}}, UnsupportedError, "the keyword 'uniqueItems' at #/"),
        ({"grammar": 'start: %json {"not": {}}'}, UnsupportedError, "the keyword 'not'"),
        ({"grammar": "start: %json {"}, RequestError, "%json"),
        ({"grammar": "start: foo"}, RequestError, r"\[grammar\]"),
        ({"grammar": 'root ::= "a'}, RequestError, r"\[gbnf\] line 1"),
        ({"regex": "(?=a)b"}, UnsupportedError, "look-around"),
        ({"regex": "["}, RequestError, r"\[grammar\]"),
        ({"json": {"$ref": "#"}}, RequestError, "refers to itself"),
        ({"json": {"type": "string", "minLength": 2, "maxLength": 1}}, RequestError, "Unsatisfiable"),
    ]:
        with pytest.raises(kind, match=reason):
            llm.generate("x", params(**form))
    assert llm.stats().n_steps == before


def test_a_mask_that_fails_ends_its_request_alone(llm, monkeypatch):
    fill, calls = Matcher.fill, []

    def broken(self, mask):
        calls.append(threading.current_thread().name)
        if len(calls) == 5:
            raise ZeroDivisionError("on purpose")
        fill(self, mask)

    monkeypatch.setattr(Matcher, "fill", broken)
    with pytest.raises(InternalError, match="ZeroDivisionError"):
        llm.generate("x", params(json=PERSON))
    assert all(name.startswith("quire-mask") for name in calls)
    monkeypatch.undo()
    assert is_person(llm.generate("x", params(json=PERSON))[0].text)
    deadline = time.monotonic() + 10
    while (stats := llm.stats()).n_free_blocks != stats.n_usable_blocks and time.monotonic() < deadline:
        time.sleep(0.005)
    assert stats.n_free_blocks == stats.n_usable_blocks


def test_a_slow_grammar_delays_no_other_request(llm, monkeypatch):
    fill = Matcher.fill
    gate = threading.Event()

    def slow(self, mask):
        gate.wait(20)
        fill(self, mask)

    monkeypatch.setattr(Matcher, "fill", slow)
    answers: list[str] = []
    waiting = threading.Thread(target=lambda: answers.append(llm.generate("x", params(json=PERSON))[0].text))
    waiting.start()
    assert len(llm.generate("Hello", SamplingParams(max_tokens=30, ignore_eos=True))[0].token_ids) == 30
    assert answers == []
    gate.set()
    waiting.join(20)
    assert is_person(answers[0])


def test_closing_while_a_grammar_is_compiled():
    model = LLM(threads=1, n_ctx=128)
    answers = model.stream("x", params(json=PERSON))
    next(answers)
    n_before = threading.active_count()
    model.close()
    assert threading.active_count() < n_before
    with pytest.raises(RequestError, match="closed"):
        model.generate("x", params(json=PERSON))
    answers.close()
