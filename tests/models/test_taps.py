"""Compare hidden states after layers with transformers' ``output_hidden_states``.  Needs torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from quire.engine import LLM
from quire.errors import RequestError, UnsupportedError
from tiny_checkpoints import write_checkpoint

torch = pytest.importorskip("torch", reason="needs torch (CI installs torch==2.13.0)")
pytest.importorskip("transformers", reason="needs transformers")

from oracle_models import oracle_of  # noqa: E402

pytestmark = [pytest.mark.python_only, pytest.mark.filterwarnings("ignore")]  # torch and transformers warn

# Pre- and post-norm blocks, windows, states, experts, other loops over layers.
NAMES = ["qwen3", "gemma3", "gpt2", "olmo2", "lfm2", "mamba2", "qwen3moe", "bert"]


@pytest.mark.parametrize("kernels", ["cpu", "stock"])
@pytest.mark.parametrize("name", NAMES)
def test_every_layer_equals_transformers(tmp_path: Path, name: str, kernels: str) -> None:
    write_checkpoint(tmp_path / "hf", name)
    oracle = oracle_of(name)
    n_layer = oracle.model.config.num_hidden_layers
    options = {"threads": 1, "n_ctx": 96, "kernels": kernels, "kv_dtype": "f32", "max_step_tokens": 32}
    if name == "bert":
        options |= {"n_ctx": 32}
    ids = np.random.default_rng(3).integers(0, 256, 30 if name == "bert" else 70).tolist()
    states = hidden_states(oracle.model, ids)
    with LLM(tmp_path / "hf", taps=range(n_layer), **options) as model:
        (found,) = model.hidden_states(ids, layers=range(n_layer))
        assert found.shape[:2] == (n_layer, len(ids))
        for layer, expected in enumerate(states):
            assert np.abs(found[layer] - expected).max() <= 1e-3 * np.abs(expected).max(), layer
        some = model.hidden_states([ids[:9], ids], layers=[1, 0])  # another order, several prompts
        assert [each.shape[1] for each in some] == [9, len(ids)]
        tolerance = {"rtol": 0, "atol": 1e-5 * np.abs(found).max()}
        np.testing.assert_allclose(some[1], found[[1, 0]], **tolerance)
        if name != "bert":  # attention to later tokens
            np.testing.assert_allclose(some[0], found[[1, 0], :9], **tolerance)


def hidden_states(model: Any, ids: list[int]) -> list[npt.NDArray[np.float32]]:
    """Return the states after each layer; transformers applies the output norm to the last, so use a hook there."""
    n_layer = model.config.num_hidden_layers
    kinds = (each for each in model.modules() if isinstance(each, torch.nn.ModuleList) and len(each) == n_layer)
    left: list[torch.Tensor] = []
    next(kinds)[-1].register_forward_hook(
        lambda _, __, output: left.append(output[0] if isinstance(output, tuple) else output)
    )
    with torch.no_grad():
        states = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    assert len(states) == n_layer + 1
    first = 0 if model.config.model_type == "mamba2" else 1  # its list begins with the first layer's output
    return [state[0].numpy() for state in (*states[first : n_layer - 1 + first], left[-1])]


def test_taps_change_no_bit(tmp_path: Path) -> None:
    ids = np.random.default_rng(3).integers(0, 256, 50).tolist()
    write_checkpoint(tmp_path / "hf", "qwen3")
    logits = []
    for taps in ((), (0,), (0, 1)):
        with LLM(tmp_path / "hf", threads=1, n_ctx=128, taps=taps) as model:
            logits.append(model.logits(ids))
    np.testing.assert_array_equal(logits[1], logits[0])
    np.testing.assert_array_equal(logits[2], logits[0])


def test_untapped_layers_are_rejected(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "hf", "qwen3")
    with LLM(tmp_path / "hf", threads=1, n_ctx=128, taps=[1]) as model:
        for layers in ([0], [1, 2], [-1]):
            with pytest.raises(RequestError, match=rf"layers has {min(set(layers) - {1})}, .*\(1,\)"):
                model.hidden_states([1, 2], layers=layers)
        odd: tuple[Any, ...] = ([None], [1, "a", 5], [[1]], range(10**9))
        for layers in odd:
            with pytest.raises(RequestError, match=r"^\[hidden_states\] layers has "):
                model.hidden_states([1, 2], layers=layers)
        with pytest.raises(RequestError, match="layers is empty"):
            model.hidden_states([1, 2], layers=[])
    with pytest.raises(UnsupportedError, match=r"^\[taps\] qwen3 .* 99\b"):
        LLM(tmp_path / "hf", threads=1, n_ctx=128, taps=[0, 99])
    write_checkpoint(tmp_path / "other", "gemma3n")
    with pytest.raises(UnsupportedError, match=r"^\[taps\] gemma3n "):
        LLM(tmp_path / "other", threads=1, n_ctx=128, taps=[0])
    for wrong in ((1, 0), (-1,), (True,), ("1",)):
        with pytest.raises(RequestError, match=r"^\[engine\] taps "):
            LLM(tmp_path / "hf", taps=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "speculation"), [("qwen3", "off"), ("gemma3", "lookup"), ("mamba2", "off")])
def test_answers_have_hidden_states(tmp_path: Path, name: str, speculation: str) -> None:
    write_checkpoint(tmp_path / "hf", name)
    oracle = oracle_of(name)
    options: dict[str, Any] = {"threads": 1, "n_ctx": 96, "kv_dtype": "f32", "max_step_tokens": 32}
    prompts = [[3, 1, 4, 1, 5] * 8, [9, 2, 6]]
    with LLM(tmp_path / "hf", taps=(0, 1), speculation=speculation, **options) as model:
        asked: dict[str, Any] = {"max_tokens": 9, "ignore_eos": True, "seed": 1, "n": 2}
        plain = model.generate(prompts, **asked)
        results = model.generate(prompts, hidden_states=[1, 0], **asked)
        written = [[choice.token_ids for choice in result.choices] for result in plain]
        assert [[choice.token_ids for choice in result.choices] for result in results] == written
        for result in results:
            for choice in result.choices:
                ids = [*result.prompt_token_ids, *choice.token_ids]
                assert choice.hidden_states is not None
                assert choice.hidden_states.shape[:2] == (2, len(ids))
                expected = hidden_states(oracle.model, ids)
                for found, layer in zip(choice.hidden_states, (1, 0), strict=True):
                    assert np.abs(found - expected[layer]).max() <= 1e-3 * np.abs(expected[layer]).max()
            assert result.hidden_states is result.choices[0].hidden_states
        assert plain[0].hidden_states is None
        (full,) = model.generate([[5] * 90], hidden_states=[0], max_tokens=6, ignore_eos=True)  # all of the context
        assert full.hidden_states is not None
        assert full.hidden_states.shape[1] == 96
        for wrong in ([2], [], "0", 5):
            with pytest.raises(RequestError, match="layers"):
                model.generate(prompts, hidden_states=wrong, max_tokens=1)  # type: ignore[arg-type]
