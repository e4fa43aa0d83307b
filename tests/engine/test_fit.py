"""The fit on a device: predicted memory equals used memory, and a small device is slower, never an error."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from click.testing import CliRunner
from counting_device import CountingDevice, counting_device
from quire import LLM, SamplingParams
from quire._native.graph import Executor
from quire.checkpoints.conversion import convert
from quire.cli.info import command as info
from quire.engine.loading.device_choice import device_at_hand
from quire.engine.loading.fit import Fit
from quire.engine.loading.loader import fit_of, open_model, packaged_model
from quire.engine.loading.placement import Placement
from quire.errors import CapacityError
from quire.gguf import GGUFReader
from quire.hardware.verdicts import Verdict, keep_verdict
from quire.params.engine_options import EngineConfig
from quire.selftest.models import model_names, tiny_model
from tiny_checkpoints import write_checkpoint

MIB = 1 << 20
SIZES = {"n_ctx": 256, "max_step_tokens": 64, "max_sequences": 8, "kv_dtype": "f16"}
STORY = "Once upon a time there was a little fox who lived in the forest with her mother and "


@pytest.fixture
def counting() -> CountingDevice:
    return counting_device()


@pytest.mark.parametrize("name", model_names())
def test_measured_memory_equals_used_memory(name: str, counting: CountingDevice) -> None:
    """True for a model that is all on the device, and for one with half of its layers there."""
    model = tiny_model(name)
    trace, n_layer = model.trace(), model.config.n_layer
    has_state = any(spec.states for spec in model.cache)
    half = Placement(n_layer, 1 + n_layer // 2).places(trace.placed_names)
    for places in ({}, half):
        options = {
            "n_blocks": 40, "n_states": 3 if has_state else 0, "max_rows": 64, "max_sequences": 4, "places": places,
        }  # fmt: skip
        before = counting.held_bytes()
        (predicted,), _ = Executor.measure(trace, counting.device, **options)  # type: ignore[arg-type]
        assert counting.held_bytes() == before
        executor = Executor(trace, counting.device, threads=1, **options)  # type: ignore[arg-type]
        taken = counting.held_bytes() - before
        assert sum(predicted[use] for use in ("weights", "cache", "compute")) == pytest.approx(taken, rel=0.03)
        told = executor.device_bytes[0]
        assert all(told[use] == predicted[use] for use in ("weights", "cache", "compute"))
        del executor


ARCHITECTURES = (
    "qwen3", "llama", "gemma3", "qwen3moe", "deepseek2", "gpt-oss", "mamba2", "jamba", "t5", "qwen3next", "bert", "phi3",
)  # fmt: skip


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_small_device_gets_the_layers_that_fit(name: str, tmp_path: Path, counting: CountingDevice) -> None:
    """Dense models, experts, states and an encoder use as much memory as predicted, and no more than there is."""
    write_checkpoint(tmp_path / name, name)
    path = tmp_path / f"{name}.gguf"
    convert(tmp_path / name, path, "f32")
    config = EngineConfig(device="Counting0", fit_target=0, n_ctx=64, max_step_tokens=65, max_sequences=2, threads=1)
    reader = GGUFReader(path)
    whole = fit_of(reader, path, config).uses[0].model_bytes
    for share in (1.0, 0.6):
        room = int(whole * share)
        with counting.memory(room):
            fit = fit_of(reader, path, config)
            before = counting.held_bytes()
            opened = open_model(path, config)
            taken = counting.held_bytes() - before
            opened.decoder.close()
        predicted = sum(use.model_bytes for use in fit.uses)
        assert taken <= room
        assert predicted == pytest.approx(taken, rel=0.03)
        assert bool(fit.note) == (share < 1), fit.note
        del opened


def test_a_checkpoint_is_converted_for_its_device(tmp_path: Path, counting: CountingDevice) -> None:
    """The fit is found from shapes, before a tensor is converted; the result equals that of a file."""
    write_checkpoint(tmp_path / "m", "qwen3")
    convert(tmp_path / "m", tmp_path / "m.gguf", "f32")
    params = SamplingParams(max_tokens=6, temperature=0.0)
    given = {"n_ctx": 64, "max_step_tokens": 32, "max_sequences": 2, "threads": 1, "kv_dtype": "f32"}

    def answer(path: Path, **options: object) -> list[int]:
        with LLM(path, **(given | options)) as llm:  # type: ignore[arg-type]
            return list(llm.generate([[5, 9, 44, 17]], [params])[0].choices[0].token_ids)

    expected = answer(tmp_path / "m.gguf", device="cpu")
    before = counting.held_bytes()
    counting.reset()
    assert answer(tmp_path / "m", device="Counting0", fit_target=0) == expected
    with counting.memory(150_000):
        assert answer(tmp_path / "m", device="Counting0", fit_target=0) == expected
    assert counting.counts().computes > 0
    assert counting.held_bytes() == before


def tokens(llm: LLM) -> list[int]:
    params = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
    return list(llm.generate([STORY], [params])[0].choices[0].token_ids)


def fit_of_package(**given: object) -> Fit:
    path = packaged_model()
    config = EngineConfig(device="Counting0", fit_target=0, **(SIZES | given))  # type: ignore[arg-type]
    return fit_of(GGUFReader(path), path, config)


@pytest.mark.parametrize("share", [1.0, 0.7, 0.4, 0.0])
def test_answers_equal_those_of_the_cpu(
    share: float, counting: CountingDevice, caplog: pytest.LogCaptureFixture
) -> None:
    use = fit_of_package().uses[0]
    least = use.model_bytes - use.cache_bytes * 7 // 8  # room for one context instead of 8
    with LLM(threads=1, **SIZES) as on_cpu:  # type: ignore[arg-type]
        expected = tokens(on_cpu)
    counting.reset()
    with (
        caplog.at_level(logging.WARNING, "quire"),
        counting.memory(use.model_bytes if share == 1 else int(least * share)),
        LLM(device="Counting0", fit_target=0, threads=1, **SIZES) as llm,  # type: ignore[arg-type]
    ):
        assert tokens(llm) == expected
        assert llm.config.device == ("Counting0" if share else "cpu")
    said = [record.getMessage() for record in caplog.records if "[fit]" in record.getMessage()]
    assert len(said) == (share < 1.0)
    assert all(words in said[0] for words in (["running on the CPU"] if share == 0 else ["of 9 layers"]) if said)
    assert (counting.counts().computes > 0) == (share > 0)


@pytest.mark.parametrize("largest", [None, 2_500_000])
def test_arrays_share_buffers(largest: int | None, counting: CountingDevice) -> None:
    """The fewest buffers that the device allows: drivers round each up, and may limit their number and size."""
    given = {"device": "Counting0", "fit_target": 0, "threads": 1, **SIZES, "max_step_tokens": 32}
    with LLM(**{**given, "device": "cpu"}) as on_cpu:  # type: ignore[arg-type]
        expected = tokens(on_cpu)
    with counting.largest_buffer(largest or 0), LLM(**given) as llm:  # type: ignore[arg-type]
        counting.reset()
        assert tokens(llm) == expected
        use = fit_of_package(max_step_tokens=32).uses[0]
        assert counting.n_buffers() <= (5 if largest is None else use.model_bytes // largest * 2)


def test_the_cache_shrinks_before_layers_go(counting: CountingDevice) -> None:
    """The cache gets all the memory that the layers leave."""
    given = {"n_ctx": None, "fit_ctx": 128}
    whole = fit_of_package(**given)
    assert whole.placement is None
    use = whole.uses[0]
    with counting.memory(use.model_bytes - use.cache_bytes // 4):
        less = fit_of_package(**given)
    assert less.placement is None
    assert 128 <= less.sizes.n_ctx < whole.sizes.n_ctx or less.sizes.n_blocks < whole.sizes.n_blocks
    with counting.memory(use.weights_bytes * 2 // 3):
        least = fit_of_package(**given)
    assert least.placement is not None
    assert 0 < least.placement.n_gpu_layers < 9
    assert least.sizes.n_ctx >= 128


def test_explicit_options_are_kept(counting: CountingDevice) -> None:
    whole = fit_of_package()
    with counting.memory(whole.uses[0].model_bytes // 2):
        assert fit_of_package(n_gpu_layers=2).n_gpu_layers == 2
        fit = fit_of_package(n_gpu_layers=8, n_blocks=9)
        assert fit.sizes.n_blocks == 9
        assert 0 < (fit.n_gpu_layers or 0) < 8
        with pytest.raises(CapacityError):
            LLM(device="Counting0", fit="off", threads=1, **SIZES)  # type: ignore[arg-type]


def test_experts_go_before_layers(tmp_path: Path, counting: CountingDevice) -> None:
    write_checkpoint(tmp_path / "m", "qwen3moe")
    path = tmp_path / "m.gguf"
    convert(tmp_path / "m", path, "f32")
    config = EngineConfig(device="Counting0", fit_target=0, n_ctx=64, max_step_tokens=32, max_sequences=2, threads=1)
    reader = GGUFReader(path)
    use = fit_of(reader, path, config).uses[0]
    experts = sum(info.size_bytes for info in reader.tensors if "exps" in info.name and "blk.0." in info.name)
    with counting.memory(use.model_bytes - experts // 2):
        fit = fit_of(reader, path, config)
    assert fit.placement is not None
    assert (fit.placement.n_cpu_moe, fit.placement.n_gpu_layers) == (1, fit.placement.n_layer + 1)
    assert "the experts of 1" in fit.note


def test_a_device_that_passed_its_check_is_the_default(
    counting: CountingDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("QUIRE_DETERMINISTIC", raising=False)

    def chosen(**given: object) -> str:
        return device_at_hand(EngineConfig(**given))  # type: ignore[arg-type]

    assert chosen() == "cpu"
    keep_verdict(counting.device, Verdict(False, "differs", "Counting0", ""))
    assert chosen() == "cpu"
    keep_verdict(counting.device, Verdict(True, "agrees", "Counting0", ""))
    assert chosen() == "Counting0"
    for_cpu: list[dict[str, object]] = [
        {"device": "cpu"}, {"n_gpu_layers": 0}, {"deterministic": True}, {"kernels": "stock"}, {"draft": "a.gguf"},
        {"kv_dtype": "q8_0"}, {"packed_cache": "folder"},
    ]  # fmt: skip
    assert [chosen(**given) for given in for_cpu] == ["cpu"] * len(for_cpu)
    with LLM(threads=1, fit_target=0, **SIZES) as llm:  # type: ignore[arg-type]
        assert llm.config.device == "Counting0"


def test_info_shows_the_fit(counting: CountingDevice) -> None:
    whole = fit_of_package(n_ctx=512, max_step_tokens=None, max_sequences=None)
    arguments = [str(packaged_model()), "--fit", "--device", "Counting0", "--fit-target", "0", "-c", "512"]
    use = whole.uses[0]
    room = (use.model_bytes - use.cache_bytes) * 3 // 10
    with counting.memory(room):
        shown = CliRunner().invoke(info, arguments)
        found = json.loads(CliRunner().invoke(info, [*arguments, "--json"]).stdout)["fit"]
    assert shown.exit_code == 0, shown.output
    assert "--device Counting0 --gpu-layers " in shown.output
    n = found["options"]["gpu-layers"]
    assert 0 < n < 9
    assert found["tensors"]["output_norm.weight"] == "Counting0"
    assert found["tensors"]["blk.0.attn_q.weight"] == "CPU"
    assert found["devices"][0]["model_bytes"] <= room
    assert found["layers_cached"] == {"CPU": 9 - n, "Counting0": n - 1}
