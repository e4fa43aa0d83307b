"""Compare PEFT adapters with transformers with ``W + factor * B A`` for each matrix.  Needs torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quire.checkpoints.conversion import CheckpointReader, convert, opened_adapters
from quire.engine import LLM
from quire.errors import LoadError, QuireError
from quire.gguf import GGUFReader
from quire.models import load_model
from test_adapters import IDS, Array, logits
from tiny_adapters import write_peft_adapter
from tiny_checkpoints import write_checkpoint

torch = pytest.importorskip("torch", reason="needs torch (CI installs torch==2.13.0)")
pytest.importorskip("transformers", reason="needs transformers")

from oracle_models import oracle_of  # noqa: E402

pytestmark = [pytest.mark.python_only, pytest.mark.filterwarnings("ignore")]  # torch and transformers warn


@dataclass(frozen=True)
class Case:
    """An adapter.  ``modules`` are PEFT's names of adapted modules.

    ``ranks`` and ``factors``: for modules that differ, by the end of their names; computed by hand.
    """

    model: str
    modules: list[str]
    factor: float
    config: dict[str, Any] = field(default_factory=dict)
    ranks: dict[str, int] = field(default_factory=dict)
    factors: dict[str, float] = field(default_factory=dict)
    dtype: str = "F32"
    name: str = ""


LLAMA = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CASES = [
    Case("llama", LLAMA, 4.0),  # 16 / 4; files store q and k in another order
    Case(
        "llama", ["q_proj", "v_proj", "down_proj"], 6 / math.sqrt(4),
        {
            "use_rslora": True, "lora_alpha": 6, "rank_pattern": {"v_proj": 2, "layers.1.self_attn.q_proj": 8},
            "alpha_pattern": {r"layers\.\d+\.mlp\..*": 3.0, "^model.layers.0.self_attn.q_proj": 1},
        },
        {".v_proj": 2, ".1.self_attn.q_proj": 8},
        {
            ".v_proj": 6 / math.sqrt(2), ".1.self_attn.q_proj": 6 / math.sqrt(8), ".mlp.down_proj": 3 / math.sqrt(4),
            ".0.self_attn.q_proj": 1 / math.sqrt(4),
        },
        name="patterns",
    ),
    Case("qwen2", ["q_proj", "k_proj", "o_proj", "up_proj"], 4.0, dtype="BF16"),
    Case("phi3", ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"], 4.0, dtype="F16"),
    Case("gpt2", ["c_attn", "c_proj", "c_fc"], 4.0, {"fan_in_fan_out": True}),
]  # fmt: skip


def named(case: Case) -> str:
    return "-".join(filter(None, (case.model, case.name)))


def by_end(values: Mapping[str, Any], name: str, default: Any) -> Any:
    return next((value for end, value in values.items() if name.endswith(end)), default)


def adapted(model: Any, case: Case) -> Iterator[tuple[str, Any]]:
    """Return the modules that a configuration names."""
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in case.modules and getattr(module, "weight", None) is not None:
            yield name, module


def merged(model: Any, case: Case, rng: np.random.Generator) -> dict[str, Array]:
    """Make random pairs, and add their products to the weights of transformers' model."""
    halves: dict[str, Array] = {}
    for name, module in adapted(model, case):
        turned = type(module).__name__ == "Conv1D"  # [in, out]
        n_out, n_in = module.weight.shape[::-1] if turned else module.weight.shape
        rank, factor = by_end(case.ranks, name, 4), by_end(case.factors, name, case.factor)
        a, b = (torch.from_numpy(0.3 * rng.standard_normal(shape)) for shape in ((rank, n_in), (n_out, rank)))
        kind = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[case.dtype]
        a, b = (half.to(kind).to(torch.float32) for half in (a, b))
        with torch.no_grad():
            module.weight += factor * ((b @ a).T if turned else b @ a)
        halves |= {f"{name}.lora_A": a.numpy(), f"{name}.lora_B": b.numpy()}
    return halves


