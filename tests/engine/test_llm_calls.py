"""Arguments and uses of ``LLM``: prompts of any kind, names of models, wrong arguments, and calls after a fork.

Oracles: the same call with a list of Python's ints; the model of the package behind names.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import quire
from local_hub import local_hub
from quire import LLM, AsyncLLM
from quire.engine.loading.loader import packaged_model
from quire.errors import LoadError, RequestError
from quire.hub.registry import Preset, Registry

PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(threads=1, n_ctx=256) as opened:
        yield opened


# Prompts


def test_arrays_are_token_ids(llm: LLM) -> None:
    ids = llm.tokenizer.encode(PROMPT)
    expected = llm.generate(ids, max_tokens=3, temperature=0)[0].token_ids
    for given in (np.array(ids), np.array(ids, dtype=np.uint16), [np.int32(id) for id in ids], tuple(ids), range(3)):
        (found,) = llm.generate(given, max_tokens=3, temperature=0)  # type: ignore[arg-type]
        assert found.prompt_token_ids == [int(id) for id in given]
        assert all(type(id) is int for id in found.prompt_token_ids)
    two = llm.generate(np.array([ids, ids]), max_tokens=3, temperature=0)  # type: ignore[arg-type]
    assert [each.token_ids for each in two] == [expected, expected]
    mixed = llm.generate([PROMPT, ids, np.array(ids)], max_tokens=3, temperature=0)  # type: ignore[list-item]
    assert [each.token_ids for each in mixed] == [expected] * 3
    assert np.array_equal(llm.logits(np.array(ids)), llm.logits(ids))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (b"Once", "bytes"), ([b"Once"], "bytes"), (bytearray(b"Once"), "bytes"), (None, "None"), ([None], "None"),
        (["Once", 5], "5"), ([5, "Once"], "Once"), ([5, [6]], r"\[6\]"), (5, "5"), ([True, False], "True"),
        ([[1.5]], "1.5"), (np.array([1.5]), "1.5"), ({"input_ids": [1]}, "input_ids"), ({"role": "user"}, "mapping"),
        ([[]], "empty"), ([-1], "-1"), ([10**9], "1000000000"), (np.array(5), "5"),
    ],
    ids=repr,
)  # fmt: skip
def test_an_item_that_is_no_prompt_is_named(llm: LLM, given: Any, words: str) -> None:
    for call in (llm.generate, llm.embed):
        with pytest.raises(RequestError, match=words):
            call(given)


# Wrong arguments


@pytest.mark.parametrize(
    ("name", "value", "nearest"),
    [
        ("n_threads", 4, "threads"), ("max_model_len", 64, "n_ctx"), ("num_ctx", 64, "n_ctx"), ("n_batch", 8, "max_step_tokens"),
        ("model_path", "x", "model"), ("kv_cache_dtype", "f16", "kv_dtype"), ("thread", 4, "threads"),
        ("temperature", 0, "generate"), ("quantisation", "Q8_0", "quantize"), ("lora_path", "x", "adapters"),
    ],
)  # fmt: skip
def test_unknown_arguments_name_the_call_and_the_nearest(name: str, value: object, nearest: str) -> None:
    for kind in (LLM, AsyncLLM):
        with pytest.raises(TypeError) as caught:
            kind(**{name: value})  # type: ignore[arg-type]
        assert str(caught.value).startswith(f"{kind.__name__}() ")
        assert f"'{name}'" in str(caught.value)
        assert nearest in str(caught.value)


def test_too_many_and_wrong_values_are_named() -> None:
    with pytest.raises(TypeError, match=r"^LLM\(\)"):
        LLM(None, 512)  # type: ignore[call-arg,misc]
    for model in (5, b"x", ["x"]):
        with pytest.raises(TypeError, match="model is"):
            LLM(model)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^SamplingParams\(\).*'max_tokens'"):
        quire.SamplingParams(max_new_tokens=5)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^EngineConfig\(\).*'threads'"):
        quire.EngineConfig(n_threads=5)  # type: ignore[call-arg]
    with pytest.raises(RequestError, match="generate"):
        LLM(threads=1, n_ctx=64).chat("hi")  # type: ignore[call-overload]
    for name, value in (("override_tensor", "ffn=CPU"), ("tensor_split", 0.5), ("taps", 3), ("n_ctx", "2k")):
        with pytest.raises(RequestError, match=name):
            LLM(**{name: value})  # type: ignore[arg-type]


def test_special_numbers_of_llama_cpp_keep_their_meaning() -> None:
    with LLM(n_ctx=0, threads=-1, n_gpu_layers=-1) as llm:
        assert (llm.config.n_ctx, llm.config.threads, llm.config.n_gpu_layers) == (None, 0, None)


# Names


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory without models."""
    for name in [name for name in os.environ if name.startswith(("HF_", "HUGGINGFACE_", "QUIRE_MODELS", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_names_open_their_models(home: Path) -> None:
    Registry().add("poet", Preset(str(packaged_model()), "Be kind.", {"ctx-size": 96}, {"max_tokens": 3}))
    for name in ("poet", "poet:latest"):
        with LLM(name, threads=1) as llm:
            assert llm.n_ctx == 96
            answer = llm.chat([{"role": "user", "content": "Hi"}])
            with_system = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
            assert answer.prompt_token_ids == llm.tokenizer.apply_chat_template(with_system, add_generation_prompt=True)
            assert len(answer.token_ids) <= 3
    with LLM("poet", threads=1, n_ctx=64) as llm:
        assert llm.n_ctx == 64


def test_compat_modules_open_names(home: Path) -> None:
    from quire.compat import llama_cpp, vllm

    Registry().add("poet", Preset(str(packaged_model())))
    llama = llama_cpp.Llama("poet", n_ctx=64, verbose=False)
    assert llama.metadata["general.architecture"] == "qwen3"
    assert llama(PROMPT, max_tokens=2)["usage"]["completion_tokens"] == 2
    llama.close()
    (found,) = vllm.LLM("poet", max_model_len=64).generate(PROMPT, vllm.SamplingParams(max_tokens=2))
    assert len(found.outputs[0].token_ids) == 2
    with pytest.raises(TypeError, match=r"^Llama\(\).*'n_threads'"):
        llama_cpp.Llama("poet", n_thread=2)
    decoder = quire.open_decoder("poet", quire.EngineConfig(n_ctx=64, threads=1))
    assert decoder.n_ctx == 64
    decoder.close()


def test_a_name_of_the_hub_is_downloaded_once(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    repositories = {
        name: {"tiny-Q8_0.gguf": packaged_model().read_bytes()} for name in ("org/tiny", "Qwen/Qwen3-0.6B-GGUF")
    }
    with local_hub(repositories) as hub:
        for name, value in (("HF_ENDPOINT", hub.address), ("HF_HUB_DISABLE_XET", "1"), ("HF_HOME", str(home / "hf"))):
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.address)
        address = f"{hub.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", address)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(home / "hf/hub"))
        for name in ("org/tiny", "org/tiny:Q8_0", "qwen3:0.6b"):
            with LLM(name, threads=1, n_ctx=64) as llm:
                assert llm.generate("Once", max_tokens=1)[0].token_ids
        fetched = [path for method, path, _ in hub.asked if method == "GET" and path.endswith(".gguf")]
        assert len(fetched) == 2
        with pytest.raises(LoadError, match="org/absent"):
            LLM("org/absent")
    assert [record.getMessage() for record in caplog.records if "downloading" in record.getMessage()][:1] == [
        "[hub] downloading org/tiny"
    ]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("quen3", "qwen3"),
        ("qwen3:99b", "0.6b"),
        ("nothing-like-it", "quire list"),
        ("absent.gguf", "absent.gguf"),
        ("m-q8.gguf", r"m-q8_0\.gguf"),
    ],
)
def test_an_unknown_name_lists_alternatives(home: Path, name: str, words: str) -> None:
    (home / "m-q8_0.gguf").symlink_to(packaged_model())
    with pytest.raises(LoadError, match=words):
        LLM(name)


