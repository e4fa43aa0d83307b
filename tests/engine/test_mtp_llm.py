"""Speculation by a layer of the model's own file, with real models.

Oracle: the same requests without it, bit for bit.  The weights are such that the layer mostly agrees with its model: both
say little more than what follows the last token.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from predictor_models import n_layer_of, predictor_tensors, trunk_tensors, write_predicting
from quire.checkpoints.conversion import convert
from quire.engine import LLM, EngineConfig
from quire.engine.loading.draft import wants_predictor
from quire.engine.requests.results import GenerationResult
from quire.errors import RequestError, UnsupportedError
from quire.params.sampling import SamplingParams
from tiny_checkpoints import write_checkpoint

pytestmark = pytest.mark.python_only
PROMPTS = [
    f"{'A text of some length. ' * (i % 3)}{word} {i}" for i in range(4) for word in ("river", "tree", "cat", "sun")
]
GREEDY: dict[str, Any] = {"max_tokens": 40, "temperature": 0.0, "ignore_eos": True, "logprobs": 2}


def write_agreeing(folder: Path, name: str) -> None:
    own = predictor_tensors(name)
    tensors = {**trunk_tensors(name), **own}
    rng = np.random.default_rng(1)
    for tensor, values in tensors.items():
        if tensor.endswith(("o_proj.weight", "down_proj.weight", "down_proj", "out_proj.weight")):
            tensors[tensor] = values * np.float32(0.008)
        elif tensor in own and values.ndim == 2 and values.shape[1] == 2 * values.shape[0]:
            noise = 0.005 * rng.standard_normal(values.shape)
            tensors[tensor] = (np.eye(*values.shape) + noise).astype(np.float32)
        elif tensor.endswith(".enorm.weight"):
            tensors[tensor] = np.ones_like(values)
        elif tensor.endswith("pre_fc_norm_embedding.weight"):  # the model adds 1
            tensors[tensor] = np.zeros_like(values)
        elif tensor.endswith(("shared_head.norm.weight", "mtp.norm.weight")):
            tensors[tensor] = tensors["model.norm.weight"]
    layer = f"model.layers.{n_layer_of(name)}"
    for copy, original in (("embed_tokens", "model.embed_tokens"), ("shared_head.head", "lm_head")):
        if f"{layer}.{copy}.weight" in own:
            tensors[f"{layer}.{copy}.weight"] = tensors[f"{original}.weight"]
    write_predicting(folder, name, tensors)


@pytest.fixture(scope="module")
def agreeing(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("agreeing")

    def make(name: str) -> Path:
        if not (out := folder / f"{name}.gguf").is_file():
            write_agreeing(folder / name, name)
            convert(folder / name, out, "f32")
        return out

    return make


def opened(path: Path, **options: Any) -> LLM:
    return LLM(path, threads=1, n_ctx=192, deterministic=True, **options)


def comparable(result: GenerationResult) -> object:
    return [(c.token_ids, c.text, c.logprobs, c.finish_reason) for c in result.choices]


# These cover full attention, latent attention, and recurrent states, which are rolled back.
@pytest.mark.parametrize("name", ["glm4moe", "deepseek2-v3", "qwen35"])
@pytest.mark.parametrize("options", [{}, {"n_blocks": 14, "max_sequences": 6}, {"max_sequences": 1}])
def test_a_predictor_changes_no_bit(agreeing: Callable[[str], Path], name: str, options: dict[str, Any]) -> None:
    asked = (SamplingParams(**GREEDY), SamplingParams(max_tokens=24, temperature=0.8, n=2, seed=3))
    with opened(agreeing(name)) as plain:
        expected = [[comparable(result) for result in plain.generate(PROMPTS, params)] for params in asked]
    with opened(agreeing(name), speculation="mtp", draft_max=4, draft_min=4, **options) as llm:
        assert [comparable(result) for result in llm.generate(PROMPTS, asked[0])] == expected[0]
        stats = llm.stats()
        assert [each.name for each in stats.drafters] == ["grammar", "lookup", "mtp"]
        mtp = stats.drafters[2]
        assert mtp.n_accepted_tokens > 0.3 * mtp.n_drafted_tokens > 50
        # Later drafts, made from the layer's own features, are accepted, too.
        assert sum(each > 0 for each in mtp.accepted_at) > 1
        assert [comparable(result) for result in llm.generate(PROMPTS, asked[1])] == expected[1]
        assert llm.stats().drafters[2].failure == ""


def test_prefixes_forms_and_depth_by_cost(agreeing: Callable[[str], Path]) -> None:
    path = agreeing("glm4moe")
    form: dict[str, Any] = {"regex": r"(one|two|three)( and (one|two|three)){6}", "temperature": 0.0, "max_tokens": 60}
    text = "The same beginning of a text that is longer than a block of the cache. " * 2
    with (
        opened(path) as plain,
        opened(path, speculation="auto") as llm,
        opened(path, speculation="mtp", draft_min=2) as deep,
    ):
        for speculating in (llm, deep):
            for prompt in (text, text + "One", text + "Two"):  # prefix hits
                (expected,), (found,) = plain.generate(prompt, **GREEDY), speculating.generate(prompt, **GREEDY)
                assert comparable(found) == comparable(expected)
            (expected,), (found,) = plain.generate("Count: ", **form), speculating.generate("Count: ", **form)
            assert comparable(found) == comparable(expected)
        assert deep.stats().drafters[2].n_accepted_tokens > 20
        (off,) = deep.generate(text, speculation="off", **GREEDY)
        assert off.choices[0].n_drafted_tokens == 0


def test_the_checkpoint_itself_and_packed_types(agreeing: Callable[[str], Path]) -> None:
    """A folder works like its file; quantized matrices are packed once for model and layer."""
    path = agreeing("glm4moe")
    options: dict[str, Any] = {"speculation": "mtp", "draft_max": 4, "draft_min": 4}
    for source, more in ((path.with_suffix(""), {}), (path, {"quantize": "Q8_0"}), (path, {"kernels": "stock"})):
        with LLM(source, threads=1, n_ctx=192, **more) as plain:
            expected = [result.choices[0].token_ids for result in plain.generate(PROMPTS[:4], **GREEDY)]
        with LLM(source, threads=1, n_ctx=192, **options, **more) as llm:
            assert [result.choices[0].token_ids for result in llm.generate(PROMPTS[:4], **GREEDY)] == expected
            assert llm.stats().drafters[2].n_accepted_tokens > 20


def test_predictors_are_rejected_on_devices() -> None:
    class Gpu:
        kind, name = "cuda", "CUDA0"

    device: Any = Gpu()
    with pytest.raises(UnsupportedError, match=r"^\[speculation\] 'mtp' .*CUDA0"):
        wants_predictor(EngineConfig(speculation="mtp"), device)
    assert not wants_predictor(EngineConfig(speculation="auto"), device)


def test_a_model_without_a_predictor_is_rejected(agreeing: Callable[[str], Path], tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "hf", "glm4moe")
    with pytest.raises(UnsupportedError, match=r"^\[speculation\] .*nextn.*'mtp'"):
        opened(tmp_path / "hf", speculation="mtp")
    with opened(tmp_path / "hf", speculation="auto") as llm:  # any drafter available
        assert [each.name for each in llm.stats().drafters] == ["grammar", "lookup"]
    with opened(agreeing("glm4moe")) as llm, pytest.raises(RequestError, match=r"mtp.*auto, off, grammar, lookup$"):
        llm.generate("A", speculation="mtp", max_tokens=4)
