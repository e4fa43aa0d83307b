"""Several ranks, here threads of one process, run shares of a model: their logits are transformers' stored ones."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from quire._native import graph, parallel
from quire._native.core import find_device
from quire._native.parallel import RankGroup
from quire.checkpoints.conversion import convert
from quire.errors import DeviceError, UnsupportedError
from quire.gguf import GGUFReader
from quire.models import load_model
from quire.nn.shares import SPLIT, ShareReader
from quire.nn.stages import stages_of
from test_models import REFERENCES, STEP, TOLERANCE, Array, Runner, close
from tiny_checkpoints import CONFIGS, write_checkpoint

# Tiny configurations whose heads two ranks can split, and kinds of layers that only a pipeline can divide.
HALVED = [
    "llama", "mistral", "qwen2", "qwen3", "gemma3", "smollm3", "exaone4", "cohere2", "starcoder2", "phi2", "chatglm",
    "gptneox-sequential", "granitehybrid_attention", "qwen3moe", "glm4moe", "dots1", "bailingmoe2", "nemotron", "gpt-oss",
]  # fmt: skip
STAGED = [
    "llama", "qwen3", "gemma2", "gemma3n", "phi3", "gpt2", "bloom", "qwen3moe", "gpt-oss", "deepseek2-v3", "qwen3next",
    "mamba2", "rwkv7", "falcon_h1", "lfm2",
]  # fmt: skip
# The configuration of an architecture and the number of ranks that divides its heads.
SPLITS = {
        "afmoe": ("afmoe", 2), "apertus": ("apertus", 2), "arcee": ("arcee", 5),
    "bailingmoe": ("bailingmoe", 2), "bailingmoe2": ("bailingmoe2", 2), "chatglm": ("chatglm", 2), "codeshell":
    ("codeshell", 2), "cohere2": ("cohere2", 2), "cohere2moe": ("cohere2moe", 2), "command-r": ("command-r", 3),
    "cwm": ("cwm", 3), "dbrx": ("dbrx", 5), "deepseek": ("deepseek", 3), "deepseek2-ocr": ("deepseek2-ocr", 3),
    "dots1": ("dots1", 2), "ernie4_5": ("ernie4_5", 2), "ernie4_5-moe": ("ernie4_5-moe", 3), "exaone": ("exaone",
    2), "exaone-moe": ("exaone-moe", 2), "exaone4": ("exaone4", 2), "falcon": ("falcon-new", 2), "flint": ("flint",
    3), "gemma": ("gemma", 3), "gemma2": ("gemma2", 3), "gemma3": ("gemma3-vl", 2), "glm4": ("glm4", 3), "glm4moe":
    ("glm4moe", 2), "gpt-oss": ("gpt-oss", 2), "gpt2": ("gpt2", 3), "gptj": ("codegen", 2), "gptneo": ("gptneo", 3),
    "gptneox": ("gptneox-sequential", 2), "granite": ("granitehybrid_attention", 2), "granite_swa": ("granite_swa",
    3), "granitemoe": ("aria", 3), "hrm_text": ("hrm_text", 2), "hunyuan-dense": ("hunyuan-dense", 3),
    "hunyuan-moe": ("hunyuan-moe", 3), "hunyuan_vl": ("hunyuan_vl", 3), "hy_v3": ("hy_v3", 2), "hyperclovax":
    ("hyperclovax", 5), "internlm2": ("internlm2", 2), "jais2": ("jais2", 2), "kolibri1": ("kolibri1", 3), "laguna":
    ("laguna", 2), "llama": ("helium", 2), "llama4": ("llama4", 2), "maincoder": ("maincoder", 3), "mellum":
    ("mellum", 3), "mimo2": ("mimo2", 3), "minicpm": ("minicpm", 2), "mistral3": ("mistral3", 3), "muse-glimmer":
    ("muse-glimmer", 2), "nanbeige": ("nanbeige", 2), "nanochat": ("nanochat", 3), "nemotron": ("nemotron", 2),
    "olmo": ("olmo", 5), "opt": ("opt", 3), "orion": ("orion", 3), "ouro": ("ouro", 2), "paddleocr": ("paddleocr",
    3), "pangu-embedded": ("pangu-embedded", 2), "persimmon": ("persimmon", 3), "phi2": ("phi2", 2), "phi3":
    ("phi3-short", 3), "phimoe": ("phimoe", 3), "plamo": ("plamo", 3), "qwen2": ("mimo", 2), "qwen2moe":
    ("qwen2moe", 3), "qwen2vl": ("qwen2_5_omni", 3), "qwen3": ("qwen3", 2), "qwen3moe": ("qwen3moe", 2), "qwen3vl":
    ("qwen3vl", 3), "qwen3vlmoe": ("qwen3_omni_moe", 3), "seed_oss": ("seed_oss", 2), "smollm3": ("smollm3", 2),
    "solar": ("solar", 3), "spark2_5": ("spark2_5", 2), "stablelm": ("stablelm", 3), "starcoder": ("starcoder", 5),
    "starcoder2": ("starcoder2", 2), "step35": ("step35", 2), "vaultgemma": ("vaultgemma", 3), "xglm": ("xglm", 3),
    "xverse": ("xverse", 5),
}  # fmt: skip
Make = Callable[[str], Path]


class RankRunner(Runner):
    """One rank's share of a model, with a cache of its own."""

    def __init__(self, path: Path, group: RankGroup, threads: int = 1) -> None:
        reader = GGUFReader(path)
        share = ShareReader(reader, group.part, group.n_split) if group.n_split > 1 else reader
        model = load_model(share, group=group if group.n_split > 1 else None)
        self.group = group
        self.has_rows = any(spec.n_kv_head for spec in model.cache)
        self.has_state = any(spec.states for spec in model.cache)
        self.state, self.decoder_start, self.n_ctx = 0, None, model.config.n_ctx_train
        trace = model.trace(None)
        if group.n_stages > 1:
            stages = stages_of(parallel.weight_names(trace), model.config.n_layer, group.n_stages)
            trace = parallel.staged(trace, group, stages)
        self.executor = graph.Executor(
            trace, find_device("cpu"), n_blocks=9, n_states=33, threads=threads, kv_dtype="f32", kernels="cpu",
            max_rows=STEP, max_sequences=4,
        )  # fmt: skip


