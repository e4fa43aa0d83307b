"""Layers that predict later tokens, compared with the published equations, computed with transformers' layers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from chosen_kernels import threads_of
from quire._native import graph
from quire._native.core import find_device
from quire.checkpoints.conversion import convert
from quire.errors import LoadError
from quire.gguf import GGUFReader, GGUFWriter
from quire.models import load_model
from tiny_checkpoints import shapes_of

torch = pytest.importorskip("torch", reason="needs torch (CI installs torch==2.13.0)")
pytest.importorskip("transformers", reason="needs transformers")

from predictor_models import (  # noqa: E402
    KINDS,
    PredictorOracle,
    n_layer_of,
    predictor_tensors,
    write_predicting,
    write_with_a_layer_more,
)

pytestmark = [pytest.mark.python_only, pytest.mark.filterwarnings("ignore")]  # torch and transformers warn
Array = npt.NDArray[np.float32]
N = 45


def edited(source: Path, out: Path, tensors: dict[str, Array], keys: dict[str, tuple[Any, str]]) -> Path:
    """Write the file with more tensors and keys."""
    reader = GGUFReader(source)
    all_tensors = {info.name: reader.tensor(info.name).numpy() for info in reader.tensors} | tensors
    with GGUFWriter(out, reader.metadata.text("general.architecture")) as writer:
        for key in reader.metadata:
            kind = reader.metadata.type_of(key)
            value = reader.metadata.strings(key) if kind == "string[]" else reader.metadata[key]
            writer.set(key, *keys.pop(key, (value, kind)))  # type: ignore[arg-type]
        for key, (value, kind) in keys.items():
            writer.set(key, value, kind)  # type: ignore[arg-type]
        for name, values in all_tensors.items():
            writer.add_tensor(name, "f32", values.shape)
        for name, values in all_tensors.items():
            writer.write(name, values)
    return out


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that makes a file with a predicting layer, by name."""
    folder = tmp_path_factory.mktemp("predictors")

    def make(name: str) -> Path:
        out = folder / f"{name}.gguf"
        if out.is_file():
            return out
        if name != "mimo2":
            write_predicting(folder / name, name)
            convert(folder / name, out, "f32")
            return out
        # llama.cpp's converter writes it this way; its checkpoints have other names than transformers'.
        write_with_a_layer_more(folder / name, name)
        convert(folder / name, folder / "ordinary.gguf", "f32")
        layer, own = f"blk.{n_layer_of(name)}", predictor_tensors(name)
        more = {
            f"{layer}.nextn.{part}.weight": own[f"predictor.{part}.weight"] for part in ("eh_proj", "enorm", "hnorm")
        }
        more[f"{layer}.layer_output_norm.weight"] = own["predictor.shared_head_norm.weight"]
        return edited(folder / "ordinary.gguf", out, more, {"mimo2.nextn_predict_layers": (1, "u32")})

    return make


def executor(trace: graph.Trace, kernels: str, other: graph.Executor | None = None) -> graph.Executor:
    return graph.Executor(
        trace, find_device("cpu"), n_blocks=9, n_states=3, threads=threads_of(kernels), kv_dtype="f32",
        kernels=kernels, max_rows=64, max_sequences=2, team_of=other if kernels == "cpu" else None,
    )  # fmt: skip


def run(model: graph.Executor, ids: list[int], start: int, *, state: bool, features: Array | None = None) -> Array:
    """Logits of ids, which are at ``start`` and after it."""
    rows = range(start, start + len(ids))
    return model.run(
        ids, positions=list(rows), slots=[32 + p for p in rows], logit_rows=list(range(len(ids))), row_begin=[0, len(ids)],
        n_kv=[start + len(ids)], tables=[list(range(1, 9))], states=[1] if state else [], features=features,
    )  # fmt: skip


def close(found: Array, expected: Any) -> None:
    wanted = expected.numpy()
    assert np.abs(found - wanted).max() <= 1e-3 * np.abs(wanted).max()


