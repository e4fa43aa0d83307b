"""A model on two devices, one that counts and the CPU: the same numbers as the CPU's alone, and what a step asks of the device."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

import pytest
from counting_device import CountingDevice, counting_device
from quire._native.core import find_device
from quire.parity.models import TOLERANCE, model_names, run_model
from quire.parity.results import deviation_of

Place = Literal["cpu", "device"]
Mix = Callable[[str], Place | None]


@pytest.fixture
def counting() -> CountingDevice:
    device = counting_device()
    device.reset()
    return device


def layer_of(name: str) -> int | None:
    found = re.search(r"blk\.(\d+)\.", name)
    return int(found[1]) if found else None


def last_layers(name: str) -> Place | None:
    layer = layer_of(name)
    if layer is None:
        return "device" if name.startswith(("output", "cls")) else None
    return "cpu" if layer == 0 else "device"


def first_layers(name: str) -> Place | None:
    """The other way round: what is made on the device is read from there at once, and at the end."""
    return "device" if layer_of(name) == 0 or name.startswith("token_embd") else "cpu"


def feed_forward(name: str) -> Place | None:
    return "cpu" if ".ffn_" in name else "device"


def every_other_matrix(name: str) -> Place | None:
    """As many borders as there can be; what stays on the device passes the CPU by."""
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
        assert deviation_of(found, expected) <= TOLERANCE, mix
        assert counting.counts().computes > 0
        assert counting.launches("MUL_MAT") > 0


def test_layers_are_one_piece(counting: CountingDevice) -> None:
    steps = 3
    run_model("qwen3", counting.device, "auto", last_layers)
    assert counting.counts().computes == steps
