"""llama.cpp's routes.

Oracles: the package's model in this process without the server; llama.cpp's documented fields and defaults; the ids of
StarCoder2's fill-in tokens.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from fake_engine import INFO, FakeEngine
from one_call import call, post
from quire.engine import LLM
from quire.engine.loading.loader import packaged_model
from quire.engine.requests.infill import FillInTokens, infill_tokens
from quire.errors import UnsupportedError
from quire.gguf import GGUFReader
from quire.params.sampling import SamplingParams
from quire.server.worker.protocol import Ask, Beat, Failed, Generate
from quire.tokenizer import Tokenizer
from served import served, wait_until
from tiny_adapters import write_gguf_adapter

STORY = "Once upon a time"
DRAW = np.random.default_rng(7)
GREEDY = {"temperature": 0, "n_predict": 12}


def events_of(response: httpx.Response) -> list[Any]:
    assert response.status_code == 200, response.text
    return [json.loads(item.removeprefix("data: ")) for item in response.text.strip().split("\n\n")]


def test_a_completion_matches_the_engine(client: httpx.Client, llm: LLM) -> None:
    (expected,) = llm.generate(STORY, SamplingParams(temperature=0.0, max_tokens=12))
    body = {"prompt": STORY, **GREEDY, "return_tokens": True}
    answer = client.post("/completion", json=body).json()
    assert answer["content"] == expected.text
    assert answer["tokens"] == expected.token_ids
    assert answer["tokens_predicted"] == len(expected.token_ids)
    assert answer["tokens_evaluated"] == len(expected.prompt_token_ids)
    assert (answer["stop"], answer["stop_type"], answer["stopping_word"]) == (True, "limit", "")
    assert answer["prompt"] == STORY
    assert answer["generation_settings"]["n_predict"] == 12
    timings = answer["timings"]
    assert timings["predicted_n"] == 12
    assert timings["cache_n"] + timings["prompt_n"] == answer["tokens_evaluated"]
    assert timings["predicted_per_second"] == pytest.approx(11e3 / timings["predicted_ms"], rel=0.05)
    assert timings["predicted_per_token_ms"] == pytest.approx(timings["predicted_ms"] / 11, rel=0.05)
    # Repeat it under the other path, with the prompt as ids.
    ids = llm.tokenizer.encode(STORY)
    assert client.post("/completions", json={**body, "prompt": ids}).json()["content"] == expected.text


def test_a_stream_adds_up_to_the_whole_answer(client: httpx.Client) -> None:
    body = {"prompt": [STORY, "The capital of France"], "n": 2, "seed": 4, "n_predict": 10, "return_tokens": True}
    whole = client.post("/completion", json=body).json()
    assert [one["index"] for one in whole] == [0, 1, 2, 3]
    events = events_of(client.post("/completion", json={**body, "stream": True}))
    for one in whole:
        mine = [event for event in events if event["index"] == one["index"]]
        assert "".join(event["content"] for event in mine) == one["content"]
        assert [id_ for event in mine for id_ in event["tokens"]] == one["tokens"]
        assert [event["stop"] for event in mine] == [False] * (len(mine) - 1) + [True]
        assert mine[-1]["tokens_predicted"] == one["tokens_predicted"]


def test_prompts_that_mix_texts_and_ids(client: httpx.Client, llm: LLM) -> None:
    tokenizer = llm.tokenizer
    ids = [*tokenizer.encode("Once"), *tokenizer.encode(" upon", add_special=False)]
    middle = tokenizer.encode(" a", add_special=False)
    (expected,) = llm.generate([*ids, *middle], SamplingParams(temperature=0.0, max_tokens=12))
    mixed = ["Once", *tokenizer.encode(" upon", add_special=False), " a"]
    for prompt in (mixed, [mixed], {"prompt_string": tokenizer.decode([*ids, *middle])}):
        answer = client.post("/completion", json={"prompt": prompt, **GREEDY}).json()
        assert answer["content"] == expected.text


def test_stop_reasons(client: httpx.Client, llm: LLM) -> None:
    (expected,) = llm.generate(STORY, SamplingParams(temperature=0.0, max_tokens=12))
    word = expected.text.split()[2]
    answer = client.post("/completion", json={"prompt": STORY, **GREEDY, "stop": [word]}).json()
    assert (answer["stop_type"], answer["stopping_word"]) == ("word", word)
    assert answer["content"] == expected.text.partition(word)[0]
    ended = client.post(
        "/completion", json={"prompt": STORY, "logit_bias": [[id_, 100] for id_ in llm.tokenizer.eog_ids][:1]}
    ).json()
    assert (ended["stop_type"], ended["content"]) == ("eos", "")
    read_only = client.post("/completion", json={"prompt": STORY, "n_predict": 0}).json()
    assert (read_only["content"], read_only["tokens_predicted"], read_only["stop_type"]) == ("", 0, "limit")


def test_probabilities_match_the_engine(client: httpx.Client, llm: LLM) -> None:
    (expected,) = llm.generate(STORY, SamplingParams(temperature=0.0, max_tokens=4, logprobs=2))
    assert expected.logprobs is not None
    body = {"prompt": STORY, "temperature": 0, "n_predict": 4, "n_probs": 2}
    shown = client.post("/completion", json=body).json()["completion_probabilities"]
    streamed = events_of(client.post("/completion", json={**body, "stream": True}))
    assert [p for event in streamed[:-1] for p in event["completion_probabilities"]] == shown
    for token, reference in zip(shown, expected.logprobs, strict=True):
        assert token["id"] == reference.token_id
        assert token["logprob"] == pytest.approx(reference.logprob, abs=1e-4)
        assert bytes(token["bytes"]) == llm.tokenizer.token_bytes(reference.token_id)
        assert [top["id"] for top in token["top_logprobs"]] == [id_ for id_, _ in reference.top]


def test_probabilities_after_the_chain(client: httpx.Client, llm: LLM) -> None:
    """Oracle: the softmax of the model's log-probabilities over the tokens that top-k leaves, with NumPy."""
    (plain,) = llm.generate(STORY, SamplingParams(temperature=0.0, max_tokens=1, logprobs=3))
    assert plain.logprobs is not None
    own = plain.logprobs[0].top
    weights = np.exp(np.array([logprob for _, logprob in own]) / 0.5)
    neutral = {"top_p": 1, "min_p": 0, "temperature": 0.5, "n_predict": 1, "n_probs": 9, "seed": 5}
    body = {"prompt": STORY, "top_k": 3, **neutral, "post_sampling_probs": True}
    answer = client.post("/completion", json=body).json()
    (shown,) = answer["completion_probabilities"]
    assert answer["generation_settings"]["post_sampling_probs"] is True
    assert shown.keys() == {"id", "token", "bytes", "prob", "top_probs"}
    assert [top["id"] for top in shown["top_probs"]] == [id_ for id_, _ in own]
    assert [top["prob"] for top in shown["top_probs"]] == pytest.approx(weights / weights.sum(), rel=1e-3)
    assert shown["prob"] == next(top["prob"] for top in shown["top_probs"] if top["id"] == shown["id"])
    events = events_of(client.post("/completion", json={**body, "stream": True}))
    assert events[0]["completion_probabilities"] == [shown]
    # Stages that would leave one token leave two.
    two = client.post("/completion", json={**body, "min_p": 1, "min_keep": 2}).json()["completion_probabilities"][0]
    assert [top["prob"] for top in two["top_probs"]] == pytest.approx(weights[:2] / weights[:2].sum(), rel=1e-3)
    sure = client.post("/completion", json={**body, "temperature": 0}).json()["completion_probabilities"][0]
    assert [top["prob"] for top in sure["top_probs"]] == [sure["prob"]] == [1.0]
    # In chats too, and in completions in OpenAI's format.
    chat = {"messages": [{"role": "user", "content": "Hi"}], **neutral, "top_k": 2, "post_sampling_probs": True}
    (entry,) = client.post("/v1/chat/completions", json=chat).json()["choices"][0]["logprobs"]["content"]
    assert sum(top["prob"] for top in entry["top_probs"]) == pytest.approx(1)
    raw = {"prompt": STORY, "top_k": 3, "temperature": 0.5, "max_tokens": 1, "logprobs": 3, "post_sampling_probs": True}
    (columns,) = client.post("/v1/completions", json=raw).json()["choices"][0]["logprobs"]["top_logprobs"]
    assert sorted(columns.values()) == pytest.approx(sorted(np.log(weights / weights.sum())), abs=1e-3)
    assert client.post("/v1/completions", json={**raw, "best_of": 2}).status_code == 400


