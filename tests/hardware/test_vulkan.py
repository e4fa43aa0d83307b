"""A device end to end: ggml's Vulkan backend on the CPU (ci/devices).  Oracle: ggml's operators on the CPU."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import quire.models
from quire import LLM, GenerationResult, SamplingParams, Tensor
from quire._native.core import module_version
from quire._native.graph import Executor
from quire._native.quant import dequantize, quantize
from quire.checkpoints.conversion import convert
from quire.errors import CapacityError, UnsupportedError
from quire.gguf import GGUFReader
from quire.hardware import find_device, module_files, modules
from quire.models import load_model
from quire.selftest.gate_process import compare
from quire.selftest.models import model_names
from quire.selftest.operations import OPERATIONS
from quire.selftest.results import deviation_of
from tiny_checkpoints import CONFIGS, write_checkpoint
from vulkan_device import vulkan, vulkan_module

pytestmark = [pytest.mark.device, pytest.mark.python_only]
TOLERANCE = 1e-2  # relative to the norm of the logits; Vulkan's products round activations to F16
PREFIX = "Once upon a time there was a little fox who lived in the forest with her mother and her two brothers. Every morning "
PROMPTS = ["Tell me a story about a fox", PREFIX + "she walked to the river", "The bird said", PREFIX + "it rained"]


@pytest.fixture(scope="module", autouse=True)
def device() -> object:
    return vulkan()


@pytest.fixture(scope="module")
def llms() -> Iterator[tuple[LLM, LLM]]:
    """The package's model on the device, with a pool too small for all requests, and with ggml's operators on the CPU."""
    options = {"n_ctx": 256, "kv_dtype": "f16", "deterministic": False, "max_step_tokens": 32, "max_sequences": 8}
    with (
        LLM(device="vulkan", n_blocks=20, **options) as on_device,  # type: ignore[arg-type]
        LLM(kernels="stock", threads=2, **options) as on_cpu,  # type: ignore[arg-type]
    ):
        yield on_device, on_cpu


def check_same(found: GenerationResult, expected: GenerationResult) -> int:
    """Check that tokens agree up to a near tie on the CPU (logprobs within 0.1); return how many agree."""
    ours, theirs = found.choices[0], expected.choices[0]
    assert theirs.logprobs is not None
    for i, (a, b) in enumerate(zip(ours.token_ids, theirs.token_ids, strict=False)):
        if a != b:
            of_tokens = dict(theirs.logprobs[i].top)
            assert of_tokens[b] - of_tokens[a] < 0.1, (i, a, b)
            return i
    assert len(ours.token_ids) == len(theirs.token_ids)
    return len(ours.token_ids)


def test_32_requests_in_a_small_pool(llms: tuple[LLM, LLM]) -> None:
    on_device, on_cpu = llms
    prompts = [PROMPTS[i % 4] + " and" * (i // 4) for i in range(32)]
    params = SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True, logprobs=4)
    found, expected = on_device.generate(prompts, params), on_cpu.generate(prompts, params)
    n_same = sum(check_same(a, b) for a, b in zip(found, expected, strict=True))
    assert n_same > 75  # of 96
    stats = on_device.stats()
    assert stats.n_prefix_hit_tokens > 0
    assert stats.n_free_blocks == stats.n_usable_blocks


@pytest.mark.parametrize("options", [{"n_gpu_layers": 5}, {"override_tensor": (("ffn_down", "CPU"),)}])
def test_a_model_split_between_device_and_cpu(llms: tuple[LLM, LLM], options: dict[str, object]) -> None:
    _, on_cpu = llms
    params = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True, logprobs=4)
    with LLM(device="vulkan", n_ctx=256, n_blocks=20, max_step_tokens=32, max_sequences=8, **options) as mixed:  # type: ignore[arg-type]
        found = mixed.generate(PROMPTS, params)
    n_same = sum(check_same(a, b) for a, b in zip(found, on_cpu.generate(PROMPTS, params), strict=True))
    assert n_same > 18  # of 24


def test_a_repeated_prompt_hits_the_prefix_cache(llms: tuple[LLM, LLM]) -> None:
    on_device, _ = llms
    params = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
    prompt = PREFIX * 2 + "they sang"
    first = on_device.generate(prompt, params)[0]
    before = on_device.stats().n_prefix_hit_tokens
    again = on_device.generate(prompt, params)[0]
    assert on_device.stats().n_prefix_hit_tokens >= before + 32
    assert again.choices[0].token_ids == first.choices[0].token_ids


def test_closing_a_stream_cancels_its_request(llms: tuple[LLM, LLM]) -> None:
    on_device, _ = llms
    before = on_device.stats().n_computed_tokens
    stream = on_device.stream("Tell me a story", SamplingParams(max_tokens=200, temperature=0.0, ignore_eos=True))
    next(iter(stream))
    stream.close()
    for _ in range(600):
        stats = on_device.stats()
        if stats.n_free_blocks == stats.n_usable_blocks:
            break
        time.sleep(0.1)
    assert stats.n_free_blocks == stats.n_usable_blocks
    # The blocks are free after a finished request, too; without cancellation 200 tokens would have been computed.
    assert stats.n_computed_tokens - before < 100
    after = on_device.generate("The bird said", SamplingParams(max_tokens=2, temperature=0.0))[0]
    assert after.choices[0].token_ids


def use_all(path: Path) -> None:
    """Make a file use all experts and indexed tokens, as a device that rounds differently may choose others at a near tie."""
    counts = {"expert_used_count": "expert_count", "expert_group_used_count": "expert_group_count"}
    metadata, content = GGUFReader(path).metadata, bytearray(path.read_bytes())
    for key in metadata:
        name = key.partition(".")[2]
        if name in counts and metadata.type_of(key) == "u32":
            value = metadata[key.replace(name, counts[name])]
        elif name == "attention.indexer.top_k":
            value = 1 << 16
        else:
            continue
        at = content.index(struct.pack("<Q", len(key)) + key.encode()) + 8 + len(key)
        content[at : at + 8] = struct.pack("<II", 4, value)  # type 4 is u32
    path.write_bytes(content)


def logits_of(path: Path, device: object, ids: list[int]) -> np.ndarray:
    """Return the logits of one sequence computed in two steps, or in one for an encoder."""
    place = device if device.kind != "cpu" else None  # type: ignore[attr-defined]
    reader = GGUFReader(path)
    model = load_model(reader, (lambda tensor: tensor.to(place)) if place else (lambda tensor: tensor))
    has_rows, has_state = any(spec.n_kv_head for spec in model.cache), any(spec.states for spec in model.cache)
    executor = Executor(
        model.trace(), device, n_blocks=3, n_states=2 if has_state else 0, threads=1, kv_dtype="f32", kernels="stock",  # type: ignore[arg-type]
        max_rows=32, max_sequences=1,
    )  # fmt: skip

    source: dict[str, object] = {}
    if any(spec.of_source for spec in model.cache):
        executor.encode(ids[:9], slots=list(range(32, 41)), row_begin=[0, 9], tables=[[1]])
        source = {"source_tables": [[1]], "n_source": [9]}

    def step(begin: int, end: int) -> np.ndarray:
        rows = list(range(begin, end))
        return executor.run(
            ids[begin:end], positions=rows, slots=[32 + p for p in rows] if has_rows else [], logit_rows=list(range(len(rows))),
            row_begin=[0, len(rows)], n_kv=[end], tables=[[1, 2]] if has_rows else [], states=[1] if has_state else [],
            **source,  # type: ignore[arg-type]
        )  # fmt: skip

    n = len(ids)
    return step(0, n) if model.config.is_encoder else np.concatenate([step(0, n - 1), step(n - 1, n)])


# The architectures that add most to the self-test models: other kinds of attention, positions, norms and experts, encoders,
# and some that need the CPU.  `ci/devices --whole` runs all.
SOME = [
    "apertus", "arctic", "baichuan-alibi", "bitnet", "chatglm", "codegen", "cohere2", "command-r-plus", "dbrx",
    "deepseek32", "exaone4", "gemma3n", "gemma4-moe", "glm4moe", "gptj", "gptneox",
    "granitemoe", "jais", "jina-bert-v2", "lfm2", "llama4", "minicpm3", "mistral4", "mixtral", "modern-bert", "mpt",
    "mt5", "nemotron", "nomic-bert-moe", "olmo2", "olmoe", "openelm", "phi2", "phi3-short", "phimoe", "qwen2moe",
    "qwen2vl", "qwen3next", "smallthinker", "stablelm", "starcoder2", "step35", "t5-gated", "t5encoder",
    "xlm-roberta-rank",
]  # fmt: skip


# Architectures with recurrent operations of sizes that devices have no kernels for.
CPU_NEEDED = {
    "bamba", "falcon_h1", "falcon_mamba", "granitehybrid", "granitehybrid_dense", "jamba", "kimi-linear", "mamba",
    "mamba2", "minimax-01", "minimax-text-01", "nemotron_h", "nemotron_h_moe", "qwen3next", "rwkv6",
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS if os.environ.get("QUIRE_DEVICES_WHOLE") == "1" else SOME)
def test_an_architectures_tiny_model(tmp_path: Path, name: str) -> None:
    write_checkpoint(tmp_path / name, name)
    path = tmp_path / f"{name}.gguf"
    convert(tmp_path / name, path, "f32")
    if name != "phimoe":  # a threshold drops some of its scores, and with more experts more of them are near it
        use_all(path)
    ids = np.random.default_rng(1).integers(0, 256, 24).tolist()
    expected = logits_of(path, find_device("cpu"), ids)
    if name in CPU_NEEDED:
        with pytest.raises(UnsupportedError, match=r"\[\w+\] .*Vulkan0"):
            logits_of(path, vulkan(), ids)
        return
    found = logits_of(path, vulkan(), ids)
    # ggml's CPU backend reads GELU from an F16 table.
    tolerance = 2 * TOLERANCE if "gelu" in str(CONFIGS[name]).lower() or name.startswith("t5encoder") else TOLERANCE
    assert deviation_of(found, expected) <= tolerance


# Products of some matrix types only, as lavapipe compiles each other one for a minute.  ggml's Vulkan has no Mamba 1.
GATE = [
    case.name for case in OPERATIONS if case.operation not in ("linear", "selective_scan") and case.name != "moe q8_0"
] + ["linear f32", "linear bias", "linear q8_0", "linear q4_k"]


@pytest.mark.parametrize("name", [*GATE, *(f"model {name}" for name in model_names())])
def test_a_case_of_the_self_test(name: str) -> None:
    result = compare(name, vulkan())
    assert result.state == "agrees", result


@pytest.mark.parametrize("dtype", ["q4_0", "q8_0", "q4_k", "q6_k"])
def test_a_tensor_survives_the_way_to_the_device_and_back(dtype: str) -> None:
    device = vulkan()
    values = np.random.default_rng(1).standard_normal((6, 768)).astype(np.float32)
    tensor = quantize(values, dtype)
    there = tensor.to(device)
    assert there.device == device
    assert np.array_equal(there.to("cpu").numpy(), tensor.numpy())
    assert np.array_equal(dequantize(there.to("cpu")), dequantize(tensor))


def test_exhausted_device_memory_is_a_capacity_error() -> None:
    device = vulkan()
    with pytest.raises(CapacityError, match="Vulkan0"):
        Tensor.empty("f32", [1 << 38], device)
    empty = Tensor.empty("f32", [4, 64], "vulkan")  # the device still works
    assert empty.device == device


def with_module(folder: Path, content: bytes) -> subprocess.CompletedProcess[str]:
    (folder / "libggml-vulkan.so").write_bytes(content)
    return subprocess.run(
        [sys.executable, "-m", "quire", "run", "--device", "vulkan", "-n", "2", "Hello"], capture_output=True, text=True,
        timeout=300, check=False,
        env={**os.environ, "QUIRE_MODULE_PATH": str(folder), "PYTHONPATH": str(Path(quire.__file__).parent.parent)},
    )  # fmt: skip


@pytest.mark.parametrize("fault", ["truncated", "from another build"])
def test_a_broken_copy_of_the_module_is_refused(tmp_path: Path, fault: str) -> None:
    content = vulkan_module().read_bytes()
    version = module_version().encode()
    assert version in content
    broken = content[: len(content) - 4096] if fault == "truncated" else content.replace(version, version[:-1] + b"!")
    done = with_module(tmp_path, broken)
    assert done.returncode == 1
    assert fault in done.stderr
    assert done.stderr.count("\n") <= 2


def test_a_second_copy_of_the_module_offers_no_second_device(tmp_path: Path) -> None:
    copy = tmp_path / "libggml-vulkan-2.so"
    copy.write_bytes(vulkan_module().read_bytes())
    before = {report.path for report in modules.load_modules()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module_files, "module_folders", lambda: [(tmp_path, "QUIRE_MODULE_PATH")])
        (report,) = modules.load_modules()
    assert str(copy) not in before
    assert report.state == "not used"
    assert report.reason == f"{vulkan_module()} takes precedence"
