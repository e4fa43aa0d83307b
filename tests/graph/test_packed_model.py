"""Weights packed at load, on the package's model: what is kept of the file's memory changes no bit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import quire
from quire import GGUFReader
from quire._native import graph
from quire._native.core import find_device
from quire.models import load_model

PACKAGED = Path(quire.__file__).parent / "data" / "tiny-chat-q8_0.gguf"
IDS = list(range(100, 140))


def executor(reader: GGUFReader, repack: str, **options: object) -> graph.Executor:
    trace = load_model(reader).trace()
    return graph.Executor(trace, find_device("cpu"), n_blocks=4, threads=1, kv_dtype="f32", repack=repack, **options)


def logits(found: graph.Executor) -> np.ndarray:
    n = len(IDS)
    rows = list(range(n))
    return found.run(
        IDS, positions=rows, slots=[32 + i for i in rows], logit_rows=rows, row_begin=[0, n], n_kv=[n], tables=[[1, 2]]
    )


def test_ways_to_pack_give_the_same_bits():
    kept = executor(GGUFReader(PACKAGED), "keep")
    expected = logits(kept)
    assert 7_000_000 < kept.memory_bytes["packed"] < 9_000_000
    for load in ("mmap", "copy"):
        found = executor(GGUFReader(PACKAGED, load), "release")
        np.testing.assert_array_equal(logits(found), expected)
    plain = executor(GGUFReader(PACKAGED), "no")
    assert plain.memory_bytes["packed"] == 0
    # ggml's products round activations too, with scales of 16 bits.
    assert np.abs(logits(plain) - expected).max() < 0.02 * np.abs(expected).max()


def test_kept_weights_can_be_read_again():
    reader = GGUFReader(PACKAGED, "copy")
    before = reader.tensor("blk.0.ffn_down.weight").numpy().copy()
    executor(reader, "keep")
    np.testing.assert_array_equal(reader.tensor("blk.0.ffn_down.weight").numpy(), before)


def test_stock_kernels_pack_nothing():
    assert executor(GGUFReader(PACKAGED), "keep", kernels="stock").memory_bytes["packed"] == 0


def test_unknown_ways_are_refused():
    with pytest.raises(quire.UnsupportedError, match="repack"):
        executor(GGUFReader(PACKAGED), "maybe")


LOCKED = """
from quire import LLM, SamplingParams, CapacityError
try:
    with LLM(load="lock", threads=1, n_ctx=256) as model:
        locked = [int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmLck")][0]
        print(locked, len(model.generate("Once", SamplingParams(max_tokens=4))[0].token_ids))
except CapacityError as error:
    print(error)
"""


@pytest.mark.slow  # the sanitizers lock nothing
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_locked_weights_are_locked_once():
    done = subprocess.run([sys.executable, "-c", LOCKED], capture_output=True, text=True, check=True)
    if "locked" in done.stdout:
        pytest.skip(f"this user may not lock so much: {done.stdout.strip()}")
    locked_kib, n_tokens = map(int, done.stdout.split())
    # The file has 8 MB; packed weights take the place of what they were made of.
    assert 7_000 < locked_kib < 10_000
    assert n_tokens == 4
