"""LoRA adapters that requests choose, in ggml graphs, against transformers with merged weights.  Needs torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from counting_device import CountingDevice, counting_device
from quire import SamplingParams
from quire.checkpoints.conversion import convert
from quire.engine import LLM
from quire.engine.loading.loader import fit_of
from quire.errors import CapacityError, UnsupportedError
from quire.gguf import GGUFReader
from quire.params.engine_options import EngineConfig
from test_adapters import IDS, Array
from test_request_adapters import LLAMA, OPTIONS, expected_scores, make_adapter, merged, oracle_of, scored
from tiny_checkpoints import write_checkpoint

pytestmark = [pytest.mark.python_only, pytest.mark.filterwarnings("ignore")]  # torch and transformers warn

RANKS = (2, 5, 16, 20)
WHERE: dict[str, dict[str, Any]] = {
    "whole": {"device": "Counting0", "fit_target": 0},
    "half": {"device": "Counting0", "fit_target": 0, "n_gpu_layers": 1},
    "two": {"device": "Counting0,Counting1", "fit_target": 0},
    "cpu": {"kernels": "stock"},
}


@dataclass(frozen=True)
class Files:
    """A model, its adapters, and scores by what is chosen."""

    model: Path
    adapters: dict[str, Path]
    expected: dict[str, Array]


CHOICES: dict[str, Any] = {
    "none": "", **{f"r{rank}": f"r{rank}" for rank in RANKS}, "two": [("r2", 0.5), ("r16", -1.5)],
}  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("adapters")
    write_checkpoint(folder / "hf", "llama")
    oracle = oracle_of("llama")
    halves = {f"r{rank}": make_adapter(folder / f"r{rank}", oracle, [*LLAMA, "lm_head"], rank) for rank in RANKS}
    expected = {}
    for name, choice in CHOICES.items():
        pairs = [(choice, 1.0)] if isinstance(choice, str) else choice
        with merged(oracle, [(halves[each], scale) for each, scale in pairs if each]):
            expected[name] = expected_scores(oracle, IDS)
    return Files(folder / "hf", {name: folder / name for name in halves}, expected)


@pytest.fixture
def counting() -> Iterator[CountingDevice]:
    device = counting_device()
    before = device.held_bytes()
    yield device
    assert device.held_bytes() == before


def opened(files: Files, where: str, **options: Any) -> LLM:
    return LLM(files.model, lora_modules=files.adapters, **{**OPTIONS, **WHERE[where], **options})


def check(model: LLM, files: Files, names: Any = CHOICES) -> None:
    for name in names:
        assert np.abs(scored(model, IDS, adapter=CHOICES[name]) - files.expected[name]).max() < 1e-3


@pytest.mark.parametrize("where", WHERE)
def test_chosen_adapters_equal_merged_weights(counting: CountingDevice, files: Files, where: str) -> None:
    """Each alone, two with scales, and all in one batch; the library holds three of four."""
    ids = [*IDS, *IDS[:10]]
    with opened(files, where, max_loras=3) as model:
        check(model, files)
        params = [
            SamplingParams(adapter=choice, max_tokens=6, logprobs=3, temperature=0, ignore_eos=True)
            for choice in ("", "r2", "r5", "", "r2", ["r2", "r5"], "r16", "r20")
        ]
        prompts = [ids[i : 20 + 3 * i] for i in range(len(params))]
        mixed = model.generate(prompts, params)
        for prompt, one, found in zip(prompts, params, mixed, strict=True):
            (alone,) = model.generate([prompt], [one])
            assert found.token_ids == alone.token_ids
            assert found.logprobs is not None
            assert alone.logprobs is not None
            pairs = zip(found.logprobs, alone.logprobs, strict=True)
            assert max(abs(a.logprob - b.logprob) for a, b in pairs) < 1e-4


def test_one_graph_serves_any_adapter(counting: CountingDevice, files: Files) -> None:
    with counting.own_operations(), opened(files, "whole", n_blocks=6) as model:
        check(model, files)  # the stacks then have room for all
        salts = iter(range(100))  # nothing is found in the cache

        def generate(name: str) -> tuple[int, int]:
            """Return the uploads and the graphs that ran."""
            counting.reset()
            salt = str(next(salts)).encode()
            model.generate(IDS, adapter=name, salt=salt, max_tokens=3, temperature=0, ignore_eos=True)
            counts = counting.counts()
            return counts.uploads, counts.computes

        for _ in range(12):  # with the rows of the cache in every place
            generate("r2")
        assert model._adapters is not None
        executor = model._adapters._executor
        n_graphs = executor.n_graphs
        for name in files.adapters:
            assert generate(name)[1] == 3
        assert executor.n_graphs == n_graphs
        assert generate(name) == (3, 3)  # its matrices are there


def test_memory_for_adapters(counting: CountingDevice, files: Files) -> None:
    """The fit keeps room for them; a step that does not get it fails, and the model goes on."""
    config = EngineConfig(device="Counting0", fit_target=0, n_ctx=128)
    path = files.model.parent / "model.gguf"
    convert(files.model, path, "f32")
    reader = GGUFReader(path)
    n_bytes = sum(use.model_bytes for use in fit_of(reader, path, config).uses)
    modules = tuple((name, str(path)) for name, path in files.adapters.items())
    with_adapters = replace(config, lora_modules=modules)
    with counting.memory(n_bytes):
        assert fit_of(reader, path, with_adapters).sizes.n_blocks < fit_of(reader, path, config).sizes.n_blocks
    with opened(files, "whole") as model:
        check(model, files, ["none", "r2"])
        with counting.memory(0), pytest.raises(CapacityError):
            model.generate(IDS, adapter=["r20", "r16", "r5"], max_tokens=1)
        check(model, files)


def test_device_copies_count_in_the_budget(counting: CountingDevice, files: Files) -> None:
    """Those that no step needs go; a step's own stay, whatever they take."""
    sizes = []
    for budget in (0, 400_000):
        with opened(files, "whole", lora_cache_size=budget) as model:
            check(model, files, ["r20", "two", "r5"])
            assert model._adapters is not None
            sizes.append(model._adapters._executor.adapter_bytes)
            n_loaded = sum(each.is_loaded for each in model.adapters)
            assert n_loaded == (1 if budget else len(files.adapters))
    assert 0 < sizes[1] < 0.6 * sizes[0]


def test_a_device_without_products_by_row(counting: CountingDevice, files: Files) -> None:
    """Adapters of the options are then a part of the model."""
    with counting.without("MUL_MAT_ID"):
        with pytest.raises(UnsupportedError, match="mul_mat_id"):
            opened(files, "whole")
        with LLM(files.model, adapters=[files.adapters["r5"]], **OPTIONS, **WHERE["whole"]) as model:
            assert not model.takes_adapters
            assert np.abs(scored(model, IDS) - files.expected["r5"]).max() < 1e-3
            with pytest.raises(UnsupportedError, match="mul_mat_id"):
                scored(model, IDS, adapter="r5")