def test_forms_and_biases(client: httpx.Client, llm: LLM) -> None:
    answer = client.post("/completion", json={"prompt": STORY, "grammar": 'root ::= "a" "b"+ "c"', "n_predict": 40})
    assert answer.json()["content"].startswith("ab")
    schema = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"], "additionalProperties": False}
    answer = client.post("/completion", json={"prompt": STORY, "json_schema": schema, "n_predict": 60})
    assert json.loads(answer.json()["content"]) == {"a": 1}
    (first,) = llm.generate(STORY, SamplingParams(temperature=0.0, max_tokens=1))
    body = {"prompt": STORY, "temperature": 0, "n_predict": 1, "return_tokens": True}
    for bias in ([[first.token_ids[0], False]], {str(first.token_ids[0]): -100}, [[first.text, False]]):
        assert client.post("/completion", json={**body, "logit_bias": bias}).json()["tokens"] != first.token_ids


def test_the_cache_can_be_bypassed(client: httpx.Client) -> None:
    body = {"prompt": "Tell a long story. " * 30, "n_predict": 1}
    cached = [client.post("/completion", json=body).json()["tokens_cached"] for _ in range(2)]
    assert cached[0] == 0
    assert cached[1] >= 64
    alone = client.post("/completion", json={**body, "cache_prompt": False}).json()
    assert (alone["tokens_cached"], alone["timings"]["cache_n"]) == (0, 0)