def test_offline_errors_say_what_to_do(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(LoadError, match=r"quire pull Qwen/Qwen3-0\.6B-GGUF"):
        LLM("qwen3:0.6b")
    with pytest.raises(LoadError, match="org/name"):
        LLM(Path("org/name"))  # a path is never a name


def test_errors_name_files_missing_from_a_folder(home: Path) -> None:
    (home / "empty").mkdir()
    with pytest.raises(LoadError, match=r"config\.json"):
        LLM("empty")
    (home / "adapter").mkdir()
    (home / "adapter/adapter_config.json").write_text("{}")
    with pytest.raises(LoadError, match="adapters="):
        LLM("adapter")
    (home / "one").mkdir()
    (home / "one/m.gguf").symlink_to(packaged_model())
    with LLM("one", threads=1, n_ctx=64) as llm:
        assert llm.n_ctx == 64
    (home / "one/second.gguf").symlink_to(packaged_model())
    with pytest.raises(LoadError, match=r"m\.gguf, second\.gguf"):
        LLM("one")


# Forks


def in_a_child(use: Callable[[], object]) -> str:
    """Return the result or the error of a call in a forked child, within ten seconds."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = repr(use())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode()[:4000])
        os._exit(0)
    os.close(write)
    try:
        ready, _, _ = select.select([read], [], [], 10)
        return os.read(read, 4000).decode() if ready else "nothing"
    finally:
        os.close(read)
        os.kill(child, 9)
        os.waitpid(child, 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_model_does_not_hang_in_a_forked_child(llm: LLM) -> None:
    shared = AsyncLLM.sharing(llm)
    message = [{"role": "user", "content": "Hi"}]
    for use in (
        lambda: llm.generate(PROMPT), lambda: next(llm.stream(PROMPT)), lambda: llm.chat(message),
        lambda: llm.embed(PROMPT), lambda: llm.logits([1]), llm.stats, shared.stats,
    ):  # fmt: skip
        said = in_a_child(use)
        assert said.startswith("RequestError: ")
        assert "fork" in said
    assert in_a_child(lambda: llm.tokenizer.encode(PROMPT)) == repr(llm.tokenizer.encode(PROMPT))
    assert in_a_child(llm.close) == "None"

    def own() -> list[int]:
        with LLM(threads=1, n_ctx=64) as opened:
            return opened.generate(PROMPT, max_tokens=2, temperature=0)[0].token_ids

    assert in_a_child(own) == repr(own())
    assert llm.generate(PROMPT, max_tokens=1)[0].token_ids  # the parent still works


# Options that the model does not use


def test_unused_template_values_are_logged_once(llm: LLM, caplog: pytest.LogCaptureFixture) -> None:
    message = [{"role": "user", "content": "Who are you?"}]
    expected = llm.chat(message, max_tokens=3).token_ids
    for _ in range(2):
        found = llm.chat(message, max_tokens=3, reasoning_budget=5, template_values={"lacking": 1})
        assert found.token_ids == expected
    said = [record.getMessage() for record in caplog.records]
    assert [sum(name in text for text in said) for name in ("lacking", "reasoning_budget")] == [1, 1]


def test_the_chat_template_can_be_replaced() -> None:
    with LLM(threads=1, n_ctx=64) as llm:
        llm.use_chat_template("{{ messages[0]['content'] }}{{ mood }}")
        assert llm.template_variables == {"mood"}
        found = llm.chat([{"role": "user", "content": PROMPT}], max_tokens=1, template_values={"mood": "!"})
        assert found.prompt_token_ids == llm.tokenizer.encode(PROMPT + "!", add_special=False)
        with pytest.raises(LoadError, match="template"):
            llm.use_chat_template("{% if %}")


# Results


class City:
    """A class with the methods of Pydantic's models for schema and JSON."""

    def __init__(self, name: str) -> None:
        self.name = name

    @classmethod
    def model_json_schema(cls) -> dict[str, object]:
        return {"type": "object", "properties": {"name": {"enum": ["Rome"]}}, "required": ["name"],
                "additionalProperties": False}  # fmt: skip

    @classmethod
    def model_validate_json(cls, text: str) -> City:
        return cls(**json.loads(text))


def test_answers_are_parsed(llm: LLM) -> None:
    message = [{"role": "user", "content": "Name a city."}]
    (made,) = llm.generate(PROMPT, response_format=City, max_tokens=40)
    for found in (made, llm.chat(message, response_format=City, max_tokens=40)):
        assert isinstance(found.parsed, City)
        assert found.parsed.name == "Rome"
    assert llm.chat(message, response_format=City.model_json_schema(), max_tokens=40).parsed == {"name": "Rome"}
    assert llm.chat(message, max_tokens=4).parsed is None
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {"properties": {"n": {"enum": [1]}}}}}
    called = llm.chat(message, tools=[tool], tool_choice="required", response_format=City, max_tokens=60)
    assert called.message.tool_calls
    assert called.parsed is None
    cut = llm.chat(message, response_format=City, max_tokens=2)
    with pytest.raises(RequestError, match="cut"):
        _ = cut.parsed

    async def together() -> City:
        found = await AsyncLLM.sharing(llm).chat(message, response_format=City, max_tokens=40)
        parsed: City = found.parsed
        return parsed

    assert asyncio.run(together()).name == "Rome"


