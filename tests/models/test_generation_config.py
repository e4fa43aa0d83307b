"""The advice of a checkpoint's generation_config.json: followed, or named in a warning.

Oracle: transformers, for the fields, for end tokens and for forbidden tokens.
"""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from quire.checkpoints.conversion import convert
from quire.checkpoints.conversion.generation import _NOT_FOLLOWED
from quire.cli.main import cli
from quire.engine import LLM
from quire.errors import LoadError
from quire.gguf import GGUFReader
from quire.params.sampling import SamplingParams
from quire.server.routes.fields import SharedFields
from quire.server.routes.llama_cpp.fields import CompletionBody, settings_of
from tiny_checkpoints import config_of, shapes_of, weight_of, write_checkpoint, write_safetensors

PROMPT = "a b c"


def checkpoint(folder: Path, advice: dict[str, object] | None, **config: object) -> Path:
    write_checkpoint(folder, "qwen3")
    if advice is not None:
        (folder / "generation_config.json").write_text(json.dumps(advice))
    (folder / "config.json").write_text(json.dumps(config_of("qwen3") | config))
    return folder


def said(caplog: pytest.LogCaptureFixture) -> str:
    return " ".join(record.message for record in caplog.records if "ignoring sampling fields" in record.message)


def advised(folder: Path) -> dict[str, object]:
    with LLM(folder, threads=1, n_ctx=64) as llm:
        return dict(llm.advised_sampling)


ODD_VALUES: dict[str, object] = {
    "sequence_bias": [[[5], -2.0]], "stop_strings": ["x"], "bad_words_ids": [[1, 2]], "watermarking_config": {"bias": 2.0},
    "exponential_decay_length_penalty": [5, 1.1], "begin_suppress_tokens": [3], "token_healing": True, "dola_layers": "high",
    "constraints": [1], "force_words_ids": [[1]],
}  # fmt: skip


@pytest.mark.parametrize("name", [*sorted(_NOT_FOLLOWED), "bad_words_ids", "a_field_of_tomorrow"])
def test_ignored_advice_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str) -> None:
    folder = checkpoint(tmp_path / "hf", {"do_sample": True, name: ODD_VALUES.get(name, 7)})
    convert(folder, tmp_path / "x.gguf", "f32")
    assert said(caplog).endswith(f": {name}")


def test_every_field_of_transformers_is_known_and_none_is_said_without_a_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    names = [name for name in vars(transformers.GenerationConfig()) if name not in _NOT_FOLLOWED]
    numbers = {"temperature": 0.5, "top_p": 0.5, "min_p": 0.5, "typical_p": 0.5, "repetition_penalty": 1.5, "top_k": 5}
    lists = {"suppress_tokens": [3], "bad_words_ids": [[3]], "do_sample": True}
    neutral = {name: values[0] for name, values in _NOT_FOLLOWED.items() if values}
    folder = checkpoint(tmp_path / "hf", {name: (numbers | lists).get(name, 7) for name in names} | neutral)
    convert(folder, tmp_path / "x.gguf", "f32")
    assert said(caplog) == ""


def test_the_command_says_it(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "hf", {"no_repeat_ngram_size": 3, "guidance_scale": 1.5})
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("quire").addHandler(handler)
    try:
        result = CliRunner().invoke(cli, ["convert", str(folder), str(tmp_path / "x.gguf")])
    finally:
        logging.getLogger("quire").removeHandler(handler)
    assert result.exit_code == 0
    assert any(record.endswith(": guidance_scale, no_repeat_ngram_size") for record in records)


def test_supported_advice_is_followed(tmp_path: Path) -> None:
    advice = {
        "do_sample": True, "typical_p": 0.25, "temperature": 0.5, "repetition_penalty": 1.25, "eos_token_id": [9, 11],
        "suppress_tokens": [7, 3, 100_000], "bad_words_ids": [[5], [9], [1, 2]],
    }  # fmt: skip
    found = advised(checkpoint(tmp_path / "hf", advice))
    # An end token is not a bad word, as in transformers.
    assert found == {"temperature": 0.5, "typical_p": 0.25, "repetition_penalty": 1.25, "bad_token_ids": (3, 5, 7)}
    greedy = advised(checkpoint(tmp_path / "greedy", {"do_sample": False, "top_k": 3, "repetition_penalty": 1.25}))
    assert greedy == {"temperature": 0.0, "repetition_penalty": 1.25}


def test_a_request_cannot_allow_suppressed_tokens() -> None:
    info = SimpleNamespace(advised={"bad_token_ids": [3, 5], "temperature": 0.5})
    found = SharedFields(bad_token_ids=[7]).params(info, None)  # type: ignore[arg-type]
    assert found.bad_token_ids == (3, 5, 7)
    assert found.temperature == 0.5