def test_templates_and_state(client: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "Hi there"}]}
    prompt = client.post("/apply-template", json=body).json()["prompt"]
    assert "Hi there" in prompt
    ids = client.post("/tokenize", json={"content": prompt}).json()["tokens"]
    assert client.post("/chat/completions", json={**body, "max_tokens": 1}).json()["usage"]["prompt_tokens"] == len(ids)
    props = client.get("/props").json()
    assert props["chat_template"]
    assert props["default_generation_settings"]["n_ctx"] == 2048
    usual = client.post("/completion", json={"prompt": "x", "n_predict": 1}).json()["generation_settings"]
    assert props["default_generation_settings"]["params"] == {**usual, "n_predict": -1, "max_tokens": -1}
    slots = client.get("/slots").json()
    assert len(slots) == props["total_slots"]
    assert not any(slot["is_processing"] for slot in slots)
    assert client.get("/lora-adapters").json() == []
    assert [model["id"] for model in client.get("/models").json()["data"]] == ["tiny-chat"]
    gap = {"input_prefix": "a", "input_suffix": "b"}
    for path, body in (("/infill", gap), ("/v1/completions", {"prompt": "a", "suffix": "b"})):
        response = client.post(path, json=body)
        assert response.status_code == 400
        assert "fim_prefix" in response.json()["error"]["message"]


@pytest.mark.parametrize("n", [1, 2])
def test_the_time_limit_ends_an_answer_after_a_line(client: httpx.Client, n: int) -> None:
    # At least one line is generated, however short the limit; then the answer ends with reason "limit".
    line = {"prompt": STORY, "grammar": 'root ::= "a"+ "\\n" "b"{900}', "n_predict": 1000, "n": n, "seed": 1}
    body = {**line, "t_max_predict_ms": 1, "return_tokens": True}
    answers = client.post("/completion", json=body).json()
    for answer in answers if n > 1 else [answers]:
        head, newline, tail = answer["content"].partition("\n")
        assert (set(head), newline) == ({"a"}, "\n")
        assert len(tail) < 900
        assert (answer["stop_type"], answer["has_new_line"]) == ("limit", True)
        assert answer["tokens_predicted"] == len(answer["tokens"]) == answer["timings"]["predicted_n"] < 900
    flat = {**line, "grammar": 'root ::= "b"{60}', "t_max_predict_ms": 1, "n": 1}
    assert client.post("/completion", json=flat).json()["content"] == "b" * 60
    events = events_of(client.post("/completion", json={**body, "n": 1, "stream": True}))
    assert events[-1]["stop_type"] == "limit"
    assert events[-1]["tokens_predicted"] == sum(len(event["tokens"]) for event in events)
    # The worker sends its figures periodically.
    wait_until(lambda: client.get("/v1/status").json()["models"][0]["cache"]["used"] == 0)


def test_progress_and_timings_in_a_stream(client: httpx.Client) -> None:
    body = {"prompt": "A quick brown fox. " * 300, "n_predict": 6, "temperature": 0, "ignore_eos": True, "stream": True}
    events = events_of(client.post("/completion", json={**body, "return_progress": True, "timings_per_token": True}))
    steps = [event["prompt_progress"] for event in events if "prompt_progress" in event]
    tokens = [event for event in events if "prompt_progress" not in event]
    assert events[: len(steps)] == [event for event in events if "prompt_progress" in event]
    assert steps[0]["processed"] == steps[0]["cache"] == 0
    assert steps[-1]["processed"] == steps[-1]["total"] == tokens[-1]["tokens_evaluated"] > 1024
    assert len(steps) > 3  # a step processes at most 512 tokens
    assert [s["processed"] for s in steps] == sorted({s["processed"] for s in steps})
    assert [event["timings"]["predicted_n"] for event in tokens] == [*range(1, 7), 6]
    assert {event["timings"]["prompt_n"] for event in tokens} == {steps[-1]["total"]}
    assert tokens[0]["timings"].keys() == tokens[-1]["timings"].keys()
    # Repeat it: cached tokens count as processed from the start.
    again = events_of(client.post("/completion", json={**body, "return_progress": True}))
    first = again[0]["prompt_progress"]
    assert first["processed"] == first["cache"] == again[-1]["tokens_cached"] > 1024
    assert not any("timings" in event for event in again[:-1])
    whole = client.post("/completion", json={**body, "stream": False, "return_progress": True}).json()
    assert whole["content"] == "".join(event["content"] for event in events)


