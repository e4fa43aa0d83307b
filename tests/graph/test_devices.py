"""Graphs of a device that is not the CPU, by one that counts what is asked of it: the same numbers as NumPy's and as the
CPU's graphs, which make all scores; and what a step costs."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from counting_device import CountingDevice, counting_device
from device_steps import BYTES_OF_TOKEN, Sequences, check_steps, filled, tokens_of
from quire import LLM, SamplingParams
from quire._native.engine import DecoderStats
from quire._native.kv import CacheLayout
from quire.engine.loading.loader import packaged_model
from quire.errors import CapacityError
from quire.gguf import GGUFReader
from quire.models import load_model
from small_model import VARIANTS, Variant, numpy_forward

Array = npt.NDArray[np.float32]
DOCUMENT = Path(__file__).parents[2] / "docs" / "devices.md"


@pytest.fixture
def counting() -> CountingDevice:
    return counting_device()


@pytest.mark.parametrize("lacks", [(), ("FLASH_ATTN_EXT",)])
@pytest.mark.parametrize("name", VARIANTS)
def test_steps_of_every_composition_equal_numpy(name: str, lacks: tuple[str, ...], counting: CountingDevice) -> None:
    with counting.without(*lacks):
        made = Sequences(VARIANTS[name], counting)
        counting.reset()
        check_steps(made, VARIANTS[name])
    assert (counting.launches("FLASH_ATTN_EXT") == 0) == bool(lacks)
    assert (counting.launches("SOFT_MAX") == 0) == (not lacks and not VARIANTS[name].experts)


@pytest.mark.parametrize("kv_dtype", ["f16", "bf16"])
def test_half_precision_cache(kv_dtype: str, counting: CountingDevice) -> None:
    made = Sequences(Variant(), counting, kv_dtype=kv_dtype)
    one = made.add(tokens_of(50, 0))
    expected = numpy_forward(made.weights, Variant(), made.tokens[one])
    found = np.concatenate([made.step([(one, n)])[0] for n in (33, 1, 16)])
    bound = {"f16": 4e-3, "bf16": 2e-2}[kv_dtype]
    np.testing.assert_allclose(found, expected, atol=bound * np.abs(expected).max())


@pytest.mark.parametrize(("n_streams", "n_tokens"), [(1, 1000), (32, 250)])
def test_a_step_is_sent_once_and_reads_the_live_cache(n_streams: int, n_tokens: int, counting: CountingDevice) -> None:
    """The pool is many times as large as what is live."""
    made = filled(counting, n_streams, n_tokens, 1024)
    counting.reset()
    made.step([(i, 1) for i in range(n_streams)])
    counts = counting.counts()
    assert (counts.computes, counts.uploads, counts.downloads, counts.synchronizations) == (1, 1, 1, 1)
    assert counts.cache_bytes <= 1.5 * n_streams * n_tokens * BYTES_OF_TOKEN


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(("n_streams", "n_tokens"), [(1, 1000), (32, 60)])
def test_a_step_matches_the_documentation(n_streams: int, n_tokens: int, own: bool, counting: CountingDevice) -> None:
    """The table of docs/devices.md, of the package's model: what a step that decodes asks of a device."""
    with counting.own_operations() if own else nullcontext():
        row, live, cache_bytes = asked_of_a_device(n_streams, n_tokens, counting)
    assert cache_bytes <= 1.5 * live
    assert (
        f"| {n_streams} x {n_tokens} | {'own' if own else 'ggml'} {row}"
        in DOCUMENT.read_text(encoding="utf-8").splitlines()
    )


def asked_of_a_device(n_streams: int, n_tokens: int, counting: CountingDevice) -> tuple[str, float, int]:
    """Cells of the table; bytes of the cache that are live, and that are read."""
    model = load_model(GGUFReader(packaged_model()))
    made = Sequences(
        Variant(), counting, 512, traced=model.trace(), kv_dtype="f16", max_rows=64, max_sequences=32, threads=1
    )
    made.free = list(range(511, 0, -1))
    for i in range(n_streams):
        made.add(tokens_of(n_tokens, i))
        for left in range(n_tokens - 1, 0, -64):
            made.step([(i, min(left, 64))])
    counting.reset()
    made.step([(i, 1) for i in range(n_streams)])
    c = counting.counts()
    live = n_streams * n_tokens * CacheLayout(model.cache, "f16").block_bytes / 32
    found = (
        c.launches, c.computes, c.uploads, c.upload_bytes, c.downloads, c.download_bytes, c.synchronizations,
        f"{c.cache_bytes / live:.2f}",
    )  # fmt: skip
    return "| " + " | ".join(str(each) for each in found) + " |", live, c.cache_bytes


@pytest.mark.parametrize(
    ("blocks", "n_reads"),
    [
        (list(range(1, 4096)), 1),  # from the end on: a stretch of the pool is read where it lies
        ([*range(4088, 4096), 7], 3),  # copies are made and read
    ],
)
def test_few_live_blocks_of_a_large_pool(blocks: list[int], n_reads: int, counting: CountingDevice) -> None:
    """A step reads blocks that lie far up, or far apart, and not the whole pool."""
    made = Sequences(Variant(), counting, 4096)
    made.free = blocks
    made.add(tokens_of(200, 0))
    made.step([(0, 96)])
    made.step([(0, 96)])
    counting.reset()
    found = made.step([(0, 1)])[0]
    expected = numpy_forward(made.weights, Variant(), made.tokens[0][:193])
    np.testing.assert_allclose(found[0], expected[-1], atol=1e-4 * np.abs(expected).max())
    assert counting.counts().cache_bytes <= n_reads * 512 * BYTES_OF_TOKEN
    assert (counting.launches("GET_ROWS") > 4) == (n_reads > 1)


