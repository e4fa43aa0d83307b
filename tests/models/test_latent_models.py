"""Latent attention in files of older converters: keys and values in one matrix, no keys for the cache's sizes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from quire import LLM
from quire._native.quant import dequantize, quantize
from quire.checkpoints.conversion import convert
from quire.errors import LoadError, UnsupportedError
from quire.gguf import GGUFReader, GGUFWriter
from quire.models import load_model
from test_models import REFERENCES, Runner, close
from tiny_checkpoints import config_of, write_checkpoint

Array = npt.NDArray[np.float32]
MLA = ("attention.key_length_mla", "attention.value_length_mla")


def written(
    out: Path, source: GGUFReader, keys: Mapping[str, object], tensors: Mapping[str, Array], quantized: str = ""
) -> Path:
    """Write the file with changed keys (None: removed) and tensors; those that match ``quantized`` become Q8_0."""
    arch = source.metadata.text("general.architecture")
    with GGUFWriter(out, arch) as writer:
        for key in source.metadata:
            name, kind = key.removeprefix(f"{arch}."), source.metadata.type_of(key)
            value = keys.get(name, source.metadata.strings(key) if kind == "string[]" else source.metadata[key])
            if value is not None:
                writer.set(key, value, kind)  # type: ignore[arg-type]
        for name in set(keys) - {key.removeprefix(f"{arch}.") for key in source.metadata}:
            writer.set(f"{arch}.{name}", keys[name], "f32")  # type: ignore[arg-type]
        for name, values in tensors.items():
            writer.add_tensor(name, "q8_0" if quantized and quantized in name else "f32", values.shape)
        for name, values in tensors.items():
            writer.write(name, quantize(values, "q8_0") if quantized and quantized in name else values)
    return out


def tensors_of(source: GGUFReader) -> dict[str, Array]:
    return {info.name: source.tensor(info.name).numpy() for info in source.tensors}


def unsplit(source: GGUFReader, n_layer: int) -> dict[str, Array]:
    tensors = tensors_of(source)
    for i in range(n_layer):
        k_b, v_b = (tensors.pop(f"blk.{i}.attn_{part}_b.weight") for part in "kv")
        both = np.concatenate([k_b.swapaxes(1, 2), v_b], 1)
        tensors[f"blk.{i}.attn_kv_b.weight"] = np.ascontiguousarray(both.reshape(-1, both.shape[-1]))
    return tensors


@pytest.fixture
def source(tmp_path: Path, request: pytest.FixtureRequest) -> GGUFReader:
    write_checkpoint(tmp_path / "hf", request.param)
    convert(tmp_path / "hf", tmp_path / "new.gguf", "f32")
    return GGUFReader(tmp_path / "new.gguf")


@pytest.mark.parametrize("source", ["deepseek2", "deepseek2-groups"], indirect=True)
def test_older_files_answer_alike(tmp_path: Path, source: GGUFReader, request: pytest.FixtureRequest) -> None:
    name = str(request.node.callspec.params["source"])
    c = config_of(name)
    nope, rot, v_dim = (int(str(c[key])) for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    n_layer = int(str(c["num_hidden_layers"]))
    keys = {
        **dict.fromkeys(MLA),
        "attention.head_count_kv": c["num_attention_heads"],
        "attention.key_length": nope + rot,
        "attention.value_length": v_dim,
    }
    stored = np.load(REFERENCES / "models" / f"{name}.npz")
    old = written(tmp_path / "old.gguf", source, keys, unsplit(source, n_layer))
    close(Runner(old).logits(stored["prompt"].tolist()), stored["logits"])


@pytest.mark.parametrize("source", ["minicpm3"], indirect=True)
def test_a_quantized_matrix_is_split(tmp_path: Path, source: GGUFReader) -> None:
    """Numbers become f16, which some machines round to BF16 in products; elsewhere they are unchanged."""
    tensors, prompt = tensors_of(source), list(range(30))
    eighth = written(tmp_path / "q8.gguf", source, {}, tensors, quantized="attn_kv_b")
    reader = GGUFReader(eighth)
    rounded = {name: dequantize(reader.tensor(name)) for name in tensors if "attn_kv_b" in name}
    expected = Runner(written(tmp_path / "f32.gguf", source, {}, tensors | rounded)).logits(prompt)
    close(Runner(eighth).logits(prompt), expected, 2e-2)
    assert np.abs(expected - Runner(tmp_path / "new.gguf").logits(prompt)).max() > 1e-3


@pytest.mark.parametrize("source", ["deepseek2-v3"], indirect=True)
def test_contradictory_sizes_are_rejected(tmp_path: Path, source: GGUFReader) -> None:
    for change in ({"attention.key_length": 60}, {"attention.value_length": 40}, {"attention.head_count_kv": 2}):
        path = written(tmp_path / "x.gguf", source, change, tensors_of(source))
        with pytest.raises(LoadError, match="the latent cache needs 1, 64 and 48"):
            load_model(GGUFReader(path))
    for change, words in (
        ({"rope.dimension_count": 40}, "rope.dimension_count"),
        ({"rope.dimension_count": 15}, "rope.dimension_count 15"),
        ({"attention.kv_lora_rank": 0}, "attention.kv_lora_rank"),
    ):
        with pytest.raises(LoadError, match=words):
            load_model(GGUFReader(written(tmp_path / "x.gguf", source, change, tensors_of(source))))
    with pytest.raises(UnsupportedError, match=r"rope\.scaling\.yarn_attn_factor"):
        load_model(
            GGUFReader(written(tmp_path / "x.gguf", source, {"rope.scaling.yarn_attn_factor": 2.0}, tensors_of(source)))
        )


@pytest.mark.parametrize("name", ["deepseek4", "glm-dsa", "glm5-next", "minimax-m3", "mistral_large4"])
def test_what_is_picked_does_not_depend_on_steps_or_neighbours(tmp_path: Path, name: str) -> None:
    """Each row picks for itself, whatever the chunks of its prompt and the other sequences."""
    write_checkpoint(tmp_path / "hf", name)
    rng = np.random.default_rng(5)
    prompts = [rng.integers(0, 256, n).tolist() for n in (90, 20, 61)]
    with LLM(tmp_path / "hf", max_step_tokens=16) as llm:
        together = [result.token_ids for result in llm.generate(prompts, max_tokens=8, temperature=0)]
    with LLM(tmp_path / "hf", max_step_tokens=128) as llm:
        alone = [llm.generate([prompt], max_tokens=8, temperature=0)[0].token_ids for prompt in prompts]
    assert together == alone


def test_a_first_layer_without_an_indexer_is_rejected(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "hf", "glm-dsa")
    convert(tmp_path / "hf", tmp_path / "x.gguf", "f32")
    source = GGUFReader(tmp_path / "x.gguf")
    out = written(tmp_path / "y.gguf", source, {"attention.indexer.types": None}, tensors_of(source))
    left = {name: values for name, values in tensors_of(source).items() if not name.startswith("blk.0.indexer")}
    load_model(GGUFReader(out))  # the layers that have the tensors
    with pytest.raises(LoadError, match=r"blk\.0 has no indexer"):
        load_model(GGUFReader(written(tmp_path / "z.gguf", source, {"attention.indexer.types": None}, left)))


@pytest.mark.parametrize("sources", [[0, 1, 1, 1, 4], [0, 1, 2, 1, 3], [0, 3, 0, 3, 4]])
def test_layers_read_the_rows_of_earlier_layers_of_their_kind(tmp_path: Path, sources: list[int]) -> None:
    write_checkpoint(tmp_path / "hf", "mistral_large4")
    convert(tmp_path / "hf", tmp_path / "x.gguf", "f32")
    source = GGUFReader(tmp_path / "x.gguf")
    keys = {"attention.source_layers": np.array(sources, np.uint32)}
    with pytest.raises(LoadError, match=r"source_layers: layer \d cannot read layer"):
        load_model(GGUFReader(written(tmp_path / "y.gguf", source, keys, tensors_of(source))))
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    config["text_config"]["kv_source_layers"] = sources
    (tmp_path / "hf" / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedError, match="kv_source_layers"):
        convert(tmp_path / "hf", tmp_path / "z.gguf", "f32")


@pytest.mark.parametrize("source", ["minimax-m3"], indirect=True)
def test_files_without_a_usable_indexer_keep_the_limit(tmp_path: Path, source: GGUFReader) -> None:
    """Up to it, every block would be picked."""
    tensors = tensors_of(source)
    bare = {name: values for name, values in tensors.items() if "indexer" not in name}
    types = {"attention.indexer.types": None}
    prompt = list(range(60))
    expected = Runner(tmp_path / "new.gguf").logits(prompt)
    for kept, change, words in (
        (bare, types, "the file has no indexer"),
        (tensors, {"attention.indexer.block_size": 16, "attention.indexer.top_k": 4}, "block_size 16 is not divisible"),
        (tensors, {"attention.indexer.local_blocks": 0}, "local_blocks 0 is not in 1 to 2"),
    ):
        path = written(tmp_path / "x.gguf", source, change, kept)
        model = load_model(GGUFReader(path))
        assert model.config.n_ctx_train == 64
        with pytest.raises(UnsupportedError, match=words):
            model.trace(65)
        close(Runner(path).logits(prompt), expected)
    with pytest.raises(LoadError, match="names layers without an indexer"):
        load_model(GGUFReader(written(tmp_path / "x.gguf", source, {}, bare)))


@pytest.mark.parametrize("source", ["minimax-m3"], indirect=True)
def test_short_contexts_need_no_indexer(tmp_path: Path, source: GGUFReader) -> None:
    """They attend to all tokens, which is what picking every block does."""
    prompt = list(range(60))
    for kernels in ("auto", "stock"):
        short = Runner(tmp_path / "new.gguf", kernels, n_ctx=64).logits(prompt)
        close(short, Runner(tmp_path / "new.gguf", kernels, n_ctx=65).logits(prompt))