def test_the_last_message_is_continued(client: httpx.Client, llm: LLM) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    whole = llm.chat(messages, max_tokens=32, temperature=0.0)
    begun = whole.text[:12]
    ids = llm.tokenizer.encode(begun, add_special=False)
    n_same = len(ids) if whole.token_ids[: len(ids)] == ids else 0
    said = [*messages, {"role": "assistant", "content": begun}]
    rest = llm.chat(said, max_tokens=32, temperature=0.0, continue_final_message=True)
    assert rest.prompt_token_ids == [*whole.prompt_token_ids, *ids]
    if n_same:
        assert begun + rest.text == whole.text
    body = {"messages": said, "temperature": 0, "max_tokens": 32, "continue_final_message": True}
    answer = client.post("/v1/chat/completions", json={**body, "add_generation_prompt": False}).json()
    assert answer["choices"][0]["message"]["content"] == rest.text
    for wrong in (messages, [*messages, {"role": "assistant", "content": ""}]):
        response = client.post("/v1/chat/completions", json={**body, "messages": wrong})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "messages")


# Tests without a model


def sent(body: dict[str, Any]) -> dict[str, Any]:
    """Return the sampling parameters that a body results in."""
    engine = FakeEngine()
    response = post("/completion", {"prompt": "x", **body}, engine=engine)
    assert response.status_code == 200, response.text
    (work,) = engine.asked
    assert isinstance(work, Generate)
    return work.params


@pytest.mark.parametrize(("path", "body"), [("/props", {}), ("/slots/0?action=save", {})])
def test_unsupported_state_changes_are_rejected(path: str, body: Any) -> None:
    response = post(path, body)
    assert response.status_code == 501
    assert response.json()["error"].keys() == {"code", "message", "type"}
    assert response.json()["error"]["type"] == "not_supported_error"


def test_a_single_token_has_no_speed(client: httpx.Client) -> None:
    """No time passes between the first token and the last, and dividing by it gave nonsense."""
    before = figures(client)
    for body in ({"prompt": "One token", "n_predict": 1}, {"prompt": "One token", "n_predict": 1, "n_probs": 1}):
        timings = client.post("/completion", json=body).json()["timings"]
        assert (timings["predicted_n"], timings["predicted_ms"]) == (1, 0.0)
        assert (timings["predicted_per_second"], timings["predicted_per_token_ms"]) == (0.0, 0.0)
        assert 0 < timings["prompt_per_second"] < 1e6
    after = figures(client)
    assert after["predicted_tokens_seconds"] == 0
    assert after["tokens_predicted_total"] == before["tokens_predicted_total"] + 2
    two = client.post("/completion", json={"prompt": "Two tokens", "n_predict": 2, "ignore_eos": True}).json()[
        "timings"
    ]
    assert two["predicted_per_second"] == pytest.approx(1e3 / two["predicted_ms"], rel=0.05)
    assert figures(client)["predicted_tokens_seconds"] == pytest.approx(two["predicted_per_second"], rel=0.05)
    for options in ({"num_predict": 1}, {"num_predict": 2, "seed": 1}):
        body = {"model": "tiny-chat", "prompt": "Once upon a", "raw": True, "stream": False, "options": options}
        answer = client.post("/api/generate", json=body).json()
        assert ("eval_duration" in answer) == (answer["eval_count"] == 2)


def test_rates_cover_the_time_since_the_last_scrape(client: httpx.Client) -> None:
    figures(client)
    timings = client.post(
        "/completion", json={"prompt": "A fox and a hare", "n_predict": 9, "ignore_eos": True}
    ).json()["timings"]
    first, second = figures(client), figures(client)
    assert first["predicted_tokens_seconds"] == pytest.approx(timings["predicted_per_second"], rel=0.05)
    assert first["prompt_tokens_seconds"] == pytest.approx(timings["prompt_per_second"], rel=0.05)
    assert second["predicted_tokens_seconds"] == second["prompt_tokens_seconds"] == 0
    assert second["tokens_predicted_total"] == first["tokens_predicted_total"]
    response = client.get("/metrics")
    started = int(response.headers["process-start-time-unix"])
    assert time.time() - 3600 < started <= time.time()
    assert client.get("/metrics").headers["process-start-time-unix"] == str(started)
    for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
        assert f"spec_decode_{name}_total" in second


def test_metrics_include_embedded_prompts(client: httpx.Client) -> None:
    before = figures(client)
    answer = client.post("/v1/embeddings", json={"input": ["A fox of the figures", "Seven hares"]}).json()
    after = figures(client)
    assert after["prompt_tokens_total"] - before["prompt_tokens_total"] == answer["usage"]["prompt_tokens"]