def test_a_step_without_memory_fails_alone(counting: CountingDevice) -> None:
    """Without flash attention a step takes more than was there at first; asking for it gives back what was there."""
    made = Sequences(Variant(), counting, 64)
    one = made.add(tokens_of(1100, 0))
    two = made.add(tokens_of(20, 1))
    for _ in range(11):
        made.step([(one, 96)])
    made.step([(two, 10)])
    with counting.without("FLASH_ATTN_EXT"):
        counting.arm("allocation", 1)
        with pytest.raises(CapacityError, match=r"the compute buffer .* Counting0"):
            made.step([(one, 44)])
    expected = numpy_forward(made.weights, Variant(), made.tokens[two])[10:]
    np.testing.assert_allclose(made.step([(two, 10)])[0], expected, atol=1e-4 * np.abs(expected).max())
    made.done[one] -= 44
    with counting.without("FLASH_ATTN_EXT"):
        found = made.step([(one, 44)])[0]
    expected = numpy_forward(made.weights, Variant(), made.tokens[one])[-44:]
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())


def test_graphs_are_made_when_they_are_needed_and_kept(counting: CountingDevice) -> None:
    made = Sequences(Variant(), counting, 256)
    made.free = list(range(255, 0, -1))
    made.add(tokens_of(300, 0))
    before = made.executor.n_graphs
    for _ in range(40):
        made.step([(0, 1)])
    assert made.executor.n_graphs == before + 1


def test_blocks_are_copied_on_the_device(counting: CountingDevice) -> None:
    """K and V of each layer, in the queue of the graphs; what meets an earlier copy waits for it."""
    made = Sequences(Variant(), counting)
    tokens = tokens_of(60, 0)
    first, second = made.add(tokens), made.add(tokens)
    made.step([(first, 50)])
    counting.reset()
    for old, new in zip(made.tables[first], made.tables[second], strict=True):
        made.executor.copy_block(0, old, new)
    counts = counting.counts()
    assert (counts.copies, counts.copied_bytes) == (2 * 2 * 2, 2 * 32 * BYTES_OF_TOKEN)
    assert (counts.uploads, counts.downloads, counts.computes, counts.synchronizations) == (0, 0, 0, 0)
    made.executor.copy_block(0, made.tables[second][0], made.free[0])
    assert counting.counts().synchronizations == 1
    made.tables[second][0] = made.free[0]
    made.done[second] = 50
    expected = numpy_forward(made.weights, Variant(), tokens)[50:]
    for s in (first, second):
        np.testing.assert_allclose(made.step([(s, 10)])[0], expected, atol=1e-4 * np.abs(expected).max())


def greedy_answers(
    prompts: list[str], params: list[SamplingParams], **options: object
) -> tuple[list[object], DecoderStats]:
    with LLM(threads=1, n_ctx=256, kv_dtype="f32", **options) as llm:  # type: ignore[arg-type]
        results = [*llm.generate(prompts, params), *llm.generate(prompts[:2], params[:2])]
        return [[choice.token_ids for choice in result.choices] for result in results], llm.stats()


def test_requests_in_a_small_pool_share_and_copy_as_on_the_cpu(counting: CountingDevice) -> None:
    """Choices that share a prompt and part ways within a block, and preemption; the oracle is the CPU."""
    tail = "Once upon a time there was a little fox who lived in the forest with his mother and "
    prompts = [tail + str(i % 4) for i in range(8)]
    params = [SamplingParams(max_tokens=24, temperature=0.0, n=1 + i % 3, ignore_eos=True) for i in range(8)]
    expected, _ = greedy_answers(prompts, params, kernels="stock")
    counting.reset()
    found, stats = greedy_answers(prompts, params, device="Counting0", n_blocks=16)
    assert found == expected
    assert stats.n_preemptions > 0
    counts = counting.counts()
    assert counts.copies > 0


def test_a_full_pool_gives_an_answer_blocks_that_lie_together(counting: CountingDevice) -> None:
    """After answers of many lengths, eight at a time, whose blocks are kept; where they are reused by age alone, such an
    answer reads 760 tokens a step in the mean."""
    with LLM(packaged_model(), device="Counting0", threads=1, n_blocks=97, max_sequences=8, n_ctx=1024) as llm:

        def answer(prompts: list[str], n_tokens: list[int]) -> None:
            params = [SamplingParams(max_tokens=n, temperature=0.0, ignore_eos=True) for n in n_tokens]
            llm.generate(prompts, params)

        for r in range(6):
            fox = [
                f"{r} {i} " + "Once upon a time there was a little fox. " * (2 + (5 * i + 3 * r) % 9) for i in range(8)
            ]
            answer(fox, [4 + 17 * i % 60 for i in range(8)])
        assert llm.stats().n_evictions > 0
        n_before = llm.stats().n_steps
        counting.reset()
        for i in range(4):
            answer([f"again {i} " + "Where did the fox live? " * 12], [60])
        n_read = counting.counts().cache_bytes / (llm.stats().n_steps - n_before)
        token_bytes = CacheLayout(load_model(GGUFReader(packaged_model())).cache, "f16").block_bytes / 32
    assert n_read <= 2.1 * 256 * token_bytes  # 78 to 137 are live; 256 or 512 are read, as eight answers end together