def together(path: Path, n_split: int, n_stages: int, use: Callable[[RankRunner], Array], threads: int = 1) -> Array:
    """Call ``use`` on every rank at the same time; return rank 0's result, which all have if there is one stage."""
    n = n_split * n_stages
    memory = mmap.mmap(-1, RankGroup.needed_bytes(n, exchange_bytes=16 << 20))
    groups = [RankGroup(memory, rank=rank, n_split=n_split, n_stages=n_stages) for rank in range(n)]
    runners = [RankRunner(path, group, threads) for group in groups]
    results: dict[int, Array] = {}
    errors: list[Exception] = []

    def run(rank: int) -> None:
        try:
            results[rank] = use(runners[rank])
        except Exception as error:
            groups[rank].fail(str(error))
            errors.append(error)

    ranks = [threading.Thread(target=run, args=(rank,)) for rank in range(n)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    if errors:
        raise errors[0]
    for part in range(1, n_split if n_stages == 1 else 1):
        assert np.array_equal(results[0], results[part])
    return results[0]


def check(make: Make, name: str, n_split: int, n_stages: int) -> None:
    stored = np.load(REFERENCES / "models" / f"{name}.npz")
    prompt, greedy = stored["prompt"].tolist(), stored["greedy"].tolist()
    close(together(make(name), n_split, n_stages, lambda rank: rank.logits(prompt)), stored["logits"])
    text = [*prompt[:12], *greedy]

    def decoded(rank: RankRunner) -> Array:
        rows = [rank.logits(text[:12])[-1:]]
        return np.concatenate([*rows, *(rank.logits(text[:end], end - 1) for end in range(13, 23))])

    assert together(make(name), n_split, n_stages, decoded).argmax(1).tolist() == greedy[:11]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Make:
    folder = tmp_path_factory.mktemp("tiny")

    def make(name: str) -> Path:
        out = folder / f"{name}.gguf"
        if not out.is_file():
            write_checkpoint(folder / name, name)
            convert(folder / name, out, "f32")
        return out

    return make


@pytest.mark.parametrize("name", HALVED)
def test_two_ranks_split_a_model(tiny: Make, name: str) -> None:
    check(tiny, name, 2, 1)


@pytest.mark.parametrize("name", STAGED)
def test_two_stages_run_a_model(tiny: Make, name: str) -> None:
    check(tiny, name, 1, 2)


def test_two_stages_of_two_ranks(tiny: Make) -> None:
    check(tiny, "qwen3moe", 2, 2)


@pytest.mark.parametrize(("name", "n"), [("gemma2", 3), ("phi3", 3), ("falcon", 5), ("arcee", 5)])
def test_heads_that_two_ranks_cannot_split(tiny: Make, name: str, n: int) -> None:
    with pytest.raises(UnsupportedError, match="heads"):
        together(tiny(name), 2, 1, lambda rank: rank.logits([1]))
    check(tiny, name, n, 1)


@pytest.mark.slow
@pytest.mark.fuzz
@pytest.mark.parametrize("arch", sorted(SPLITS))
def test_every_architecture_that_can_be_split(tiny: Make, arch: str) -> None:
    name, n = SPLITS[arch]
    assert GGUFReader(tiny(name)).metadata.text("general.architecture") == arch
    check(tiny, name, n, 1)


def test_every_architecture_that_can_be_split_has_a_configuration() -> None:
    assert set(SPLITS) == SPLIT


@pytest.mark.parametrize("dtype", ["q8_0", "f16"])
def test_blocks_of_columns_stay_whole(tmp_path: Path, dtype: str) -> None:
    """An MLP of 96 columns is split into 32 and 64, because blocks have 32."""
    write_checkpoint(tmp_path / "llama", "llama")
    path = tmp_path / f"{dtype}.gguf"
    convert(tmp_path / "llama", path, dtype)
    ids = list(range(3, 40))
    widths = [ShareReader(GGUFReader(path), part, 2).tensor_info("blk.0.ffn_up.weight").shape[0] for part in (0, 1)]
    assert widths == ([32, 64] if dtype == "q8_0" else [48, 48])
    expected = Runner(path, "cpu").logits(ids)
    found = together(path, 2, 1, lambda rank: rank.logits(ids), threads=2)
    close(found, expected, 20 * TOLERANCE if dtype == "q8_0" else TOLERANCE)  # inputs are rounded to 8 bits


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bloom", "architecture bloom"),
        ("mamba2", "architecture mamba2"),
        ("stablelm-parallel", "blk.0.attn_q_norm.weight"),
        ("llama", "3 processes"),
    ],
)
def test_models_that_cannot_be_split_are_refused_by_name(tiny: Make, name: str, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        ShareReader(GGUFReader(tiny(name)), 0, 3 if name == "llama" else 2)


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="2 layers"):
        stages_of(["blk.0.attn_q.weight"], 2, 3)


def test_a_rank_that_fails_ends_the_waits_of_the_others(tiny: Make) -> None:
    def use(rank: RankRunner) -> Array:
        if rank.group.rank == 1:
            raise ValueError("out of order")
        return rank.logits([1, 2, 3])

    memory = mmap.mmap(-1, RankGroup.needed_bytes(2))
    group = RankGroup(memory, rank=0, n_split=2)
    other = threading.Timer(0.05, RankGroup(memory, rank=1, n_split=2).fail, ("out of order",))
    runner = RankRunner(tiny("llama"), group)
    other.start()
    with pytest.raises(DeviceError, match="out of order"):
        runner.logits([1, 2, 3])
    with pytest.raises(ValueError, match="out of order"):
        together(tiny("llama"), 2, 1, use)
    other.join()


def test_groups_that_cannot_be_are_refused() -> None:
    memory = mmap.mmap(-1, 4096)
    with pytest.raises(Exception, match="rank 2"):
        RankGroup(memory, rank=2, n_split=2)
    with pytest.raises(Exception, match="4096 bytes"):
        RankGroup(memory, rank=0, n_split=2)


def test_configurations_exist() -> None:
    assert {*HALVED, *STAGED} <= set(CONFIGS)