@pytest.mark.parametrize(("path", "body"), [
    ("/completion", {"prompt": "fox " * 700, "n_predict": 2}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "fox " * 700}], "max_tokens": 2}),
    ("/v1/responses", {"input": "fox " * 700, "max_output_tokens": 2}),
])  # fmt: skip
@pytest.mark.parametrize("with_timings", [False, True])
def test_progress_has_timings_if_requested(client: httpx.Client, path: str, body: Any, with_timings: bool) -> None:
    more = {"stream": True, "return_progress": True, "timings_per_token": with_timings, "cache_salt": "a"}
    if path != "/v1/chat/completions":
        more.pop("cache_salt")
    text = client.post(path, json={**body, **more}).text
    events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: {")]
    progress = [event for event in events if "prompt_progress" in event]
    assert progress[-1]["prompt_progress"]["processed"] == progress[-1]["prompt_progress"]["total"]
    for event in progress:
        assert ("timings" in event) == with_timings
        if with_timings:
            told, timings = event["prompt_progress"], event["timings"]
            assert timings["cache_n"] + timings["prompt_n"] == told["processed"]
            assert (timings["predicted_n"], timings["predicted_per_second"]) == (0, 0.0)


def test_metrics_and_models_in_llama_cpp_format(client: httpx.Client, llm: LLM) -> None:
    before = figures(client)
    body = {"prompt": "A story of the figures", "n_predict": 16, "temperature": 0, "cache_prompt": False}
    timings = client.post("/completion", json=body).json()["timings"]
    after = figures(client)
    for name, key in (("prompt_tokens", "prompt_n"), ("tokens_predicted", "predicted_n")):
        assert after[f"{name}_total"] - before[f"{name}_total"] == timings[key]
    for name, key in (("prompt_seconds", "prompt_ms"), ("tokens_predicted_seconds", "predicted_ms")):
        assert after[f"{name}_total"] - before[f"{name}_total"] == pytest.approx(timings[key] / 1000, abs=1e-3)
    assert after["n_tokens_max"] >= timings["prompt_n"] + 16
    assert 0 < after["n_busy_slots_per_decode"] <= after["n_decode_total"] * 32
    assert {"n_decode_total", "requests_processing", "requests_deferred", "prompt_tokens_seconds"} < after.keys()
    (model,) = client.get("/models").json()["data"]
    meta = model["meta"]
    assert (meta["n_ctx"], meta["n_vocab"], meta["vocab_type"]) == (llm.n_ctx, llm.n_vocab, 2)
    file = GGUFReader(packaged_model())
    assert meta["n_params"] == sum(math.prod(tensor.shape) for tensor in file.tensors)
    assert meta["n_embd"] == file.metadata.integer("qwen3.embedding_length")
    assert meta["n_ctx_train"] == file.metadata.integer("qwen3.context_length")
    assert meta["size"] == packaged_model().stat().st_size


def figures(client: httpx.Client) -> dict[str, float]:
    """llama.cpp's metrics, without their prefix."""
    lines = [line.split() for line in client.get("/metrics").text.splitlines()]
    return {name.removeprefix("llamacpp:"): float(value) for name, value, *_ in lines if name.startswith("llamacpp:")}


def test_defaults_match_llama_cpp() -> None:
    params = sent({})
    assert [params[name] for name in ("temperature", "top_k", "top_p", "min_p")] == [0.8, 40, 0.95, 0.05]
    assert (params["penalty_last_n"], params["dry_penalty_last_n"]) == (64, 64)
    assert "max_tokens" not in params
    assert "seed" not in params
    assert params["samplers"][-1] == "temperature"
    assert "seed" not in sent({"seed": 4294967295})
    assert sent({"seed": 7})["seed"] == 7


def test_field_names_are_translated() -> None:
    params = sent({"repeat_penalty": 1.2, "repeat_last_n": -1, "n_cmpl": 2, "max_tokens": 5, "top_n_sigma": -1})
    assert params["repetition_penalty"] == 1.2
    assert "penalty_last_n" not in params
    assert "top_n_sigma" not in params
    assert (params["n"], params["max_tokens"]) == (2, 5)
    assert list(sent({"samplers": "kt"})["samplers"]) == ["top_k", "temperature"]
    assert "top_p" not in sent({"samplers": ["top_k", "temp"]})
    assert list(sent({"mirostat": 2})["samplers"])[-2:] == ["temperature", "mirostat"]
    assert "top_k" not in sent({"mirostat": 2})
    assert sent({"mirostat": 2, "top_k": 5})["top_k"] == 5
    assert sent({"logit_bias": {"5": False, "6": 1.5}}) == {**sent({}), "bad_token_ids": (5,), "logit_bias": {6: 1.5}}


def test_fields_of_the_answer_can_be_chosen() -> None:
    body = {"prompt": "x", "response_fields": ["content", "generation_settings/top_k", "none", "content/x"]}
    assert post("/completion", body).json() == {"content": "ab", "generation_settings/top_k": 40}


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"t_max_predict_ms": -2}, "t_max_predict_ms"),
        ({"lora": [{"id": 0, "scale": 1}]}, "lora"), ({"min_keep": -1}, "min_keep"),
        ({"adaptive_target": 1.5}, "adaptive_target"), ({"image_data": [{}]}, "image_data"),
        ({"grammar": "root ::= x", "json_schema": {}}, "grammar"), ({"samplers": ["infill"]}, "samplers"),
        ({"samplers": "kk"}, "samplers"), ({"samplers": "k", "min_p": 0.1}, "samplers"), ({"n_probs": 21}, "n_probs"),
        ({"n_predict": 1, "max_tokens": 2}, "max_tokens"), ({"n_predict": 2**31}, "n_predict"), ({"n": 17}, "n"),
        ({"logit_bias": [[1, True]]}, "logit_bias"), ({"logit_bias": [[1, 101]]}, "logit_bias"),
        ({"logit_bias": [[1, 1]] * 1025}, "logit_bias"), ({"stop": ["x"] * 17}, "stop"), ({"seed": 2**64}, "seed"),
        ({"repeat_last_n": -2}, "repeat_last_n"), ({"response_fields": [""] * 65}, "response_fields"),
        ({"prompt": [1, [2]]}, "prompt"), ({"prompt": ["x"] * 129}, "prompt"), ({"temprature": 1}, "temprature"),
        ({"prompt": {"prompt_string": "x", "multimodal_data": [1]}}, "prompt"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_invalid_fields_are_named(fields: dict[str, Any], name: str) -> None:
    engine = FakeEngine()
    response = post("/completion", {"prompt": "x", **fields}, engine=engine, options={"strict": True})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["type"]) == (400, "invalid_request_error")
    assert name in error["message"]
    assert engine.asked == []