def test_advice_passes_through_options_of_other_servers() -> None:
    async def tokenize(text: str, _special: bool, _parsed: bool) -> list[int]:
        return list(text.encode())

    info = SimpleNamespace(advised={"bad_token_ids": [3], "typical_p": 0.5}, adapters=[])
    for samplers, typical in ((["top_k"], 1.0), (None, 0.5)):
        body = CompletionBody(prompt="a", samplers=samplers, logit_bias=[(7, False)])
        found = asyncio.run(settings_of(body, info, tokenize)).params  # type: ignore[arg-type]
        assert found.bad_token_ids == (3, 7)
        assert found.typical_p == typical  # a stage that is not used has no options


def test_older_checkpoints_have_it_in_config_json(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    old = {"do_sample": False, "temperature": 0.25, "top_k": 50, "suppress_tokens": [3], "no_repeat_ngram_size": 2}
    assert advised(checkpoint(tmp_path / "hf", None, **old)) == {"bad_token_ids": (3,)}
    assert said(caplog).endswith(": no_repeat_ngram_size")
    drawn = advised(checkpoint(tmp_path / "drawn", None, **old | {"do_sample": True}))
    assert drawn == {"temperature": 0.25, "top_k": 50, "bad_token_ids": (3,)}
    assert advised(checkpoint(tmp_path / "both", {"top_p": 0.5}, **old)) == {"top_p": 0.5}


@pytest.mark.parametrize(
    ("advice", "text"),
    [
        ({"suppress_tokens": 3}, "'suppress_tokens' of generation_config.json is int"),
        ({"suppress_tokens": [True]}, r"'suppress_tokens' of generation_config.json is \[True\]"),
        ({"bad_words_ids": [3]}, "'bad_words_ids' of generation_config.json"),
        ({"typical_p": "x"}, "'typical_p' of generation_config.json is str"),
        ({"eos_token_id": "</s>"}, "eos_token_id is '</s>'"),
    ],
)
def test_malformed_advice(tmp_path: Path, advice: dict[str, object], text: str) -> None:
    with pytest.raises(LoadError, match=text):
        convert(checkpoint(tmp_path / "hf", advice), tmp_path / "x.gguf", "f32")


@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
@pytest.mark.parametrize("way", ["folder", "converted"])
def test_every_end_of_sequence_ends_generation(tmp_path: Path, file: str, way: str) -> None:
    """As in transformers, any one of several end tokens ends generation."""
    greedy = SamplingParams(temperature=0.0, max_tokens=12)
    with LLM(checkpoint(tmp_path / "plain", None), threads=1, n_ctx=64) as llm:
        usual = llm.generate(PROMPT, greedy)[0].choices[0].token_ids
    later = next(id for id in usual[2:] if id not in usual[:2])
    ends = {"eos_token_id": [257, later]}
    folder = checkpoint(
        tmp_path / "hf", ends if file.startswith("gen") else None, **ends if file == "config.json" else {}
    )
    path = folder
    if way == "converted":
        path = tmp_path / "x.gguf"
        convert(folder, path, "f32")
    with LLM(path, threads=1, n_ctx=64) as llm:
        assert llm.tokenizer.eog_ids >= {257, later}
        output = llm.generate(PROMPT, greedy)[0].choices[0]
    assert output.finish_reason == "stop"
    assert list(output.token_ids)[: usual.index(later)] == list(usual[: usual.index(later)])
    assert len(output.token_ids) <= usual.index(later) + 1


def test_suppressed_tokens_are_never_drawn(tmp_path: Path) -> None:
    with LLM(checkpoint(tmp_path / "plain", None), threads=1, n_ctx=64) as llm:
        usual = llm.generate(PROMPT, SamplingParams(temperature=0.0, max_tokens=1, logprobs=2))[0].choices[0]
    advice = {"do_sample": False, "suppress_tokens": [usual.token_ids[0]]}
    with LLM(checkpoint(tmp_path / "hf", advice), threads=1, n_ctx=64) as llm:
        assert llm.advised_sampling["bad_token_ids"] == (usual.token_ids[0],)
        output = llm.generate(
            PROMPT, SamplingParams(temperature=0.0, max_tokens=8, bad_token_ids=(usual.token_ids[0],))
        )[0]
    assert usual.token_ids[0] not in output.choices[0].token_ids


@pytest.mark.parametrize("name", ["model.layers.1.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"])
def test_stored_rope_frequencies_are_accepted(tmp_path: Path, name: str) -> None:
    folder = checkpoint(tmp_path / "hf", None)
    shapes = shapes_of("qwen3")
    tensors = {tensor: weight_of("qwen3", tensor, tuple(shape)) for tensor, shape in shapes.items()}
    convert(folder, tmp_path / "plain.gguf", "f32")
    write_safetensors(folder / "model.safetensors", tensors | {name: np.ones(8, np.float32)})
    convert(folder, tmp_path / "x.gguf", "f32")
    names = [info.name for info in GGUFReader(tmp_path / "x.gguf").tensors]
    assert names == [info.name for info in GGUFReader(tmp_path / "plain.gguf").tensors]
    write_safetensors(folder / "model.safetensors", tensors | {name + "x": np.ones(8, np.float32)})
    with pytest.raises(Exception, match="unknown tensors"):
        convert(folder, tmp_path / "y.gguf", "f32")
