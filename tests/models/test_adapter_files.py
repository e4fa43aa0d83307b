"""``quire lora``: merged models against transformers with merged weights; converted adapters there and back.  Needs torch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from quire._native.quant import dequantize
from quire.checkpoints.conversion import convert
from quire.cli.main import main
from quire.engine import LLM
from quire.gguf import GGUFReader
from quire.safetensors import SafetensorsFile
from test_adapters import IDS, logits
from test_request_adapters import LLAMA, make_adapter, merged, oracle_of, scored
from tiny_adapters import write_peft_adapter
from tiny_checkpoints import write_checkpoint

torch = pytest.importorskip("torch", reason="needs torch (CI installs torch==2.13.0)")

pytestmark = [pytest.mark.python_only, pytest.mark.filterwarnings("ignore")]  # torch and transformers warn


def test_merged_models_equal_merged_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_checkpoint(tmp_path / "hf", "llama")
    oracle, out = oracle_of("llama"), tmp_path / "merged.gguf"
    halves = [make_adapter(tmp_path / f"a{rank}", oracle, LLAMA, rank) for rank in (2, 3)]
    with merged(oracle, [(halves[0], 1.0), (halves[1], -0.5)]):
        expected = oracle.answer(IDS).numpy()
    lora = ["--lora", f"{tmp_path / 'a2'},{tmp_path / 'a3'}:-0.5"]
    assert main(["lora", "merge", str(tmp_path / "hf"), str(out), *lora]) == 0
    assert "14 matrices" in capsys.readouterr().out
    assert np.abs(logits(out, [], "cpu") - expected).max() <= 1e-3 * np.abs(expected).max()
    # The types of a quantized file stay, or become the given one.
    name, q8 = "blk.1.attn_q.weight", tmp_path / "q8.gguf"
    convert(tmp_path / "hf", tmp_path / "f32.gguf", "f32")
    assert main(["quantize", str(tmp_path / "f32.gguf"), str(q8), "Q8_0"]) == 0
    plain, coded, whole = (dequantize(GGUFReader(path).tensor(name)) for path in (tmp_path / "f32.gguf", q8, out))
    for words, dtype, error in (([], "q8_0", 1 / 200), (["--type", "F16"], "f16", 1 / 1000)):
        assert main(["lora", "merge", str(q8), str(tmp_path / "x.gguf"), *lora, *words]) == 0
        tensor = GGUFReader(tmp_path / "x.gguf").tensor(name)
        assert str(tensor.dtype) == dtype
        assert np.abs(dequantize(tensor) - (coded + whole - plain)).max() <= error * np.abs(whole).max()


@pytest.mark.parametrize(("arch", "modules"), [("llama", LLAMA), ("gpt2", ["c_attn", "c_proj"])], ids=["llama", "gpt2"])
def test_merged_folders_equal_merged_weights(tmp_path: Path, arch: str, modules: list[str]) -> None:
    write_checkpoint(tmp_path / "hf", arch)
    (tmp_path / "hf" / "README.md").write_text("about it")
    oracle, out = oracle_of(arch), tmp_path / "merged"
    halves = make_adapter(tmp_path / "a", oracle, modules, 2)
    assert main(["lora", "merge", str(tmp_path / "hf"), str(out), "--lora", f"{tmp_path / 'a'}:-0.5"]) == 0
    assert {path.name for path in out.iterdir()} == {path.name for path in (tmp_path / "hf").iterdir()}
    source, copy = (SafetensorsFile(folder / "model.safetensors") for folder in (tmp_path / "hf", out))
    for name in source:
        lora = name.removesuffix("weight") + "lora_"
        expected = source.array(name)
        if f"{lora}A" in halves:
            product = -0.5 * 8 / 2 * halves[f"{lora}B"] @ halves[f"{lora}A"]
            expected = expected + (product.T if arch == "gpt2" else product)
        assert np.abs(copy.array(name) - expected).max() <= 1e-5 * np.abs(expected).max()
    assert sum(f"{name.removesuffix('weight')}lora_A" in halves for name in source) == len(halves) // 2
    if arch == "llama":
        convert(out, tmp_path / "merged.gguf", "f32")
        with merged(oracle, [(halves, -0.5)]):
            answer = oracle.answer(IDS).numpy()
        assert np.abs(logits(tmp_path / "merged.gguf", [], "cpu") - answer).max() <= 1e-3 * np.abs(answer).max()


@pytest.mark.parametrize(("arch", "modules"), [("llama", LLAMA), ("gpt2", ["c_attn", "c_fc"])], ids=["llama", "gpt2"])
def test_adapters_are_converted_there_and_back(tmp_path: Path, arch: str, modules: list[str]) -> None:
    """llama's rows are reordered in files, and gpt2 stores ``[in, out]``."""
    write_checkpoint(tmp_path / "hf", arch)
    hf, made, back = str(tmp_path / "hf"), tmp_path / "a.gguf", tmp_path / "back"
    halves = make_adapter(tmp_path / "a", oracle_of(arch), modules, 3)
    assert main(["lora", "convert", str(tmp_path / "a"), str(made), "--for", hf]) == 0
    assert main(["lora", "convert", str(made), str(back), "--for", hf]) == 0
    config = json.loads((back / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (3, 8.0)
    found = SafetensorsFile(back / "adapter_model.safetensors")
    assert len([*found]) == len(halves)
    for name in halves:
        if not name.endswith("lora_A"):
            continue
        prefix = f"base_model.model.{name[: -len('.lora_A')]}"
        a, b = (found.tensor(f"{prefix}.lora_{half}.weight").numpy() for half in "AB")
        expected = halves[name[:-1] + "B"] @ halves[name]
        assert np.abs(b @ a - expected).max() <= 1e-5


def test_lists_and_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_checkpoint(tmp_path / "hf", "llama")
    make_adapter(tmp_path / "style", oracle_of("llama"), ["q_proj"], 3)
    assert main(["lora", "list", str(tmp_path), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["adapters"]
    assert (row["name"], row["ranks"], row["targets"]) == ("style", [3], ["q_proj"])
    style, out = str(tmp_path / "style"), str(tmp_path / "x")
    for words, said in (
        (["merge", str(tmp_path / "hf"), out], "--lora"),
        (["merge", str(tmp_path / "hf"), f"{out}.gguf", "--lora", style, "--type", "zzz"], "'zzz'"),
        (["merge", str(tmp_path / "hf"), out, "--lora", style, "--type", "f16"], "--type"),
        (["merge", str(tmp_path / "hf"), str(tmp_path / "style"), "--lora", style], "exists already"), (["convert", style, out], "--for"),
        (["convert", str(tmp_path / "absent.gguf"), out, "--for", str(tmp_path / "hf")], "absent.gguf"),
        (["merge", style], "two paths"),
    ):  # fmt: skip
        assert main(["lora", *words]) != 0
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(("arch", "modules"), [("llama", LLAMA), ("gpt2", ["c_attn", "c_fc"])], ids=["llama", "gpt2"])
def test_merged_dora(tmp_path: Path, arch: str, modules: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """DoRA gives the rows of ``W + B A`` new lengths.  Oracle: its formula in torch."""
    write_checkpoint(tmp_path / "hf", arch)
    oracle, out, hf = oracle_of(arch), tmp_path / "merged.gguf", str(tmp_path / "hf")
    halves, random = make_adapter(tmp_path / "plain", oracle, modules, 3), np.random.default_rng(1)
    kept = {name: value.clone() for name, value in oracle.model.state_dict().items()}
    plain, given = oracle.answer(IDS).numpy(), dict(halves)
    for name, a in halves.items():
        if not name.endswith("lora_A"):
            continue
        module = oracle.model.get_submodule(name[: -len(".lora_A")])
        turns = type(module).__name__ == "Conv1D"
        weight = module.weight.detach().numpy()
        rows = (weight.T if turns else weight) + np.float32(8 / 3) * (halves[name[:-1] + "B"] @ a)
        lengths = (np.abs(random.standard_normal(len(rows))) + 0.5).astype(np.float32)
        rows *= (lengths / np.linalg.norm(rows, axis=1))[:, None]
        given[f"{name[: -len('.lora_A')]}.lora_magnitude_vector"] = lengths
        with torch.no_grad():
            module.weight.copy_(torch.from_numpy(np.ascontiguousarray(rows.T if turns else rows)))
    expected = oracle.answer(IDS).numpy()
    oracle.model.load_state_dict(kept)
    assert np.abs(expected - plain).max() > 0.1 * np.abs(expected).max()
    write_peft_adapter(tmp_path / "a", given, {"r": 3, "lora_alpha": 8, "target_modules": modules, "use_dora": True})
    assert main(["lora", "merge", hf, str(out), "--lora", str(tmp_path / "a")]) == 0
    assert np.abs(logits(out, [], "cpu") - expected).max() <= 1e-3 * np.abs(expected).max()
    capsys.readouterr()
    for words in (
        ["lora", "merge", hf, str(out), "--lora", f"{tmp_path / 'a'},{tmp_path / 'plain'}"],
        ["lora", "convert", str(tmp_path / "a"), str(tmp_path / "x.gguf"), "--for", hf],
    ):
        assert main(words) != 0
        assert "use_dora" in capsys.readouterr().err
    with LLM(hf, lora_modules={"a": tmp_path / "a"}, threads=1, kv_dtype="f32", n_ctx=96) as model:
        beside = scored(model, IDS, adapter="a")
    rows = torch.log_softmax(torch.from_numpy(expected), -1).numpy()
    assert np.abs(beside - [rows[i, IDS[i + 1]] for i in range(len(IDS) - 1)]).max() < 1e-3
