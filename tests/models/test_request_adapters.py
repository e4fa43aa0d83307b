"""LoRA adapters that requests choose, against transformers with merged weights, and in mixed batches.  Needs torch."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quire import SamplingParams
from quire.checkpoints.conversion import convert
from quire.engine import LLM
from quire.errors import CapacityError, LoadError, RequestError
from test_adapters import IDS, Array
from tiny_adapters import write_peft_adapter
from tiny_checkpoints import write_checkpoint

torch = pytest.importorskip("torch", reason="needs torch (CI installs torch==2.13.0)")
pytest.importorskip("transformers", reason="needs transformers")

from oracle_models import Oracle, oracle_of  # noqa: E402

pytestmark = [pytest.mark.python_only, pytest.mark.filterwarnings("ignore")]  # torch and transformers warn

LLAMA = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
PHI3 = ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]
OPTIONS: dict[str, Any] = {"threads": 2, "n_ctx": 128, "kv_dtype": "f32"}
Halves = dict[str, Array]


def make_adapter(folder: Path, oracle: Oracle, modules: Sequence[str], rank: int) -> Halves:
    """Write a PEFT adapter with random halves and alpha 8, and return them."""
    rng, halves = np.random.default_rng(rank), dict[str, Array]()
    for name, module in oracle.model.named_modules():
        if name.rpartition(".")[2] in modules:
            n_out, n_in = module.weight.shape[:: -1 if type(module).__name__ == "Conv1D" else 1]
            for half, shape in (("A", (rank, n_in)), ("B", (n_out, rank))):
                halves[f"{name}.lora_{half}"] = (0.3 * rng.standard_normal(shape)).astype(np.float32)
    write_peft_adapter(folder, halves, {"r": rank, "lora_alpha": 8, "target_modules": [*modules]})
    return halves


@contextmanager
def merged(oracle: Oracle, adapters: Sequence[tuple[Halves, float]]) -> Iterator[Oracle]:
    """The model with ``W + scale * 8 / rank * B A`` in place of W."""
    kept = {name: value.clone() for name, value in oracle.model.state_dict().items()}
    for halves, scale in adapters:
        for name, a in halves.items():
            if name.endswith("lora_A"):
                b, weight = halves[name[:-1] + "B"], oracle.model.get_submodule(name[: -len(".lora_A")]).weight
                with torch.no_grad():
                    weight += scale * 8 / len(a) * torch.from_numpy(b @ a)
    yield oracle
    oracle.model.load_state_dict(kept)


def scored(model: LLM, ids: Sequence[int], **fields: Any) -> Array:
    """The log-probability of each token but the first."""
    found = model.generate(list(ids), max_tokens=1, prompt_logprobs=0, **fields)[0].prompt_logprobs
    assert found is not None
    return np.array([each.logprob for each in found if each is not None], np.float32)


def expected_scores(oracle: Oracle, ids: Sequence[int]) -> Array:
    rows = torch.log_softmax(oracle.answer(list(ids)), -1).numpy()
    return np.array([rows[i, ids[i + 1]] for i in range(len(ids) - 1)], np.float32)


def answers(model: LLM, prompts: Sequence[Any], params: Sequence[SamplingParams]) -> list[object]:
    """All that depends on bits: tokens, and log-probabilities of several at each place."""
    return [
        [(each.token_id, each.logprob, tuple(each.top)) for each in result.logprobs or ()]
        for result in model.generate(prompts, params)
    ]


@pytest.mark.parametrize(("arch", "modules"), [("llama", [*LLAMA, "lm_head"]), ("phi3", PHI3)])
def test_chosen_adapters_equal_merged_weights(tmp_path: Path, arch: str, modules: Sequence[str]) -> None:
    """Three adapters of different ranks beside one model that holds two at a time.

    Each alone, two of them with scales, and all in one batch with requests that choose none: bit for bit as alone.
    """
    write_checkpoint(tmp_path / "hf", arch)
    oracle = oracle_of(arch)
    plain, ids = expected_scores(oracle, IDS), [*IDS, *IDS[:10]]
    halves = {f"r{rank}": make_adapter(tmp_path / f"r{rank}", oracle, modules, rank) for rank in (2, 5, 16)}
    paths: Mapping[str, Path] = {name: tmp_path / name for name in halves}
    with LLM(tmp_path / "hf", lora_modules=paths, max_loras=2, **OPTIONS) as model:
        assert [each.name for each in model.adapters] == [*halves]
        assert sum(each.is_loaded for each in model.adapters) == 2
        assert np.abs(scored(model, IDS) - plain).max() < 1e-4
        choices = [[(name, 1.0)] for name in halves] + [[("r2", 0.5), ("r16", -1.5)]]
        for choice in choices:
            with merged(oracle, [(halves[name], scale) for name, scale in choice]):
                expected = expected_scores(oracle, IDS)
            assert np.abs(expected - plain).max() > 0.1  # the adapters matter
            assert np.abs(scored(model, IDS, adapter=choice) - expected).max() < 1e-3
        with merged(oracle, [(halves["r5"], 1.0)]):
            following = list(IDS)
            for _ in range(4):
                following.append(int(oracle.answer(following)[-1].argmax()))
        (greedy,) = model.generate(IDS, adapter="r5", max_tokens=4, temperature=0, ignore_eos=True)
        assert greedy.token_ids == following[len(IDS) :]
        params = [
            SamplingParams(adapter=choice, max_tokens=6, logprobs=3, temperature=0, ignore_eos=True)
            for choice in ("", "r2", "r5", "", "r2", ["r2", "r5"])
        ]
        prompts = [ids[i : 20 + 3 * i] for i in range(len(params))]
        mixed = answers(model, prompts, params)
        assert mixed == [answers(model, [prompt], [one])[0] for prompt, one in zip(prompts, params, strict=True)]
        # Cached blocks are shared among requests of one adapter and scale only.
        fields = {"max_tokens": 1, "temperature": 0}
        n_cached = [
            model.generate(ids, adapter=choice, **fields)[0].n_cached_tokens  # type: ignore[arg-type]
            for choice in ("r5", "r5", {"r5": 2.0}, "r16", "", "r5")
        ]
        assert n_cached == [0, 32, 0, 0, 0, 32]


def test_pairs_of_odd_rank_beside_16_bits(tmp_path: Path) -> None:
    """They are kept as BF16, which rounds these large random ones by 0.02; matrices have several tiles."""
    write_checkpoint(tmp_path / "hf", "llama")
    oracle = oracle_of("llama")
    halves = make_adapter(tmp_path / "a", oracle, ["gate_proj", "up_proj"], 5)
    convert(tmp_path / "hf", tmp_path / "x.gguf", "bf16")
    with merged(oracle, [(halves, 1.0)]):
        expected = expected_scores(oracle, IDS)
    with LLM(tmp_path / "x.gguf", lora_modules={"a": tmp_path / "a"}, **OPTIONS) as model:
        assert np.abs(scored(model, IDS, adapter="a") - expected).max() < 0.3


def test_adapters_come_and_go_beside_a_running_model(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "hf", "llama")
    oracle = oracle_of("llama")
    first = make_adapter(tmp_path / "first", oracle, ["q_proj"], 2)
    make_adapter(tmp_path / "second", oracle, ["down_proj"], 3)
    with merged(oracle, [(first, 0.5)]):
        expected = expected_scores(oracle, IDS)
    with LLM(tmp_path / "hf", adapters=[(tmp_path / "first", 0.5)], max_loras=1, max_lora_rank=3, **OPTIONS) as model:
        assert np.abs(scored(model, IDS) - expected).max() < 1e-3  # by default
        plain = scored(model, IDS, adapter="")
        assert np.abs(plain - expected).max() > 0.1
        info = model.load_adapter(tmp_path / "second", "other")
        assert (info.rank, info.targets[0]) == (3, "blk.0.ffn_down.weight")
        library = model._adapters
        assert library is not None
        held = weakref.ref(library.chosen([("other", 1.0)])[0][0])
        assert held() is not None
        stream = model.stream(IDS, adapter="other", max_tokens=40, temperature=0, ignore_eos=True)
        n_first = len(next(stream).token_ids)
        model.unload_adapter("other")
        assert n_first + sum(len(delta.token_ids) for delta in stream) == 40  # the request goes on
        assert np.abs(scored(model, IDS, adapter="") - plain).max() == 0
        assert held() is None  # nothing keeps its memory
        for refused, kind, words in (
            ({"adapter": "other"}, RequestError, "'other'.*available: first"),
            ({"adapter": [("first", float("nan"))]}, RequestError, "'first'"),
            ({"adapter": {"first": 1e38}}, RequestError, "'first'.*1e\\+38"),
            ({"adapter": 3}, RequestError, "adapter"),
        ):
            with pytest.raises(kind, match=words):
                model.generate(IDS, **refused)  # type: ignore[arg-type]
        make_adapter(tmp_path / "large", oracle, ["q_proj"], 4)
        for given, kind, words in (
            ((tmp_path / "second", "first"), RequestError, "'first'"),
            ((tmp_path / "large",), RequestError, "rank 4"),
            ((tmp_path / "absent",), LoadError, "absent"),
            (("x" * 300,), LoadError, "xxx"),  # too long for a file's name
        ):
            with pytest.raises(kind, match=words):
                model.load_adapter(*given)
        for scale in (float("nan"), 101.0, -1e38, "x"):
            with pytest.raises(RequestError, match="scale"):
                model.load_adapter(tmp_path / "second", scale=scale)  # type: ignore[arg-type]
            with pytest.raises(RequestError, match="scale"):
                model.scale_adapters({"first": scale})  # type: ignore[dict-item]
        model.load_adapter(tmp_path / "second")
        with pytest.raises(CapacityError, match="2 adapters"):
            model.generate(IDS, adapter=["first", "second"])


def test_embeddings_and_sessions_with_adapters(tmp_path: Path) -> None:
    """A session's turns, pins and saved blocks are those of its adapter; another one's are not found."""
    write_checkpoint(tmp_path / "hf", "llama")
    oracle, ids = oracle_of("llama"), [*IDS, *IDS, *IDS]
    halves = make_adapter(tmp_path / "a", oracle, LLAMA, 2)
    make_adapter(tmp_path / "b", oracle, LLAMA, 3)
    with merged(oracle, [(halves, 0.5)]):
        hidden = oracle.model(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0, -1]
        expected = torch.nn.functional.normalize(hidden, dim=-1).detach().numpy()
    modules = {name: tmp_path / name for name in "ab"}
    fields: dict[str, Any] = {"max_tokens": 3, "temperature": 0, "ignore_eos": True}
    with LLM(tmp_path / "hf", lora_modules=modules, cache_disk=tmp_path / "disk", **OPTIONS) as model:
        plain = model.embed([ids])[0]
        assert np.abs(model.embed([ids], adapter={"a": 0.5})[0] - expected).max() < 1e-4
        assert np.abs(plain - expected).max() > 0.01
        assert (model.embed([ids])[0] == plain).all()
        with model.session(ids, adapter={"a": 0.5}) as session:
            first = session.generate(**fields)
            (alone,) = model.generate([ids], adapter={"a": 0.5}, salt=b"x", **fields)
            assert first.token_ids == alone.token_ids
            assert session.pin() >= 64
            assert session.fork().generate(**fields).n_cached_tokens >= 64
            session.save(tmp_path / "session")
            history = session.token_ids
    with LLM(tmp_path / "hf", lora_modules=modules, cache_disk=tmp_path / "other", **OPTIONS) as model:
        with model.session(path=tmp_path / "session") as session:
            assert session.generate(**fields).n_cached_tokens >= 64
        assert model.generate([history], **fields)[0].n_cached_tokens == 0
        assert model.generate([history], adapter="b", **fields)[0].n_cached_tokens == 0
        model.unload_adapter("a")
        with pytest.raises(RequestError, match="'a'"):
            model.session(path=tmp_path / "session")
        model.load_adapter(tmp_path / "b", "a")  # other contents: the blocks are not its
        with model.session(path=tmp_path / "session") as session:
            assert session.generate(**fields).n_cached_tokens == 0


def test_adapters_stay_within_a_budget_of_bytes(tmp_path: Path) -> None:
    """The least recently used go, and are read again; a request keeps its own."""
    write_checkpoint(tmp_path / "hf", "llama")
    oracle = oracle_of("llama")
    for rank in (2, 3, 4, 40):
        make_adapter(tmp_path / f"r{rank}", oracle, ["q_proj"], rank)
    modules = {f"r{rank}": tmp_path / f"r{rank}" for rank in (2, 3, 4)}
    with LLM(tmp_path / "hf", lora_modules=modules, **OPTIONS) as model:
        sizes = {each.name: each.size_bytes for each in model.adapters}
        expected = {name: scored(model, IDS, adapter=name) for name in modules}
    budget = sizes["r3"] + sizes["r4"]
    with LLM(tmp_path / "hf", lora_modules=modules, lora_cache_size=budget, **OPTIONS) as model:

        def loaded() -> set[str]:
            return {each.name for each in model.adapters if each.is_loaded}

        assert loaded() == {"r3", "r4"}
        for name, there in (("r2", {"r2", "r4"}), ("r4", {"r2", "r4"}), ("r3", {"r3", "r4"})):
            assert (scored(model, IDS, adapter=name) == expected[name]).all()
            assert loaded() == there
        with pytest.raises(CapacityError, match="lora_cache_size"):
            model.load_adapter(tmp_path / "r40")
        with pytest.raises(CapacityError, match=str(budget)):
            model.generate(IDS, adapter=["r2", "r3", "r4"])
        assert [each.name for each in model.adapters] == [*modules]


@pytest.mark.parametrize("kernels", ["cpu", "stock"])
def test_adapters_that_overflow_change_no_other_answer(tmp_path: Path, kernels: str) -> None:
    """Their keys and values are no numbers, and lie in blocks that others read past or take over."""
    write_checkpoint(tmp_path / "hf", "llama")
    oracle = oracle_of("llama")
    make_adapter(tmp_path / "good", oracle, ["up_proj"], 4)
    up = "model.layers.0.mlp.up_proj"
    a, b = (np.full(shape, 3e38, np.float32) for shape in ((2, 64), (96, 2)))
    config = {"r": 2, "lora_alpha": 2, "target_modules": ["up_proj"]}
    write_peft_adapter(tmp_path / "large", {f"{up}.lora_A": a, f"{up}.lora_B": b}, config)
    with LLM(tmp_path / "hf", kernels=kernels, kv_dtype="f32", threads=1) as model:  # type: ignore[arg-type]
        for name in ("good", "large"):
            model.load_adapter(tmp_path / name, name)
        fields: dict[str, Any] = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}

        def answer(name: str) -> list[int]:
            return list(model.generate(IDS, adapter=name, **fields)[0].choices[0].token_ids)

        expected = {name: answer(name) for name in ("", "good")}

        def one(name: str) -> bool:
            if name != "large":
                return answer(name) == expected[name]
            with pytest.raises(RequestError, match="logit"):
                answer(name)
            return True

        with ThreadPoolExecutor(6) as pool:
            assert all(pool.map(one, ["", "large", "good"] * 12))
        assert [answer(name) for name in expected] == [*expected.values()]