def test_answers_are_parsed_to_pydantic_classes(llm: LLM) -> None:
    pydantic = pytest.importorskip("pydantic")
    made = pydantic.create_model("Place", name=(str, ...), __config__=pydantic.ConfigDict(extra="forbid"))
    found = llm.chat([{"role": "user", "content": "Name a city."}], response_format=made, max_tokens=200, temperature=0)
    if found.finish_reason == "stop":
        assert type(found.parsed) is made


def test_usage_counts_all_answers(llm: LLM) -> None:
    (found,) = llm.generate(PROMPT, max_tokens=3, n=2, ignore_eos=True)
    usage = found.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (found.n_prompt_tokens, 6)
    assert usage.total_tokens == usage["total_tokens"] == found.n_prompt_tokens + 6
    assert usage.cached_tokens == found.n_cached_tokens


# Arrays that are quantized


def test_quantize_explains_its_errors() -> None:
    values = np.zeros(256, np.float32)
    assert quire.quantize(values, "q4_k").dtype == quire.quantize([0.0] * 256, "Q4_K").dtype == "q4_k"
    for given, dtype, words in (
        (values, "Q4_K_M", "'q4_k'"), (values, "IQ3_XXS_S", "IQ3_XXS_S"), ("model.gguf", "Q4_K_M", "quire quantize"),
        (None, "q8_0", "None"), (values, 8, "8"), (["x"], "q8_0", "x"),
    ):  # fmt: skip
        with pytest.raises(quire.QuireError, match=words):
            quire.quantize(given, dtype)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="type"):
        quire.dequantize(np.zeros(34, np.uint8))
    stored = quire.quantize(values, "q8_0")
    assert np.array_equal(quire.dequantize(stored), values)
