"""Recurrent models with all layers on a counting device: states stay in the device's memory.

Oracle: the same model on the CPU, which tests/models compares with transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from counting_device import CountingDevice, counting_device
from decoder_client import Client
from decoder_client import params as native_params
from quire._native.engine import Decoder, DecoderConfig, VocabInfo
from quire._native.testing import ScriptedDrafter
from quire.checkpoints.conversion import convert
from quire.engine import LLM
from quire.engine.loading.loader import fit_of, open_model
from quire.errors import UnsupportedError
from quire.gguf import GGUFReader
from quire.models import load_model
from quire.params.engine_options import EngineConfig
from quire.params.sampling import SamplingParams
from tiny_checkpoints import write_checkpoint

# Convolutions, delta rules, Mamba 1 and 2 with and without attention, RWKV, linear attention.
NAMES = ["lfm2", "qwen35", "mamba", "mamba2", "jamba", "falcon_h1", "rwkv7", "minimax-01"]
GREEDY = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
OPTIONS = {"kv_dtype": "f32", "threads": 1, "n_ctx": 256, "max_step_tokens": 48, "max_sequences": 6}
Opened = Callable[..., LLM]


def texts() -> list[list[int]]:
    """Return ids of random bytes, in several lengths."""
    random = np.random.default_rng(11)
    return [random.integers(0, 256, n).tolist() for n in (40, 3, 77, 33, 64, 1)]


@pytest.fixture
def counting() -> CountingDevice:
    return counting_device()


@pytest.fixture(params=NAMES)
def opened(request: pytest.FixtureRequest, tmp_path: Path, counting: CountingDevice) -> Iterator[Opened]:
    write_checkpoint(tmp_path / "model", request.param)
    models: list[LLM] = []

    def make(*, on_device: bool = True, **options: object) -> LLM:
        where = {"device": "Counting0", "fit_target": 0} if on_device else {"kernels": "stock"}
        models.append(LLM(tmp_path / "model", **{**OPTIONS, **where, **options}))  # type: ignore[arg-type]
        return models[-1]

    yield make
    for model in models:
        model.close()


def answers(model: LLM, prompts: list[list[int]], params: SamplingParams = GREEDY) -> list[list[int]]:
    return [list(choice.token_ids) for result in model.generate(prompts, params) for choice in result.choices]


def test_answers_equal_the_cpus(opened: Opened, counting: CountingDevice) -> None:
    """Chunked prompts beside decoding; each step needs at most one upload and one download."""
    on_device, on_cpu = opened(), opened(on_device=False)
    assert on_device.isa is None  # no operation runs on the CPU
    expected = answers(on_cpu, texts())
    counting.reset()
    assert answers(on_device, texts()) == expected
    counts = counting.counts()
    assert counts.uploads == counts.computes > 24
    logits = [model.logits(texts()[2]) for model in (on_device, on_cpu)]
    assert np.linalg.norm(logits[0] - logits[1]) <= 1e-3 * np.linalg.norm(logits[1])


def test_states_are_found_and_copied_on_the_device(opened: Opened, counting: CountingDevice) -> None:
    first, more = texts()[2], texts()[0]
    on_device, on_cpu = opened(snapshot_tokens=32), opened(on_device=False)
    turn = first + answers(on_cpu, [first])[0] + more
    assert answers(on_device, [first]) == answers(on_cpu, [first])
    counting.reset()
    for prompt in (turn, turn, first[:64] + more):
        before = on_device.stats().n_prefix_hit_tokens
        assert answers(on_device, [prompt]) == answers(on_cpu, [prompt])
        assert on_device.stats().n_prefix_hit_tokens - before >= 64
    assert counting.counts().copies > 0
    choices = SamplingParams(max_tokens=16, n=3, temperature=0.0, ignore_eos=True)
    assert answers(on_device, [turn], choices) == answers(on_cpu, [turn], choices)


@pytest.mark.parametrize("opened", ["lfm2"], indirect=True)  # others have room for a state, or wait for one
def test_preempted_and_cancelled(opened: Opened) -> None:
    on_device, on_cpu = opened(n_blocks=13), opened(on_device=False)
    params = SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True)
    prompts = [prompt + prompt for prompt in texts()]
    expected = answers(on_cpu, prompts, params)
    stream = on_device.stream(prompts[0], params)
    next(iter(stream))
    stream.close()
    for _ in range(10):  # on a busy machine the first answer may end before the others begin
        assert answers(on_device, prompts, params) == expected
        if on_device.stats().n_preemptions:
            break
    stats = on_device.stats()
    assert stats.n_preemptions > 0
    assert stats.n_free_blocks == stats.n_usable_blocks


@pytest.mark.parametrize("opened", ["lfm2", "rwkv7"], indirect=True)
def test_drafts_change_no_answer(opened: Opened) -> None:
    """Steps with several rows of one sequence beside single rows of others."""
    prompts = [text[:5] + [1, 2, 3, 4] * 8 for text in texts()]
    params = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
    drafting = opened(speculation="lookup", draft_min=4)
    assert answers(drafting, prompts, params) == answers(opened(on_device=False), prompts, params)
    assert sum(each.n_drafted_tokens for each in drafting.stats().drafters) > 0


class Drafting(Client):
    """A model on the device, with drafts that are right in six of ten places."""

    def __init__(self, folder: Path, scripts: list[list[int]]) -> None:
        opened = open_model(folder, EngineConfig(device="Counting0", fit_target=0, **OPTIONS))  # type: ignore[arg-type]
        self.first, n_vocab = opened.decoder, opened.n_vocab
        ends = sorted(opened.tokenizer.eog_ids) if opened.tokenizer else []
        decoder = Decoder(
            opened.executor,
            VocabInfo(n_vocab, ends, [b"x"] * n_vocab),
            DecoderConfig(n_ctx=opened.sizes.n_ctx, speculation="auto", draft_max=5, draft_min=5),
            [ScriptedDrafter(scripts, agreement=0.6, n_vocab=n_vocab)],
        )
        self.watch(decoder)

    def __exit__(self, *failure: object) -> None:
        super().__exit__(*failure)
        self.first.close()


@pytest.mark.parametrize("opened", ["lfm2", "qwen35", "mamba", "mamba2", "rwkv7"], indirect=True)
def test_states_are_restored_after_a_wrong_draft(opened: Opened, tmp_path: Path) -> None:
    prompts = texts()
    expected = answers(opened(on_device=False), prompts)
    scripts = [[*text, *answer] for text, answer in zip(prompts, expected, strict=True)]
    with Drafting(tmp_path / "model", scripts) as client:
        ids = [client.submit(text, native_params(max_tokens=GREEDY.max_tokens)) for text in prompts]
        client.run()
        assert [client.answer(id_).token_ids for id_ in ids] == expected
        (stats,) = client.decoder.stats().drafters
        assert 0 < stats.n_accepted_tokens < stats.n_drafted_tokens
        client.expect_all_free()


@pytest.mark.parametrize("name", ["qwen3next", "kimi-linear", "rwkv6"])
def test_operations_that_the_device_lacks_run_on_the_cpu(name: str, tmp_path: Path, counting: CountingDevice) -> None:
    """ggml has no kernels for these sizes; everything else, including other states, stays on the device."""
    write_checkpoint(tmp_path / "m", name)
    convert(tmp_path / "m", tmp_path / "m.gguf", "f32")
    path = tmp_path / "m.gguf"
    with pytest.raises(UnsupportedError, match="has no operator for these sizes"):
        LLM(path, device="Counting0", fit="off", **OPTIONS)  # type: ignore[arg-type]
    with LLM(path, kernels="stock", **OPTIONS) as on_cpu:  # type: ignore[arg-type]
        expected = answers(on_cpu, texts())
    counting.reset()
    with LLM(path, device="Counting0", fit_target=0, **OPTIONS) as mixed:  # type: ignore[arg-type]
        assert answers(mixed, texts()) == expected
    assert counting.counts().computes > 0
    config = EngineConfig(device="Counting0", fit_target=0, **OPTIONS)  # type: ignore[arg-type]
    assert fit_of(GGUFReader(path), path, config).uses[0].cache_bytes > 0


def test_states_on_the_cpu_do_not_limit_the_number_of_sequences(tmp_path: Path, counting: CountingDevice) -> None:
    """The device holds only the convolutions' states, and has too little memory for all states."""
    write_checkpoint(tmp_path / "m", "qwen3next")
    convert(tmp_path / "m", tmp_path / "m.gguf", "f32")
    reader, path = GGUFReader(tmp_path / "m.gguf"), tmp_path / "m.gguf"
    trace = load_model(reader).trace(256)
    parts = trace.placed_parts(dict.fromkeys(trace.placed_names, "device"), [counting.device])
    on_cpu, on_device = (state_bytes for _, _, state_bytes in parts)
    n_states = 2 * 32  # for the default number of sequences
    room = 4 * n_states * on_device + reader.size_bytes
    assert (room - reader.size_bytes) // 4 // (on_cpu + on_device) < n_states
    options = {key: value for key, value in OPTIONS.items() if key != "max_sequences"}
    config = EngineConfig(device="Counting0", fit_target=0, memory_bytes=room, **options)  # type: ignore[arg-type]
    assert fit_of(reader, path, config).sizes.max_sequences == 32
