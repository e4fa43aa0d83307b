"""Sizes for the available memory.

Oracles: the rules of ``EngineConfig`` worked out by hand for models of round sizes; files as proc(5) and the kernel's
documents of control groups describe them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from quire.engine import LLM
from quire.engine.loading.loader import packaged_model
from quire.engine.loading.memory import available_bytes
from quire.engine.loading.sizes import GroupNeeds, ModelNeeds, Sizes, choose_sizes
from quire.errors import CapacityError
from quire.params.engine_options import EngineConfig

MIB, GIB = 1 << 20, 1 << 30
# 1 GiB of weights, 4 MiB for a block (128 KiB for a token), 256 KiB for a token of a step.
MODEL = ModelNeeds("model.gguf", 32768, GIB, 4 * MIB, 256 * 1024)


def sizes(available: int, needs: ModelNeeds = MODEL, **given: Any) -> Sizes:
    return choose_sizes(needs, EngineConfig(**given), available)


def test_with_much_memory_sizes_reach_the_models_limits() -> None:
    # 32 sequences of 1024 tokens are 1024 blocks, as many as the context of its training.
    assert sizes(1000 * GIB) == Sizes(n_ctx=32768, n_blocks=1025, max_sequences=32, max_step_tokens=512)
    small = replace(MODEL, n_ctx_train=512)
    assert sizes(1000 * GIB, small) == Sizes(n_ctx=512, n_blocks=32 * 16 + 1, max_sequences=32, max_step_tokens=512)


def test_with_less_memory_the_cache_has_half_of_what_the_weights_leave() -> None:
    # 2 GiB are left: 1 GiB is 256 blocks, one of them the null block.
    assert sizes(3 * GIB) == Sizes(n_ctx=255 * 32, n_blocks=256, max_sequences=31, max_step_tokens=512)
    # 256 MiB are left: 32 blocks; a step has an eighth, 32 MiB, which is 128 tokens.
    assert sizes(GIB + 256 * MIB) == Sizes(n_ctx=31 * 32, n_blocks=32, max_sequences=3, max_step_tokens=128)


@pytest.mark.parametrize("available", [GIB + n * MIB for n in (100, 200, 500, 1000, 5000, 50_000)])
@pytest.mark.parametrize("trained", [600, 4096, 131072])
def test_never_more_than_a_fair_part(available: int, trained: int) -> None:
    chosen = sizes(available, replace(MODEL, n_ctx_train=trained))
    left = available - GIB
    # A context of 512 tokens takes precedence over the fair part.
    assert chosen.n_blocks * 4 * MIB <= max(left // 2, (512 // 32 + 1) * 4 * MIB)
    assert chosen.n_blocks * 4 * MIB < left
    assert chosen.n_ctx <= (chosen.n_blocks - 1) * 32
    assert chosen.max_step_tokens * 256 * 1024 <= max(left // 8, 32 * 256 * 1024)


def test_recurrent_states_have_a_quarter_at_most() -> None:
    # 32 sequences, each with its own state and a copy, and the zero state; 65 MiB are taken before the cache's half.
    recurrent = replace(MODEL, state_bytes=MIB)
    assert sizes(3 * GIB, recurrent) == Sizes(
        n_ctx=246 * 32, n_blocks=247, max_sequences=30, max_step_tokens=512, n_states=65
    )
    # A quarter of 2 GiB holds 12 states of 40 MiB.
    large = sizes(3 * GIB, replace(MODEL, state_bytes=40 * MIB))
    assert (large.n_states, large.max_sequences) == (12, 6)
    assert sizes(3 * GIB, replace(MODEL, state_bytes=40 * MIB), max_sequences=10).n_states == 21
    with pytest.raises(CapacityError, match=r"\b40 sequences .* 2048 MiB"):
        sizes(3 * GIB, replace(MODEL, state_bytes=40 * MIB), max_sequences=40)


# Gemma 3 of 1B parameters: of 26 layers 22 see the last 512 tokens.  A block of a layer takes 32 KiB.
GEMMA = replace(
    MODEL, block_bytes=26 * 32 * 1024, limited=(GroupNeeds(22 * 32 * 1024, 512),), n_ctx_train=32768, token_bytes=1024
)
GEMMA_ROWS = 4 * 32768 + 22 * 512  # rows that a context needs, summed over layers


def test_windows_need_only_their_reach() -> None:
    one = sizes(1000 * GIB, GEMMA, n_ctx=32768, max_sequences=1)
    assert (one.n_ctx, one.n_blocks) == (32768, 1025)
    assert GEMMA_ROWS * 1024 <= one.cache_bytes <= 1.1 * GEMMA_ROWS * 1024
    # A window, the partial block before it and a step of 512 tokens, which begin anywhere in a block: 34 blocks.
    assert one.cache_bytes == (4 * 1024 + 22 * 34) * 32 * 1024
    # 300 MiB are left, half of them for the cache: all of the context, where full layers alone would have 180 blocks.
    small = sizes(GIB + 330 * MIB, GEMMA)
    assert small.n_ctx == 32768
    assert small.cache_bytes <= 165 * MIB
    with pytest.raises(CapacityError, match="n_ctx 32768"):
        sizes(GIB + 330 * MIB, replace(GEMMA, limited=()), n_ctx=32768)
    # Windows count as full layers if the number of blocks is given, or graphs are planned for the whole cache.
    assert sizes(1000 * GIB, GEMMA, n_blocks=100).cache_bytes == 0
    assert sizes(1000 * GIB, replace(GEMMA, paged=False)).cache_bytes == 0


def test_explicit_sizes_are_kept() -> None:
    given = {"n_ctx": 1000, "n_blocks": 77, "max_sequences": 5, "max_step_tokens": 700}
    assert sizes(3 * GIB, **given) == Sizes(**given)
    assert sizes(3 * GIB, n_blocks=11).n_ctx == 320
    # A context that the user sets may exceed the fair part.
    assert sizes(3 * GIB, n_ctx=300 * 32).n_blocks == 301
    # If graphs are planned for the whole cache, it has room for two contexts.
    assert sizes(1000 * GIB, replace(MODEL, paged=False, n_ctx_train=4096)).n_blocks == 257


@pytest.mark.parametrize(
    ("available", "given", "words"),
    [
        (GIB, {}, "weights of model.gguf need 1024 MiB, but 1024 MiB are available"),
        (GIB // 2, {}, "weights of model.gguf"),
        (GIB + 60 * MIB, {}, "a context of 512 tokens"),
        (2 * GIB, {"n_ctx": 8192}, "n_ctx 8192 needs .* 1024 MiB are left"),
        (2 * GIB, {"n_blocks": 257}, "n_blocks 257 needs"),
    ],
)
def test_sizes_that_do_not_fit_are_rejected(available: int, given: dict[str, int], words: str) -> None:
    with pytest.raises(CapacityError, match=words):
        sizes(available, **given)


def test_a_model_that_is_opened_with_little_memory() -> None:
    file_bytes = packaged_model().stat().st_size
    with LLM(threads=1, memory_bytes=file_bytes + 8 * MIB) as llm:
        assert llm.stats().n_usable_blocks < 32
        assert llm.n_ctx <= llm.stats().n_usable_blocks * 32
        assert llm.generate("Once")[0].text
    with pytest.raises(CapacityError, match="weights of tiny-chat"):
        LLM(threads=1, memory_bytes=file_bytes - 1)


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = {"proc/meminfo": "MemTotal:       16000000 kB\nMemFree: 1 kB\nMemAvailable:    8000 kB\n"}
STAT = "anon 5\nactive_file 300\ninactive_file 700\ntotal_active_file 3000\ntotal_inactive_file 7000\n"


def test_memory_of_the_machine(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) is None
    assert available_bytes(tree(tmp_path, MEMINFO)) == 8000 * 1024


def test_control_groups_of_version_2_allow_less(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/user/app/memory."
    files = {"proc/self/cgroup": "0::/user/app\n", f"{group}max": "50000\n", f"{group}current": "21000\n"}
    root = tree(tmp_path, {**MEMINFO, **files, f"{group}stat": STAT})
    # Pages of files, 1000 bytes, can be dropped.
    assert available_bytes(root) == 50000 - 20000
    (root / f"{group}max").write_text("max\n")
    assert available_bytes(root) == 8000 * 1024
    # The enclosing group counts, too.
    outer = "sys/fs/cgroup/user/memory."
    tree(root, {f"{outer}max": "40000\n", f"{outer}current": "39000\n", f"{outer}stat": STAT})
    assert available_bytes(root) == 2000
    (root / f"{outer}current").write_text("90000\n")
    assert available_bytes(root) == 0


def test_control_groups_of_version_1_allow_less(tmp_path: Path) -> None:
    # In a container the path is the host's; the container's own group is the root.
    group = "sys/fs/cgroup/memory/memory."
    files = {"proc/self/cgroup": "4:cpu,memory:/docker/abc\n3:cpuset:/x\n", f"{group}limit_in_bytes": "90000\n"}
    root = tree(tmp_path, {**MEMINFO, **files, f"{group}usage_in_bytes": "30000\n", f"{group}stat": STAT})
    assert available_bytes(root) == 90000 - 20000
    (root / f"{group}limit_in_bytes").write_text(f"{2**63 - 4096}\n")
    assert available_bytes(root) == 8000 * 1024


def test_available_memory_of_this_machine() -> None:
    left = available_bytes()
    if left is None:
        pytest.skip("this system does not tell how much memory is left")
    assert 0 < left < 2**50
