"""Models partly on a device: weights are placed as llama.cpp's options say, and answers equal the CPU's."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from counting_device import CountingDevice, counting_device
from quire import LLM, SamplingParams
from quire.engine.loading.device_choice import devices_of
from quire.engine.loading.placement import Placement
from quire.errors import RequestError, UnsupportedError
from quire.files.expressions import Expression
from quire.params.engine_options import EngineConfig
from quire.params.engine_rules import read_overrides

NAMES = (
    "token_embd.weight", "blk.0.attn_q.weight", "blk.0.ffn_up_exps.weight", "blk.1.attn_q.weight",
    "blk.1.ffn_gate_up_exps.weight", "blk.2.attn_qkv.weight[0:64]", "blk.2.ffn_down_exps.weight", "blk.2.ffn_down.weight",
    "output_norm.weight", "output.weight",
)  # fmt: skip


def on_device(placement: Placement) -> str:
    """Return a letter for each of NAMES: d (device), c (CPU), or - (unspecified)."""
    return "".join((placement.place(name) or "-")[0] for name in NAMES)


@pytest.mark.parametrize(
    ("n_gpu_layers", "n_cpu_moe", "overrides", "expected"),
    [
        (0, 0, (), "-ccccccc--"),
        (1, 0, (), "-cccccccdd"),
        (2, 0, (), "-ccccddddd"),
        (3, 0, (), "-ccddddddd"),
        (4, 0, (), "-ddddddddd"),
        (4, 2, (), "-dcdcddddd"),
        (3, 3, (), "-ccdcdcddd"),
        (4, 0, ((r"attn_qkv\.weight$", "cpu"),), "-ddddcdddd"),
        (4, 3, ((r"blk\.0\.", "cpu"), ("exps", "device")), "-ccddddddd"),
    ],
)
def test_places_of_names(
    n_gpu_layers: int, n_cpu_moe: int, overrides: tuple[tuple[str, str], ...], expected: str
) -> None:
    patterns = tuple((Expression(text, "a pattern"), place) for text, place in overrides)
    assert on_device(Placement(3, n_gpu_layers, n_cpu_moe, patterns)) == expected  # type: ignore[arg-type]


def test_contradictory_options_are_rejected() -> None:
    for given in ("exps", "=CPU", "(=CPU"):
        with pytest.raises(RequestError, match="override_tensor"):
            read_overrides([given])
    assert read_overrides(["a=CPU,b.*=CUDA0"]) == (("a", "CPU"), ("b.*", "CUDA0"))
    with pytest.raises(RequestError, match=r"device .* n_gpu_layers 0"):
        EngineConfig(device="gpu", n_gpu_layers=0)


@pytest.fixture(scope="module")
def counting() -> CountingDevice:
    return counting_device()


OPTIONS = {"threads": 2, "n_ctx": 256, "kv_dtype": "f32", "max_step_tokens": 64, "max_sequences": 8}
STORY = "Once upon a time there was a little fox who lived in the forest with her mother and her two brothers. Every morning she walked down to the river "


@pytest.fixture(scope="module")
def llms(counting: CountingDevice) -> Iterator[tuple[LLM, LLM]]:
    """The package's model with its last layers on the device and a small pool, and on the CPU."""
    with (
        LLM(device="Counting0", n_gpu_layers=3, n_blocks=10, taps=(0, 7), **OPTIONS) as mixed,  # type: ignore[arg-type]
        LLM(taps=(0, 7), **OPTIONS) as on_cpu,  # type: ignore[arg-type]
    ):
        yield mixed, on_cpu


def tokens(llm: LLM, prompts: list[str], params: list[SamplingParams]) -> list[list[list[int]]]:
    return [[list(choice.token_ids) for choice in result.choices] for result in llm.generate(prompts, params)]


def test_requests_share_are_preempted_and_found_again(llms: tuple[LLM, LLM], counting: CountingDevice) -> None:
    mixed, on_cpu = llms
    prompts = [STORY + str(i % 3) for i in range(8)]
    params = [SamplingParams(max_tokens=40, temperature=0.0, n=1 + i % 3, ignore_eos=True) for i in range(8)]
    counting.reset()
    assert tokens(mixed, prompts, params) == tokens(on_cpu, prompts, params)
    assert tokens(mixed, prompts[:2], params[:2]) == tokens(on_cpu, prompts[:2], params[:2])
    stats = mixed.stats()
    assert stats.n_preemptions > 0
    assert stats.n_prefix_hit_tokens > 0
    assert stats.n_free_blocks == stats.n_usable_blocks
    assert counting.counts().copies > 0  # choices that diverge copy a shared block


def test_a_cancelled_request_gives_its_blocks_back(llms: tuple[LLM, LLM]) -> None:
    mixed, on_cpu = llms
    params = SamplingParams(max_tokens=100, temperature=0.0, ignore_eos=True)
    stream = mixed.stream(STORY, params)
    next(iter(stream))
    stream.close()
    short = SamplingParams(max_tokens=8, temperature=0.0)
    assert tokens(mixed, [STORY], [short]) == tokens(on_cpu, [STORY], [short])
    stats = mixed.stats()
    assert stats.n_free_blocks == stats.n_usable_blocks


def test_hidden_states_and_embeddings_cross_the_boundary(llms: tuple[LLM, LLM]) -> None:
    """Hidden states of a layer on the CPU, of one on the device, and after the last norm."""
    for found, expected in zip(*(llm.hidden_states([STORY], layers=[0, 7]) for llm in llms), strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-2 * np.abs(expected).max())
    np.testing.assert_allclose(*(llm.embed([STORY]) for llm in llms), atol=2e-2)