@pytest.mark.parametrize("case", CASES, ids=named)
def test_folders_of_peft_equal_merged_weights(tmp_path: Path, case: Case) -> None:
    """Apply them to a GGUF file and to the checkpoint's folder, with Quire's kernels and ggml's."""
    write_checkpoint(tmp_path / "hf", case.model)
    convert(tmp_path / "hf", tmp_path / "x.gguf", "f32")
    oracle = oracle_of(case.model)
    plain = oracle.answer(IDS).numpy()
    halves = merged(oracle.model, case, np.random.default_rng(3))
    config = {"target_modules": case.modules, **case.config}
    folder = write_peft_adapter(tmp_path / "adapter", halves, config, case.dtype)
    expected = oracle.answer(IDS).numpy()
    largest = np.abs(expected).max()
    assert np.abs(expected - plain).max() > 0.1 * largest  # the adapter matters
    (tmp_path / "scratch").mkdir()
    with CheckpointReader(tmp_path / "hf", tmp_path / "scratch", "f32") as checkpoint:
        for base, kernels in ((GGUFReader(tmp_path / "x.gguf"), "cpu"), (checkpoint, "stock")):
            with opened_adapters([(str(folder), 1.0)], base) as adapters:
                assert np.abs(logits(base, adapters, kernels) - expected).max() <= 1e-3 * largest


def test_models_open_with_folders(tmp_path: Path) -> None:
    """Apply a PEFT folder to a checkpoint's folder, quantized or not, twice, and with scales."""
    write_checkpoint(tmp_path / "hf", "llama")
    oracle, case = oracle_of("llama"), Case("llama", ["q_proj", "down_proj"], 4.0)
    halves = merged(oracle.model, case, np.random.default_rng(2))
    folder = write_peft_adapter(tmp_path / "a", halves, {"target_modules": case.modules})
    expected = oracle.answer(IDS).numpy()
    options = {"threads": 1, "n_ctx": 96, "kv_dtype": "f32"}
    for adapters in ([folder], [folder, (folder, 0.5), (folder, -0.5)]):
        with LLM(tmp_path / "hf", adapters=adapters, **options) as model:
            assert np.abs(model.logits(IDS) - expected).max() <= 1e-3 * np.abs(expected).max()
    with LLM(tmp_path / "hf", adapters=[folder], quantize="q8_0", **options) as model:
        assert np.sqrt(np.mean((model.logits(IDS) - expected) ** 2)) <= 0.1 * expected.std()


Q, EMBEDDING, HEAD = "model.layers.0.self_attn.q_proj", "model.embed_tokens", "lm_head"


def pair(module: str = Q, rank: int = 4, n_in: int = 64, n_out: int = 64) -> dict[str, Array]:
    return {
        f"{module}.lora_A": np.ones((rank, n_in), np.float32),
        f"{module}.lora_B": np.ones((n_out, rank), np.float32),
    }


FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"peft_type": "ADALORA"}, "'peft_type' of adapter_config.json.* ADALORA"),
    ({"peft_type": None}, "'peft_type' is missing in adapter_config.json"),
    ({"use_dora": True}, "has no lora_magnitude_vector"),
    ({"use_qalora": True}, "'use_qalora'"),
    ({"use_bdlora": {"nblocks": 2}}, "'use_bdlora'"),
    ({"lora_bias": True}, "'lora_bias'"),
    ({"bias": "lora_only"}, "'bias' of adapter_config.json.* lora_only"),
    ({"modules_to_save": 5}, "'modules_to_save' of adapter_config.json is 5"),
    ({"trainable_token_indices": [1]}, "'trainable_token_indices'"),
    ({"target_parameters": [5]}, "'target_parameters' of adapter_config.json is"),
    ({"target_parameters": ["self_attn.q_proj.weight"], "target_modules": []}, "target_parameters: no experts"),
    ({"layer_replication": [[0, 1]]}, "'layer_replication'"),
    ({"ensure_weight_tying": True}, "'ensure_weight_tying'"),
    ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens here"),
    ({"alora_invocation_tokens": ["x"]}, "'alora_invocation_tokens' of adapter_config.json is"),
    ({"arrow_config": {"top_k": 1}}, "'arrow_config'"),
    ({"megatron_config": {"x": 1}}, "'megatron_config'"),
    ({"init_lora_weights": "pissa_niter_4"}, "'init_lora_weights' of adapter_config.json is pissa_niter_4"),
    ({"r": 0}, "'r' of adapter_config.json is 0"),
    ({"r": 3}, r"\[4, 64\]"),
    ({"rank_pattern": {"q_proj": 5}}, rf"'{Q}' have shapes \[4, 64\] .*\[5, in\]"),
    ({"rank_pattern": {"(": 5}}, "'rank_pattern' of adapter_config.json .*missing"),
    # Python's regex matching takes 2^31 steps or more for these.
    ({"target_modules": r"(?:(?:[a-z]+[.\d_]*)+)+X"}, f"'{Q}' is not a module"),
    ({"exclude_modules": r"(?:(?:[a-z]+[.\d_]*)+)+(X|j)"}, f"'{Q}' is not a module"),
    ({"target_modules": ["q_proj"], "layers_to_transform": [0], "layers_pattern": r"((\w+\.?)+)+X"}, f"'{Q}' is not a module"),
    ({"alpha_pattern": {"q{i}": 5}}, "'alpha_pattern' of adapter_config.json has a brace"),
    ({"lora_alpha": "16"}, "'lora_alpha' of adapter_config.json is "),
    ({"lora_alpha": 1e300}, "'lora_alpha' of adapter_config.json is 1e\\+300"),
    ({"alpha_pattern": {"q_proj": float("nan")}}, "'q_proj' of adapter_config.json is nan"),
    ({"target_modules": ["k_proj"]}, f"'{Q}' is not a module that adapter_config.json adapts"),
    ({"target_modules": r".*\.k_proj"}, f"'{Q}' is not a module"),
    ({"target_modules": None}, "'target_modules' is missing in"),
    ({"target_modules": 5}, "'target_modules' of adapter_config.json is 5"),
    ({"exclude_modules": ["layers.0.self_attn.q_proj"]}, f"'{Q}' is not a module"),
    ({"layers_to_transform": [1]}, f"'{Q}' is not a module"),
    ({"layers_to_transform": 0, "layers_pattern": "blocks"}, f"'{Q}' is not a module"),
]  # fmt: skip
TAKEN: list[dict[str, Any]] = [
    {"target_modules": "all-linear"}, {"target_modules": r".*\.(q|k)_proj"}, {"target_modules": [Q]},
    {"layers_to_transform": [0, 3]}, {"layers_to_transform": 0, "layers_pattern": ["layers"]},
    {"layers_to_transform": 0, "layers_pattern": ["h", r"\w+s"]},
    {"exclude_modules": "nothing"}, {"init_lora_weights": "gaussian"}, {"modules_to_save": []}, {"modules_to_save": ["score"]},
    {"alora_invocation_tokens": []}, {"lora_alpha": 0},
    {"loftq_config": {"loftq_bits": 4}}, {"bias": None}, {"lora_alpha": 2.5}, {"fan_in_fan_out": True},
    {"a_new_way": True},  # PEFT ignores unknown fields too
]  # fmt: skip
TENSORS: list[tuple[dict[str, Array], str]] = [
    ({}, "no tensors"),
    ({f"{Q}.lora_A": np.ones((4, 64), np.float32)}, "'base_model.model.*q_proj.lora_B.weight'.*is missing"),
    ({f"{Q}.lora_magnitude_vector": np.ones(64, np.float32)}, "lora_magnitude_vector.*MODULE.lora_A.weight or"),
    ({f"{EMBEDDING}.lora_embedding_A": np.ones((4, 64), np.float32)}, "lora_embedding_B'.*is missing"),
    ({f"{EMBEDDING}": np.ones((4, 64), np.float32)}, "unknown tensor .*embed_tokens.weight'"),
    ({f"{Q}.lora_A.default": np.ones((4, 64), np.float32)}, "unknown tensor .*lora_A.default"),
    (pair(n_in=32), r"'blk\.0\.attn_q\.weight' have shapes \[4, 32\]"),
    (pair("model.layers.9.self_attn.q_proj"), "'blk.9.attn_q.weight'"),
    (pair(f"model.layers.{'1' * 5000}.self_attn.q_proj"), "1 of .* no matrix"),
    (pair("model.layers.0.mlp.experts.0.w1"), "1 of .* architecture 'llama': model.lay"),
    (pair(EMBEDDING, n_out=272), f"'{EMBEDDING}': only embeddings"),
    ({f"{Q}.lora_A": np.full((4, 64), np.inf, np.float32), f"{Q}.lora_B": np.ones((64, 4), np.float32)}, "finite"),
    ({f"{Q}.lora_A": np.ones((4, 64, 1), np.float32), f"{Q}.lora_B": np.ones((64, 4), np.float32)}, r"\[4, 64, 1\]"),
]  # fmt: skip