def test_neutral_values_are_accepted() -> None:
    body = {"n_keep": 0, "id_slot": -1, "lora": [], "grammar": "", "t_max_predict_ms": 0, "min_keep": 0, "stop": None}
    assert sent(body) == sent({})


def test_adapters_are_listed_and_their_scales_are_fixed() -> None:
    """A request may repeat the scales in effect; an adapter that it omits has scale 0."""
    adapters = [{"id": 0, "path": "style.gguf", "scale": 0.5}, {"id": 1, "path": "tone", "scale": 0.0}]

    def engine() -> FakeEngine:
        fake = FakeEngine()
        fake.info = msgspec.structs.replace(INFO, adapters=[("style.gguf", 0.5), ("tone", 0.0)])
        return fake

    assert call("GET", "/lora-adapters", engine=engine()).json() == adapters
    params = call("GET", "/props", engine=engine()).json()["default_generation_settings"]["params"]
    assert params["lora"] == [{"id": 0, "scale": 0.5}, {"id": 1, "scale": 0.0}]
    (model,) = call("GET", "/v1/models", engine=engine()).json()["data"]
    assert model["meta"]["lora_adapters"] == adapters
    bodies = {
        "/completion": {"prompt": "x"}, "/v1/completions": {"prompt": "x"},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
    }  # fmt: skip
    kept = [[], [{"id": 0, "scale": 0.5}], [{"id": 0, "scale": 0.5}, {"id": 1}]]
    other = [[{"id": 0}], [{"id": 1, "scale": 0.5}], [{"id": 0, "scale": 0.5}, {"id": 2, "scale": 1}], [{"scale": 0.5}]]
    for path, body in bodies.items():
        for lora in kept:
            assert post(path, {**body, "lora": lora}, engine=engine()).status_code == 200, (path, lora)
        for lora in other:
            response = post(path, {**body, "lora": lora}, engine=engine())
            assert response.status_code == 400, (path, lora)
            assert "lora" in response.json()["error"]["message"]


def test_adapter_scales_change_with_allow_changes() -> None:
    def engine() -> FakeEngine:
        fake = FakeEngine()
        fake.info = msgspec.structs.replace(INFO, adapters=[("style.gguf", 0.5), ("tone", 0.0)])
        return fake

    for same in ([{"id": 0, "scale": 0.5}], [{"id": 1, "scale": 0}, {"id": 0, "scale": 0.5}]):
        response = post("/lora-adapters", same, engine=engine())
        assert (response.status_code, response.json()) == (200, {"success": True})
    other = post("/lora-adapters", [{"id": 0, "scale": 1}], engine=engine())
    assert (other.status_code, "--allow-changes" in other.text) == (403, True)
    for bad in ([{"id": 2, "scale": 1}], [{"scale": 1}], [1], [{"id": 0, "scale": "x"}], [{"id": 0, "scale": 1e38}]):
        assert post("/lora-adapters", bad, engine=engine()).status_code == 400
    assert post("/completion", [{"prompt": "x"}]).status_code == 400  # other routes take no lists


