"""Peak memory while a model is loaded, relative to the size of its file: never two copies of the weights."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from quire.gguf import GGUFWriter

pytestmark = [
    pytest.mark.slow,  # the sanitizers need memory of their own
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

N_LAYER, HIDDEN, FFN, N_VOCAB = 4, 1024, 8192, 1024
CHILD = """
import sys
from quire.params.engine_options import EngineConfig
from quire.engine.loading.loader import open_model
def high_water():
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
import quire.models, quire.tokenizer
before = high_water()
model, load, cache = sys.argv[1:]
open_model(model, EngineConfig(threads=2, load=load, n_ctx=64, n_blocks=8, max_step_tokens=32, packed_cache=cache or None))
print(high_water() - before)
"""


@pytest.fixture(scope="module", params=["q8_0", "q4_0"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama large enough that a few megabytes of other memory do not matter."""
    path = tmp_path_factory.mktemp("model") / "model.gguf"
    matrices = {"attn_q": (HIDDEN, HIDDEN), "attn_k": (HIDDEN, HIDDEN), "attn_v": (HIDDEN, HIDDEN)}
    matrices |= {"attn_output": (HIDDEN, HIDDEN), "ffn_gate": (FFN, HIDDEN), "ffn_up": (FFN, HIDDEN)}
    matrices |= {"ffn_down": (HIDDEN, FFN)}
    tensors = {"token_embd.weight": (request.param, (N_VOCAB, HIDDEN)), "output_norm.weight": ("f32", (HIDDEN,))}
    for i in range(N_LAYER):
        tensors |= {f"blk.{i}.{name}.weight": (request.param, shape) for name, shape in matrices.items()}
        tensors |= {f"blk.{i}.{name}.weight": ("f32", (HIDDEN,)) for name in ("attn_norm", "ffn_norm")}
    with GGUFWriter(path, "llama") as writer:
        sizes = {"context_length": 64, "embedding_length": HIDDEN, "block_count": N_LAYER, "feed_forward_length": FFN}
        sizes |= {"attention.head_count": 16, "attention.head_count_kv": 16, "vocab_size": N_VOCAB}
        for key, number in sizes.items():
            writer.set(f"llama.{key}", number, "u32")
        writer.set("llama.attention.layer_norm_rms_epsilon", 1e-5, "f32")
        for name, (dtype, shape) in tensors.items():
            writer.add_tensor(name, dtype, shape)
        for name, (dtype, shape) in tensors.items():
            bits = {"f32": 32, "q8_0": 8.5, "q4_0": 4.5}[dtype]
            writer.write(name, np.ones(int(np.prod(shape) * bits / 8), np.uint8))
    return path


def peak_bytes(model: Path, load: str, cache: Path | None) -> int:
    command = [sys.executable, "-c", CHILD, str(model), load, "" if cache is None else str(cache)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("load", ["mmap", "copy"])
def test_a_load_takes_little_more_than_the_file(model: Path, load: str) -> None:
    size = model.stat().st_size
    assert 0.85 * size < peak_bytes(model, load, None) < 1.15 * size


@pytest.mark.parametrize("is_young", [False, True])
@pytest.mark.parametrize("load", ["mmap", "copy"])
def test_the_cache_of_packed_weights_takes_no_more(model: Path, load: str, is_young: bool, tmp_path: Path) -> None:
    """Also for a file just written, whose time stamp does not prove that it is unchanged."""
    size = model.stat().st_size
    if is_young:
        os.utime(model, (time.time() + 60,) * 2)
    for start in ("first", "next"):
        assert peak_bytes(model, load, tmp_path) < 1.15 * size, start
    assert list(tmp_path.glob("*.packed"))