@pytest.mark.parametrize(
    "options",
    [
        {"n_gpu_layers": 1}, {"override_tensor": (("ffn_(up|down)", "CPU"),)},
        {"override_tensor": (("output", "cpu"), ("blk", "Counting0"))},
    ],
)  # fmt: skip
def test_other_mixes(llms: tuple[LLM, LLM], counting: CountingDevice, options: dict[str, object]) -> None:
    params = [SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)]
    expected = tokens(llms[1], [STORY], params)
    with LLM(device="Counting0", **OPTIONS, **options) as mixed:  # type: ignore[arg-type]
        counting.reset()
        assert tokens(mixed, [STORY], params) == expected
    counts = counting.counts()
    assert counts.computes >= 12
    assert counts.uploads == counts.computes
    if "n_gpu_layers" in options:  # one piece of each step runs on the device
        assert counts.synchronizations == counts.computes == 12


def test_all_layers_are_one_piece_on_the_device(counting: CountingDevice) -> None:
    with LLM(device="Counting0", n_gpu_layers=99, **OPTIONS) as llm:  # type: ignore[arg-type]
        assert llm.isa is None
    with LLM(n_gpu_layers=0, **OPTIONS) as llm:  # type: ignore[arg-type]
        assert llm.config.device == "cpu"


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"override_tensor": (("no_such", "CPU"),)}, RequestError, "no_such"),
        ({"override_tensor": (("ffn", "CUDA7"),)}, UnsupportedError, "CUDA7.*CPU, Counting0"),
        ({"n_gpu_layers": 2, "kernels": "stock"}, UnsupportedError, "kernels 'stock'"),
        ({"n_gpu_layers": 2, "deterministic": True}, UnsupportedError, "only supported on the CPU, not on Counting0"),
        ({"n_gpu_layers": 2, "kv_dtype": "q8_0"}, UnsupportedError, "kv_dtype q8_0"),
    ],
)  # fmt: skip
def test_options_that_exclude_two_devices_are_rejected(
    counting: CountingDevice, options: dict[str, object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        LLM(device="Counting0", **(OPTIONS | options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "n_devices"),
    [
        ({"device": "Counting0,Counting1"}, 2),
        ({"device": "Counting0,Counting1", "tensor_split": (1, 3), "n_gpu_layers": 6}, 2),
        ({"device": "Counting1,Counting0", "override_tensor": (("ffn_down", "Counting0"), ("attn_q", "CPU"))}, 2),
        ({"device": "Counting0,Counting1", "tensor_split": (0, 1)}, 1),
    ],
)  # fmt: skip
def test_layers_on_two_devices(
    llms: tuple[LLM, LLM], counting: CountingDevice, options: dict[str, object], n_devices: int
) -> None:
    """Choices share and copy blocks, and prefixes are found, on both devices."""
    params = [SamplingParams(max_tokens=12, temperature=0.0, n=n, ignore_eos=True) for n in (1, 3)]
    expected = [tokens(llms[1], [STORY] * 2, params) for _ in range(2)]
    with LLM(**OPTIONS, **options) as llm:  # type: ignore[arg-type]
        counting.reset()
        assert [tokens(llm, [STORY] * 2, params) for _ in range(2)] == expected
        assert llm.stats().n_prefix_hit_tokens > 0
    assert sum(counting.computes(number) > 0 for number in (0, 1)) == n_devices
    assert counting.computes(1) > 0


def test_two_cards_that_are_too_small(llms: tuple[LLM, LLM], counting: CountingDevice) -> None:
    """Each gets layers in proportion to its free memory, and the CPU gets the rest."""
    params = [SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)]
    expected = tokens(llms[1], [STORY], params)
    held = [counting.held_bytes(number) for number in (0, 1)]
    with (
        counting.memory(5_000_000),
        counting.memory(4_000_000, 1),
        LLM(device="Counting0,Counting1", fit_target=0, **OPTIONS) as llm,  # type: ignore[arg-type]
    ):
        assert tokens(llm, [STORY], params) == expected
        taken = [counting.held_bytes(number) - before for number, before in zip((0, 1), held, strict=True)]
    assert 3_000_000 < taken[0] <= 5_000_000
    assert 2_000_000 < taken[1] <= 4_000_000


def test_devices_are_chosen_by_the_options(counting: CountingDevice) -> None:
    def chosen(**given: object) -> list[str]:
        return [device.name for device in devices_of(EngineConfig(**given))]  # type: ignore[arg-type]

    both, named = ["Counting0", "Counting1"], {"device": "counting0,Counting1"}
    assert chosen(device="cpu", tensor_split=(1.0, 2.0)) == ["CPU"]
    assert chosen(**named) == both
    assert chosen(**named, split_mode="none") == both[:1]
    assert chosen(**named, main_gpu=1) == both[1:]
    assert chosen(**named, tensor_split=(0.0, 2.0)) == both[1:]
    assert chosen(device="Counting1") == both[1:]
    for given, words in [
        ({"main_gpu": 2}, r"device 2: expected 0 to 1 \(Counting0, Counting1\)"),
        (
            {"tensor_split": (1.0, 1.0, 1.0)},
            r"3 numbers for 2 devices \(Counting0, Counting1\)",
        ),
    ]:
        with pytest.raises(UnsupportedError, match=words):
            chosen(**named, **given)
    with pytest.raises(UnsupportedError, match="leave out the CPU"):
        chosen(device="Counting0,CPU")
    with pytest.raises(RequestError, match="main_gpu"):
        EngineConfig(tensor_split=(1.0, 1.0), main_gpu=1)
    with pytest.raises(RequestError, match="tensor_split"):
        EngineConfig(tensor_split=(0.0,))
