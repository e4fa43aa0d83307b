"""Control vectors per request.

Oracle: transformers with hooks that add the directions to the outputs of layers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from quire.engine import LLM
from quire.errors import LoadError, RequestError, UnsupportedError
from quire.files.gguf import GGUFWriter
from quire.params.sampling import SamplingParams
from tiny_checkpoints import write_checkpoint

Vectors = dict[int, npt.NDArray[np.float32]]


def write_vector(path: Path, vectors: Vectors) -> None:
    with GGUFWriter(path, "controlvector") as writer:
        for layer, values in vectors.items():
            writer.add_tensor(f"direction.{layer}", "f32", values.shape)
        for layer, values in vectors.items():
            writer.write(f"direction.{layer}", values)


def random_vectors(dim: int, layers: list[int], seed: int) -> Vectors:
    random = np.random.default_rng(seed)
    return {layer: random.normal(0, 1, dim).astype(np.float32) for layer in layers}


def log_probs(model: Any, ids: list[int], added: Vectors) -> npt.NDArray[np.float32]:
    """Return transformers' log-probabilities of the next token."""
    torch = pytest.importorskip("torch", reason="needs torch")

    def hook_of(values: npt.NDArray[np.float32]) -> Any:
        direction = torch.from_numpy(values)
        return lambda _, __, output: (
            (output[0] + direction, *output[1:]) if isinstance(output, tuple) else output + direction
        )

    layers = model.model.layers
    hooks = [layers[layer].register_forward_hook(hook_of(values)) for layer, values in added.items()]
    try:
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, -1]
    finally:
        for hook in hooks:
            hook.remove()
    found: npt.NDArray[np.float32] = torch.log_softmax(logits, 0).numpy()
    return found


@pytest.mark.filterwarnings("ignore")  # torch and transformers warn
@pytest.mark.parametrize("kernels", ["cpu", "stock"])
def test_requests_of_one_batch_are_steered_apart(tmp_path: Path, kernels: str) -> None:
    pytest.importorskip("transformers", reason="needs transformers")
    from oracle_models import oracle_of

    write_checkpoint(tmp_path / "hf", "llama")
    model = oracle_of("llama").model
    dim, n_layer = model.config.hidden_size, model.config.num_hidden_layers
    layers = list(range(1, n_layer))
    happy, loud = random_vectors(dim, layers, 1), random_vectors(dim, layers[-1:], 2)
    write_vector(tmp_path / "happy.gguf", happy)
    write_vector(tmp_path / "loud.gguf", loud)
    files = [tmp_path / "happy.gguf", (tmp_path / "loud.gguf", 0.5)]
    options: dict[str, Any] = {"threads": 1, "n_ctx": 128, "kv_dtype": "f32", "kernels": kernels}
    choices: list[tuple[Any, float, float]] = [
        (None, 1.0, 0.5), ([], 0.0, 0.0), ("happy", 1.0, 0.0), ({"happy": -1.5, "loud": 2.0}, -1.5, 2.0)
    ]  # fmt: skip
    ids = np.random.default_rng(5).integers(0, 256, 40).tolist()
    with LLM(tmp_path / "hf", control_vectors=files, **options) as llm:
        params = [
            SamplingParams(temperature=0.0, max_tokens=1, logprobs=-1, control_vectors=choice)
            for choice, _, _ in choices
        ]
        for _ in range(2):  # the second time, blocks are in the cache
            found = llm.generate([ids] * len(choices), params)
            for (_, a, b), one in zip(choices, found, strict=True):
                added = {layer: a * happy[layer] + b * loud.get(layer, np.zeros(dim, np.float32)) for layer in layers}
                top = dict((one.logprobs or [])[0].top)
                shown = np.array([top[i] for i in range(llm.n_vocab)], np.float32)
                assert np.abs(shown - log_probs(model, ids, added)).max() < 2e-3
        assert llm.stats().n_prefix_hit_tokens >= 32 * len(choices)
        with pytest.raises(RequestError, match="unknown control vector 'sad'"):
            llm.generate(ids, max_tokens=1, control_vectors="sad")
    with LLM(tmp_path / "hf", control_vectors=files, control_vector_layers=(2, 9), **options) as llm:
        (one,) = llm.generate(ids, params[2])
        top = dict((one.logprobs or [])[0].top)
        shown = np.array([top[i] for i in range(llm.n_vocab)], np.float32)
        rest = {layer: values for layer, values in happy.items() if layer >= 2}
        assert np.abs(shown - log_probs(model, ids, rest)).max() < 2e-3


def test_files_that_do_not_fit_are_refused(tmp_path: Path, llm: LLM) -> None:
    write_checkpoint(tmp_path / "hf", "llama")
    for vectors, text in (
        ({1: np.ones(3, np.float32)}, "has shape"), ({0: np.ones(64, np.float32)}, "layer 0|has shape"),
        ({99: np.ones(64, np.float32)}, "no direction|has shape"),
    ):  # fmt: skip
        write_vector(tmp_path / "wrong.gguf", vectors)
        with pytest.raises(LoadError, match=text):
            LLM(tmp_path / "hf", control_vectors=[tmp_path / "wrong.gguf"])
    with pytest.raises(RequestError, match="without control vectors"):
        llm.generate("x", max_tokens=1, control_vectors="x")
    with pytest.raises((RequestError, UnsupportedError), match="control_vector_layers"):
        LLM(tmp_path / "hf", control_vectors=[tmp_path / "wrong.gguf"], control_vector_layers=(3, 2))