@pytest.mark.whole
@pytest.mark.parametrize("kernels", ["cpu", "stock"])
@pytest.mark.parametrize("name", KINDS)
def test_predictions_equal_the_equations(tiny: Callable[[str], Path], tmp_path: Path, name: str, kernels: str) -> None:
    oracle = PredictorOracle(tmp_path / "oracle", name)
    ids = np.random.default_rng(5).integers(0, 256, N).tolist()
    model = load_model(GGUFReader(tiny(name)), predicts=True)
    state = any(spec.states for spec in model.cache)
    target = executor(model.trace(96), kernels)
    run(target, ids, 0, state=state)
    features = target.features(N)
    known = oracle.features(ids)
    close(features, known)

    # Row i reads the token at i + 1, in two steps over one cache.
    predictor = executor(model.trace_predictor(96), kernels, target)
    texts, given = ids[1:], features[:-1]
    first = run(predictor, texts[:19], 0, state=False, features=given[:19])
    rest = run(predictor, texts[19:], 19, state=False, features=given[19:])
    logits, own = oracle.predict(texts, known[:-1])
    close(np.concatenate([first, rest]), logits)
    close(predictor.features(N - 20), own[19:])

    # One further token, from its own features.
    token = int(rest[-1].argmax())
    chained = run(predictor, [token], N - 1, state=False, features=predictor.features(N - 20)[-1:])
    logits, _ = oracle.predict([*texts, token], torch.cat([known[:-1], own[-1:]]))
    close(chained, logits[-1:])


@pytest.mark.parametrize("name", KINDS)
def test_answers_do_not_depend_on_the_predicting_layer(tiny: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    ids = np.random.default_rng(6).integers(0, 256, N).tolist()
    reader = GGUFReader(tiny(name))
    rows = []
    for predicts in (False, True):
        model = load_model(reader, predicts=predicts)
        assert (model.predictor is not None) == predicts
        assert model.config.n_layer == n_layer_of(name)
        state = any(spec.states for spec in model.cache)
        rows.append(run(executor(model.trace(96), "cpu"), ids, 0, state=state))
    np.testing.assert_array_equal(rows[0], rows[1])


def test_the_layer_is_checked_where_it_is_wanted(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    layer = f"blk.{n_layer_of('glm4moe')}"
    for tensors, text in (
        ({f"{layer}.nextn.hnorm.weight": np.ones(7, np.float32)}, r"nextn\.hnorm\.weight' has shape \[7\]"),
        ({f"{layer}.nextn.mystery.weight": np.ones(7, np.float32)}, r"nextn\.mystery\.weight"),
    ):
        path = edited(tiny("glm4moe"), tmp_path / "x.gguf", tensors, {})
        load_model(GGUFReader(path))
        with pytest.raises(LoadError, match=text):
            load_model(GGUFReader(path), predicts=True)


@pytest.mark.parametrize("name", [name for name in KINDS if name != "mimo2"])
def test_conversion_writes_the_names_of_llama_cpp(tiny: Callable[[str], Path], name: str) -> None:
    reader = GGUFReader(tiny(name))
    n, arch = n_layer_of(name), reader.metadata.text("general.architecture")
    assert reader.metadata[f"{arch}.block_count"] == n + 1
    assert reader.metadata[f"{arch}.nextn_predict_layers"] == 1
    names = {info.name.removeprefix(f"blk.{n}.") for info in reader.tensors if info.name.startswith(f"blk.{n}.")}
    expected = {f"nextn.{part}.weight" for part in ("eh_proj", "enorm", "hnorm", "shared_head_norm")}
    if KINDS[name].has_own_head:
        expected |= {"nextn.embed_tokens.weight", "nextn.shared_head_head.weight"}
    assert {each for each in names if each.startswith("nextn.")} == expected
    assert {"attn_norm.weight", "attn_output.weight"} <= names


def test_matrices_that_the_layer_repeats_are_left_out(tmp_path: Path) -> None:
    from predictor_models import trunk_tensors

    tensors = {**trunk_tensors("glm4moe"), **predictor_tensors("glm4moe")}
    layer = f"model.layers.{n_layer_of('glm4moe')}"
    tensors[f"{layer}.embed_tokens.weight"] = tensors["model.embed_tokens.weight"]
    tensors[f"{layer}.shared_head.head.weight"] = tensors["lm_head.weight"]
    write_predicting(tmp_path / "hf", "glm4moe", tensors)
    convert(tmp_path / "hf", tmp_path / "x.gguf", "f32")
    reader = GGUFReader(tmp_path / "x.gguf")
    assert not [info.name for info in reader.tensors if "embed_tokens" in info.name or "shared_head_head" in info.name]
    predictor = load_model(reader, predicts=True).predictor
    assert predictor is not None
    assert predictor.head.weight.name == "output.weight"


def test_checkpoints_without_the_layer_are_unchanged(tmp_path: Path) -> None:
    from tiny_checkpoints import write_checkpoint

    for name in ("glm4moe", "qwen35"):
        write_checkpoint(tmp_path / name, name)
        convert(tmp_path / name, tmp_path / f"{name}.gguf", "f32")
        reader = GGUFReader(tmp_path / f"{name}.gguf")
        assert load_model(reader, predicts=True).predictor is None
        assert len([each for each in shapes_of(name) if "eh_proj" in each or "mtp" in each]) == 0