def refusal(folder: Path, reader: GGUFReader) -> str:
    """Return the reason why an adapter does not fit a model; empty if it fits."""
    try:
        with opened_adapters([(str(folder), 1.0)], reader) as adapters:
            load_model(reader, adapters=adapters)
    except QuireError as error:
        return str(error)
    return ""


def test_unsupported_adapter_options_are_rejected_by_name(tmp_path: Path) -> None:
    import re

    write_checkpoint(tmp_path / "hf", "llama")
    convert(tmp_path / "hf", tmp_path / "x.gguf", "f32")
    reader = GGUFReader(tmp_path / "x.gguf")
    usual = {"target_modules": ["q_proj"]}
    for i, config in enumerate(TAKEN):
        assert refusal(write_peft_adapter(tmp_path / f"taken{i}", pair(), usual | config), reader) == ""
    for i, (config, words) in enumerate(FIELDS):
        said = refusal(write_peft_adapter(tmp_path / f"field{i}", pair(), usual | config), reader)
        assert re.search(rf"^\[adapter\] .*{words}", said), (config, said)
    anything = {"target_modules": "all-linear"}
    for i, (tensors, words) in enumerate(TENSORS):
        said = refusal(write_peft_adapter(tmp_path / f"tensors{i}", tensors, anything), reader)
        assert re.search(rf"^\[adapter\] .*{words}", said), (list(tensors), said)
    # The model without its head, and as a part of a larger model.
    for module in ("layers.0.self_attn.q_proj", "model.language_model.layers.0.mlp.up_proj"):
        shape = {} if "q_proj" in module else {"n_out": 96}
        assert refusal(write_peft_adapter(tmp_path / module, pair(module, **shape), anything), reader) == ""


def test_files_that_are_not_adapters(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "hf", "llama")
    convert(tmp_path / "hf", tmp_path / "x.gguf", "f32")
    reader = GGUFReader(tmp_path / "x.gguf")
    good = write_peft_adapter(tmp_path / "good", pair(), {"target_modules": ["q_proj"]})
    weights = good / "adapter_model.safetensors"
    whole = weights.read_bytes()
    assert refusal(good, reader) == ""
    assert "adapter_model.safetensors is a file in a PEFT folder" in refusal(weights, reader)
    for broken in (b"", whole[:-1], whole[:50], b"\xff" * 64):
        weights.write_bytes(broken)
        assert refusal(good, reader).startswith("[safetensors] ")
    weights.unlink()
    assert "adapter_model.safetensors" in refusal(good, reader)
    (good / "adapter_model.bin").write_bytes(b"\x80\x04.")
    assert "has adapter_model.bin, a pickle" in refusal(good, reader)
    for text in ("", "[]", "{", '{"r": 4}'):
        (good / "adapter_config.json").write_text(text, encoding="utf-8")
        assert refusal(good, reader).startswith("[adapter] ")
    (good / "adapter_config.json").unlink()
    with pytest.raises(LoadError, match=r"^\[adapter\] .*good.*adapter_config.json"):
        LLM(tmp_path / "x.gguf", adapters=[good], threads=1, n_ctx=96)