def test_requests_choose_adapters_by_id_or_as_their_model() -> None:
    """Only for models whose requests may choose; vLLM's and llama.cpp's lists, and what the engine is asked."""

    def engine() -> FakeEngine:
        fake = FakeEngine()
        adapters = [("style.gguf", 0.5), ("tone", 0.0)]
        fake.info = msgspec.structs.replace(INFO, adapters=adapters, loras=["style", "polite"])
        return fake

    shown = call("GET", "/v1/models", engine=engine()).json()["data"]
    assert [(each["id"], each.get("parent"), each.get("root")) for each in shown[1:]] == [
        ("style", shown[0]["id"], "style.gguf"), ("polite", shown[0]["id"], "tone"),
    ]  # fmt: skip
    assert call("GET", "/v1/models/polite", engine=engine()).json() == shown[2]
    chat = {"messages": [{"role": "user", "content": "x"}]}
    lora = [{"id": 1, "scale": -0.5}, {"id": 0}]
    for path, body in (
        ("/v1/chat/completions", chat), ("/v1/completions", {"prompt": "x"}), ("/completion", {"prompt": "x"}),
        ("/v1/messages", {**chat, "max_tokens": 8}), ("/api/chat", chat), ("/v1/responses", {"input": "x"}),
    ):  # fmt: skip
        for fields, expected in (
            ({"model": "polite"}, (("polite", 1.0),)), ({"model": "style"}, (("style", 0.5),)),
            ({"model": "fake"}, None),
        ):  # fmt: skip
            asked = engine()
            assert post(path, {**body, **fields}, engine=asked).status_code == 200, path
            assert asked.asked[-1].params.get("adapter") == expected, (path, fields)  # type: ignore[union-attr]
    for path, body in (("/v1/chat/completions", chat), ("/completion", {"prompt": "x"})):
        asked = engine()
        assert post(path, {**body, "model": "style", "lora": lora}, engine=asked).status_code == 200
        assert asked.asked[-1].params["adapter"] == (("polite", -0.5),)  # type: ignore[union-attr]
        refused = post(path, {**body, "lora": [{"id": 2, "scale": 1}]}, engine=engine())
        assert (refused.status_code, "id 2" in refused.text) == (400, True)
        refused = post(path, {**body, "lora": [{"id": 0, "scale": -101}]}, engine=engine())
        assert (refused.status_code, "scale" in refused.text) == (400, True)
    asked = engine()
    assert post("/v1/embeddings", {"model": "style", "input": "x"}, engine=asked).status_code == 200
    assert asked.asked[-1].hints.adapter == (("style", 0.5),)
    for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
        body = {"lora_name": "x"} | ({"lora_path": "x"} if "unload" not in path else {})
        refused = post(path, body, engine=engine())
        assert (refused.status_code, "--allow-lora-updates" in refused.text) == (403, True)


def test_changed_scales_match_a_model_loaded_with_them(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    (models / "tiny.gguf").write_bytes(packaged_model().read_bytes())
    halves = {
        f"blk.{i}.ffn_down.weight.lora_{half}": 0.3 * DRAW.normal(size=shape).astype(np.float32)
        for i in range(4)
        for half, shape in (("a", (4, 768)), ("b", (256, 4)))
    }
    style = write_gguf_adapter(tmp_path / "style.gguf", halves, {"general.architecture": "qwen3"})
    body = {"prompt": STORY, "n_predict": 24, "temperature": 0}
    expected = {}
    for scale in (0.0, 0.5, 1.0):
        with LLM(packaged_model(), threads=1, kv_dtype="f32", adapters=[(str(style), scale)]) as model:
            expected[scale] = model.generate(STORY, SamplingParams(temperature=0.0, max_tokens=24))[0].text
    assert len(set(expected.values())) == 3
    options = ["--models-dir", str(models), "--lora", str(style), "--allow-changes", "--allow-lora-updates"]
    with served(tmp_path, options) as server, server.client() as client:
        assert client.post("/completion", json=body).json()["content"] == expected[1.0]
        for scale in (0.5, 0.0, 1.0):
            changed = client.post("/lora-adapters", json=[{"id": 0, "scale": scale}])
            assert changed.json() == {"success": True}, changed.text
            assert client.get("/lora-adapters").json()[0]["scale"] == scale
            assert client.post("/completion", json=body).json()["content"] == expected[scale]
        half = client.post("/completion", json={**body, "lora": [{"id": 0, "scale": 0.5}]})
        assert half.json()["content"] == expected[0.5]
        more = {"lora_name": "more", "lora_path": str(style)}
        assert client.post("/v1/load_lora_adapter", json=more).text.startswith("Success")
        assert client.post("/v1/load_lora_adapter", json=more).status_code == 400  # the name is taken
        assert client.post("/v1/load_lora_adapter", json={**more, "lora_path": "/absent"}).status_code == 400
        for bad in ("/absent", f"{more['lora_path']}\0x"):
            answer = client.post("/v1/load_lora_adapter", json={"lora_name": "bad", "lora_path": bad})
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "adapter_not_loaded")
        assert client.post("/lora-adapters", json=[{"id": 1, "scale": 0.5}]).json() == {"success": True}
        assert client.post("/completion", json=body).json()["content"] == expected[0.5]  # by default
        asked = {"model": "more", "prompt": STORY, "max_tokens": 24, "temperature": 0}
        assert client.post("/v1/completions", json=asked).json()["choices"][0]["text"] == expected[0.5]
        assert [each["id"] for each in client.get("/v1/models").json()["data"]] == ["tiny", "style", "more"]
        assert client.post("/v1/models/unload", json={"model": "tiny"}).status_code == 200
        assert client.post("/completion", json={**body, "model": "tiny"}).json()["content"] == expected[0.5]
        assert client.post("/v1/unload_lora_adapter", json={"lora_name": "more"}).text.startswith("Success")
        assert client.post("/v1/unload_lora_adapter", json={"lora_name": "more"}).status_code == 404
        gone = client.post("/v1/completions", json=asked)  # the model does not answer in its place
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "adapter_not_found")
        assert client.post("/completion", json=body).json()["content"] == expected[0.0]


