"""A model on two devices, one that counts and the CPU: the same numbers as the CPU's alone, and what a step asks of the device."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from counting_device import CountingDevice, counting_device
from quire._native.core import find_device
from quire._native.graph import Executor
from quire.checkpoints.conversion import convert
from quire.engine.loading.placement import Placement
from quire.gguf import GGUFReader
from quire.models import load_model
from quire.selftest.models import STEPS, TOLERANCE, model_names, run_model
from quire.selftest.results import deviation_of, worst_step
from tiny_checkpoints import write_checkpoint

Mix = Callable[[str], str | None]


@pytest.fixture
def counting() -> CountingDevice:
    device = counting_device()
    device.reset()
    return device


def layer_of(name: str) -> int | None:
    found = re.search(r"blk\.(\d+)\.", name)
    return int(found[1]) if found else None


def last_layers(name: str) -> str | None:
    layer = layer_of(name)
    if layer is None:
        return "device" if name.startswith(("output", "cls")) else None
    return "cpu" if layer == 0 else "device"


def first_layers(name: str) -> str | None:
    """The other way round: what is made on the device is read from there at once, and at the end."""
    return "device" if layer_of(name) == 0 or name.startswith("token_embd") else "cpu"


def feed_forward(name: str) -> str | None:
    return "cpu" if ".ffn_" in name else "device"


def every_other_matrix(name: str) -> str | None:
    """As many boundaries as there can be; what stays on the device passes the CPU by."""
    return "cpu" if re.search(r"attn_(q|output)\.|ffn_down|ffn_gate_inp", name) else "device"


MIXES: dict[str, Mix] = {"last layers": last_layers, "every other matrix": every_other_matrix}
MORE_MIXES: dict[str, Mix] = {"first layers": first_layers, "feed-forward on the CPU": feed_forward}


@pytest.mark.parametrize("name", model_names())
def test_every_architecture_equals_the_cpu(name: str, counting: CountingDevice) -> None:
    """Dense, experts, windows, latent rows, biases by distance, states, an encoder."""
    expected = run_model(name, find_device("CPU"), "stock")
    more = MORE_MIXES if name in ("qwen3moe", "deepseek2", "mamba2") else {}
    for mix, places in (MIXES | more).items():
        counting.reset()
        found = run_model(name, counting.device, "auto", places)
        deviation, where = worst_step(found, expected, TOLERANCE)
        assert deviation <= TOLERANCE, (mix, where)
        assert counting.counts().computes > 0
        assert counting.launches("MUL_MAT") > 0


def layers_in_sequence(name: str) -> str | None:
    """The embedding on the CPU, the first layer on one device, all else on the other."""
    layer = layer_of(name)
    if layer is None:
        return "device1" if name.startswith(("output", "cls")) else None
    return "device" if layer == 0 else "device1"


def feed_forward_on_the_other(name: str) -> str | None:
    """As many boundaries between devices as there can be; what stays on a device passes the host by."""
    return "device1" if ".ffn_" in name else "device"


@pytest.mark.parametrize("name", ["qwen3", "qwen3moe", "gemma3", "deepseek2", "bloom", "mamba2", "bert"])
@pytest.mark.parametrize("mix", [layers_in_sequence, feed_forward_on_the_other])
def test_two_devices_equal_the_cpu(name: str, mix: Callable[[str], str | None], counting: CountingDevice) -> None:
    expected = run_model(name, find_device("CPU"), "stock")
    found = run_model(name, counting.device, "auto", mix, [counting.other])
    assert worst_step(found, expected, TOLERANCE)[0] <= TOLERANCE
    assert counting.computes(0) > 0
    has_feed_forward = name != "mamba2"
    assert counting.computes(1) > 0 or (mix is feed_forward_on_the_other and not has_feed_forward)


def test_layers_are_one_piece(counting: CountingDevice) -> None:
    run_model("qwen3", counting.device, "auto", last_layers)
    assert counting.counts().computes == len(STEPS)


def logits(path: Path, ids: list[int], device: CountingDevice | None, n_cpu_moe: int = 0) -> npt.NDArray[np.float32]:
    """A prompt and one token, with half of the layers on the device, or all but the experts of some."""
    model = load_model(GGUFReader(path))
    layers, n_layer, trace = model.cache, model.config.n_layer, model.trace()
    has_rows, has_state = any(spec.n_kv_head for spec in layers), any(spec.states for spec in layers)
    placement = Placement(n_layer, n_layer + 1 if n_cpu_moe else 1 + n_layer // 2, n_cpu_moe)
    executor = Executor(
        trace, device.device if device else find_device("CPU"), n_blocks=4, n_states=2 if has_state else 0, threads=1,
        kv_dtype="f32", kernels="auto" if device else "stock", max_rows=32, max_sequences=1,
        places=placement.places(trace.placed_names) if device else {},
    )  # fmt: skip
    source: dict[str, Any] = {}
    if any(spec.of_source for spec in layers):
        executor.encode(ids[:10], slots=list(range(32, 42)), row_begin=[0, 10], tables=[[1]])
        source = {"source_tables": [[1]], "n_source": [10]}

    def step(begin: int, end: int) -> npt.NDArray[np.float32]:
        rows = list(range(begin, end))
        return executor.run(
            ids[begin:end], positions=rows, slots=[64 + p for p in rows] if has_rows else [],
            logit_rows=list(range(len(rows))), row_begin=[0, len(rows)], n_kv=[end],
            tables=[[2, 3]] if has_rows else [], states=[1] if has_state else [], **source,
        )  # fmt: skip

    return np.concatenate([step(0, len(ids) - 1), step(len(ids) - 1, len(ids))])


@pytest.mark.parametrize("name", ["t5", "jamba", "gemma3n", "llama4"])
def test_shared_layers_follow_the_layer_that_writes(name: str, tmp_path: Path, counting: CountingDevice) -> None:
    """An encoder's rows, states beside experts, rows that later layers attend to again, two kinds of cache."""
    write_checkpoint(tmp_path / name, name)
    convert(tmp_path / name, tmp_path / f"{name}.gguf", "f32")
    ids = np.random.default_rng(1).integers(0, 256, 24).tolist()
    expected = logits(tmp_path / f"{name}.gguf", ids, None)
    for n_cpu_moe in (0, 99):
        counting.reset()
        found = logits(tmp_path / f"{name}.gguf", ids, counting, n_cpu_moe)
        assert deviation_of(found, expected) <= 2e-3
        assert counting.launches("MUL_MAT") > 0
        assert counting.launches("MUL_MAT_ID") == 0 or n_cpu_moe == 0