def test_a_failure_in_a_stream_is_one_event() -> None:
    engine = FakeEngine([Failed(0, "InternalError", "[x] broke")])
    events = events_of(post("/completion", {"prompt": "x", "stream": True}, engine=engine))
    assert events[0]["content"] == "part"
    assert events[1:] == [{"error": {"code": 500, "message": "[x] broke", "type": "server_error"}}]


def test_all_slots_are_busy() -> None:
    engine = FakeEngine()
    engine.beat = Beat(*[0] * 2, 4, *[0] * 12)
    assert [slot["is_processing"] for slot in call("GET", "/slots", engine=engine).json()] == [
        False
    ] * 4  # that request has ended
    engine.open(Generate(0, [1], {}))
    assert [slot["is_processing"] for slot in call("GET", "/slots", engine=engine).json()] == [True] * 4
    response = call("GET", "/slots?fail_on_no_slot=1", engine=engine)
    assert (response.status_code, response.json()["error"]["type"]) == (503, "unavailable_error")


def fill_in_tokenizer(shared: Path, name: str) -> Tokenizer:
    path = shared / "vocab" / f"ggml-vocab-{name}.gguf"
    if not path.exists():
        pytest.skip(f"{path.name} is not there")
    return Tokenizer.from_gguf(path)


@pytest.mark.parametrize("named", [False, True])
def test_fill_in_prompts(shared: Path, named: bool) -> None:
    if named:
        vocabulary = fill_in_tokenizer(shared, "gpt-2").vocabulary
        given = {"fim_prefix": 50, "fim_suffix": 60, "fim_middle": 70, "fim_repository": 80}
        tokenizer = Tokenizer(replace(vocabulary, special_ids={**vocabulary.special_ids, **given}))
        ids: tuple[int, int, int, int | None, int | None] = (50, 60, 70, 80, None)
    else:
        tokenizer = fill_in_tokenizer(shared, "starcoder")
        ids = (1, 3, 2, 5, 6)
    prefix, suffix, middle, repository, separator = ids
    assert FillInTokens.of(tokenizer) == FillInTokens(prefix, suffix, middle, repository, separator)

    def plain(text: str) -> list[int]:
        return tokenizer.encode(text, add_special=False)

    start = list(tokenizer.vocabulary.prefix_ids)
    expected = [*start, prefix, *plain("def f("), *plain("x"), suffix, *plain("):\n"), middle]
    assert infill_tokens(tokenizer, "def f(", "):\n", "x", []) == expected
    # Text never becomes a control token.
    hostile = infill_tokens(tokenizer, "<fim_middle>", "<fim_suffix>", "<|endoftext|>", [])
    assert [hostile.count(id_) for id_ in (prefix, suffix, middle)] == [1, 1, 1]
    beside = infill_tokens(tokenizer, "a", "b", "", [("f.py", "text")])
    files = [separator, *plain("f.py\ntext")] if separator is not None else plain("\n\n--- snippet ---\n\ntext")
    head = [] if repository is None else [repository, *plain("myproject\n")]
    last = [] if separator is None else [separator, *plain("filename\n")]
    assert beside == [*start, *head, *files, *last, prefix, *plain("a"), suffix, *plain("b"), middle]


def test_completions_with_a_suffix() -> None:
    engine = FakeEngine()
    assert post("/v1/completions", {"prompt": "a", "suffix": "b"}, engine=engine).status_code == 200
    question, work = engine.asked
    assert isinstance(question, Ask)
    assert (question.verb, question.values["prefix"], question.values["suffix"]) == ("infill", "a", "b")
    assert isinstance(work, Generate)
    assert work.prompt == [1, 2]  # the engine's answer to "infill"


def test_a_model_without_fill_in_tokens(llm: LLM) -> None:
    with pytest.raises(UnsupportedError, match="fim_prefix"):
        infill_tokens(llm.tokenizer, "a", "b", "", [])
