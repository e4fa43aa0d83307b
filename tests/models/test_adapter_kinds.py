"""DoRA, embeddings, whole modules and aLoRA beside a model, against PEFT's equations in torch.  Needs torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from counting_device import counting_device
from quire import SamplingParams
from quire.cli.main import main
from quire.engine import LLM
from quire.errors import LoadError, UnsupportedError
from test_adapters import IDS, Array, logits
from test_request_adapters import OPTIONS, answers, expected_scores, scored
from tiny_adapters import write_peft_adapter
from tiny_checkpoints import write_checkpoint

torch = pytest.importorskip("torch", reason="needs torch (CI installs torch==2.13.0)")
pytest.importorskip("transformers", reason="needs transformers")

from oracle_models import Oracle, oracle_of  # noqa: E402

pytestmark = [pytest.mark.python_only, pytest.mark.filterwarnings("ignore")]  # torch and transformers warn

WHERE: dict[str, dict[str, Any]] = {
    "cpu": {},
    "stock": {"kernels": "stock"},
    "device": {"device": "Counting0", "fit_target": 0},
    "half": {"device": "Counting0", "fit_target": 0, "n_gpu_layers": 1},
}
QWEN2 = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]  # the first three have biases
# The weight and the bias in place of a module's, given its own and a scale.
Change = Callable[[Any, Any, float], tuple[Any, Any]]


@dataclass(frozen=True)
class Made:
    """An adapter's tensors, its configuration, and what it makes of modules from a position on."""

    tensors: dict[str, Array]
    config: dict[str, Any]
    changes: Mapping[str, Change]
    first: int = 0

    def write(self, folder: Path) -> Path:
        return write_peft_adapter(folder, self.tensors, self.config)


def low_rank(left: Array, right: Array, weight: Any, bias: Any, scale: float) -> tuple[Any, Any]:
    return weight + scale * torch.from_numpy(left @ right), bias


def dora(left: Array, right: Array, lengths: Array, weight: Any, bias: Any, scale: float) -> tuple[Any, Any]:
    rows = weight + scale * torch.from_numpy(left @ right)
    return rows * (torch.from_numpy(lengths) / rows.norm(dim=1))[:, None], bias


def whole(values: Array, added: Array | None, weight: Any, bias: Any, scale: float) -> tuple[Any, Any]:
    weight = weight + scale * (torch.from_numpy(values) - weight)
    return weight, bias if added is None else bias + scale * (torch.from_numpy(added) - bias)


def random(rng: np.random.Generator, *shape: int) -> Array:
    return (0.3 * rng.standard_normal(shape)).astype(np.float32)


def modules_of(oracle: Oracle, names: list[str]) -> dict[str, Any]:
    return {name: module for name, module in oracle.model.named_modules() if name.rpartition(".")[2] in names}


def make_low_rank(
    oracle: Oracle, names: list[str], *, rank: int = 3, with_lengths: bool = False, **fields: Any
) -> Made:
    """Alpha is 6."""
    rng, tensors, changes = np.random.default_rng(rank), dict[str, Array](), dict[str, Change]()
    for name, module in modules_of(oracle, names).items():
        n_out, n_in = module.weight.shape
        is_table = isinstance(module, torch.nn.Embedding)
        a = random(rng, rank, n_out if is_table else n_in)
        b = random(rng, n_in if is_table else n_out, rank)
        for half, values in (("A", a), ("B", b)):
            tensors[f"{name}.lora_{'embedding_' if is_table else ''}{half}"] = values
        left, right = (a.T, b.T) if is_table else (b, a)
        left = np.float32(6 / rank) * left
        if with_lengths:
            lengths = tensors[f"{name}.lora_magnitude_vector"] = np.abs(random(rng, n_out)) + np.float32(0.3)
            changes[name] = partial(dora, left, right, lengths)
        else:
            changes[name] = partial(low_rank, left, right)
    config = {"r": rank, "lora_alpha": 6, "target_modules": names, "use_dora": with_lengths}
    return Made(tensors, config | fields, changes)


def make_whole(oracle: Oracle, names: list[str]) -> Made:
    """Beside pairs for a matrix of each layer."""
    rng, made = np.random.default_rng(9), make_low_rank(oracle, ["up_proj"])
    tensors, changes = dict(made.tensors), dict(made.changes)
    for name, module in modules_of(oracle, names).items():
        weight = tensors[f"{name}.weight" if module.weight.dim() == 1 else name] = random(rng, *module.weight.shape)
        bias = getattr(module, "bias", None)
        if bias is not None:
            tensors[f"{name}.bias"] = random(rng, *bias.shape)
        changes[name] = partial(whole, weight, tensors.get(f"{name}.bias"))
    return Made(tensors, made.config | {"modules_to_save": names}, changes)


@contextmanager
def changed(oracle: Oracle, made: Made, scale: float = 1.0) -> Iterator[Oracle]:
    """Compute each module's result from its input with the changed weights, as PEFT does: tied weights stay apart."""

    def hook(change: Change, module: Any, given: Any, out: Any) -> Any:
        weight, bias = change(module.weight.detach(), getattr(module, "bias", None), scale)
        if isinstance(module, torch.nn.Embedding):
            new = torch.nn.functional.embedding(given[0], weight)
        elif isinstance(module, torch.nn.Linear):
            new = torch.nn.functional.linear(given[0], weight, bias)
        else:
            new = out / module.weight * weight  # a norm
        return torch.cat([out[:, : made.first], new[:, made.first :]], 1)

    hooks = [
        module.register_forward_hook(partial(hook, made.changes[name]))
        for name, module in oracle.model.named_modules()
        if name in made.changes
    ]
    yield oracle
    for each in hooks:
        each.remove()


KINDS: dict[str, tuple[str, Callable[[Oracle], Made]]] = {
    "dora": ("qwen2", lambda oracle: make_low_rank(oracle, QWEN2, with_lengths=True)),
    "embeddings": ("qwen2", lambda oracle: make_low_rank(oracle, ["embed_tokens", "q_proj", "lm_head"])),
    "whole": ("llama", lambda oracle: make_whole(oracle, ["embed_tokens", "lm_head"])),
    "biases": ("qwen2", lambda oracle: make_whole(oracle, ["q_proj", "v_proj", "lm_head"])),
}


def check_mixed(model: LLM, is_exact: bool) -> None:
    """Requests of one batch give what they give alone."""
    params = [
        SamplingParams(adapter=choice, max_tokens=4, logprobs=3, temperature=0, ignore_eos=True)
        for choice in ("", "a", {"a": 0.5}, "plain", ["plain", "a"], ["a", "plain"])
    ]
    prompts = [IDS[i : 20 + i] for i in range(len(params))]
    alone = [answers(model, [prompt], [one])[0] for prompt, one in zip(prompts, params, strict=True)]
    mixed = answers(model, prompts, params)
    if is_exact:
        assert mixed == alone
    for found, expected in zip(mixed, alone, strict=True):
        assert [each[0] for each in found] == [each[0] for each in expected]  # type: ignore[attr-defined]


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_equal_changed_weights(tmp_path: Path, kind: str, where: str) -> None:
    """With two scales, and in mixed batches with a plain adapter."""
    arch, make = KINDS[kind]
    write_checkpoint(tmp_path / "hf", arch)
    oracle = oracle_of(arch)
    made = make(oracle)
    paths = {
        "a": made.write(tmp_path / "a"),
        "plain": make_low_rank(oracle, ["q_proj", "down_proj"], rank=2).write(tmp_path / "b"),
    }
    plain = expected_scores(oracle, IDS)
    counting_device()
    with LLM(tmp_path / "hf", lora_modules=paths, **{**OPTIONS, **WHERE[where]}) as model:
        for scale in (1.0, 0.5):
            with changed(oracle, made, scale):
                expected = expected_scores(oracle, IDS)
            assert np.abs(expected - plain).max() > 0.05  # the adapter matters
            assert np.abs(scored(model, IDS, adapter={"a": scale}) - expected).max() < 1e-3
        assert np.abs(scored(model, IDS, adapter="") - plain).max() < 1e-3
        check_mixed(model, where == "cpu")


@pytest.mark.parametrize("where", ["cpu", "device"])
def test_bf16_weights(tmp_path: Path, where: str) -> None:
    """A and B are kept as BF16 beside them, on devices as well, which rounds by 1/256."""
    write_checkpoint(tmp_path / "hf", "qwen2")
    oracle = oracle_of("qwen2")
    made = make_low_rank(oracle, ["embed_tokens", *QWEN2])
    made.write(tmp_path / "a")
    with changed(oracle, made):
        expected = expected_scores(oracle, IDS)
    counting_device()
    assert main(["convert", str(tmp_path / "hf"), str(tmp_path / "x.gguf"), "--dtype", "bf16"]) == 0
    sizes = []
    for model_path in ("x.gguf", "hf"):
        with LLM(tmp_path / model_path, lora_modules={"a": tmp_path / "a"}, **{**OPTIONS, **WHERE[where]}) as model:
            assert np.abs(scored(model, IDS, adapter="a") - expected).max() < (0.3 if model_path == "x.gguf" else 1e-3)
            sizes.append(model.adapters[0].size_bytes)
    assert sizes[0] < 0.7 * sizes[1]


@pytest.mark.parametrize("where", WHERE)
def test_activated_adapters(tmp_path: Path, where: str) -> None:
    """They change rows from the last invocation on; the cache before it is shared with the model alone."""
    write_checkpoint(tmp_path / "hf", "llama")
    oracle, invocation = oracle_of("llama"), [7, 9, 11]
    ids = [*IDS, *invocation, *IDS[:9], *invocation, *IDS[:20]]
    first = len(IDS) + len(invocation) + 9
    made = make_low_rank(oracle, ["q_proj", "v_proj", "down_proj"], alora_invocation_tokens=invocation)
    made = Made(made.tensors, made.config, made.changes, first)
    paths = {"a": made.write(tmp_path / "a"), "b": make_low_rank(oracle, ["q_proj"], rank=2).write(tmp_path / "b")}
    with changed(oracle, made):
        expected = expected_scores(oracle, ids)
    plain = expected_scores(oracle, ids)
    assert np.abs((expected - plain)[first:]).max() > 0.05
    counting_device()
    with LLM(tmp_path / "hf", lora_modules=paths, **{**OPTIONS, **WHERE[where]}) as model:
        assert np.abs(scored(model, ids, adapter="a", salt=b"x") - expected).max() < 1e-3
        assert (
            np.abs(scored(model, IDS, adapter="a", salt=b"x") - expected_scores(oracle, IDS)).max() < 1e-3
        )  # no invocation

        def n_cached(choice: Any, ids: list[int] = ids) -> int:
            fields: dict[str, Any] = {"max_tokens": 1, "temperature": 0}
            return model.generate(ids, adapter=choice, **fields)[0].n_cached_tokens

        assert n_cached("") == 0
        assert n_cached("a") == 32  # the first block is the model's own
        assert n_cached("a") == 64
        assert n_cached({"a": 0.5}) == 32
        assert n_cached("b") == 0
        params = [
            SamplingParams(adapter=one, max_tokens=4, logprobs=3, temperature=0, ignore_eos=True)
            for one in ("a", "", ["a", "b"], "b")
        ]
        prompts = [ids[:50], ids[:48], ids[2:60], ids]
        mixed = answers(model, prompts, params)
        alone = [answers(model, [prompt], [one])[0] for prompt, one in zip(prompts, params, strict=True)]
        assert where != "cpu" or mixed == alone


MERGED: dict[str, tuple[str, Callable[[Oracle], Made]]] = {
    "norms": ("llama", lambda oracle: make_whole(oracle, ["norm", "input_layernorm"])),
    "tied": ("qwen3", lambda oracle: make_whole(oracle, ["lm_head"])),
    "tied-embeddings": ("qwen3", lambda oracle: make_low_rank(oracle, ["embed_tokens", "q_proj"])),
    **{kind: KINDS[kind] for kind in ("whole", "biases")},
}


@pytest.mark.parametrize("kind", MERGED)
def test_merged_kinds_equal_changed_weights(tmp_path: Path, kind: str) -> None:
    """Embeddings and heads that share a matrix become two."""
    arch, make = MERGED[kind]
    write_checkpoint(tmp_path / "hf", arch)
    oracle, out = oracle_of(arch), tmp_path / "out.gguf"
    made = make(oracle)
    made.write(tmp_path / "a")
    for scale in (1.0, 0.5):
        assert main(["lora", "merge", str(tmp_path / "hf"), str(out), "--lora", f"{tmp_path / 'a'}:{scale}"]) == 0
        with changed(oracle, made, scale):
            expected = oracle.answer(IDS).numpy()
        assert np.abs(oracle.answer(IDS).numpy() - expected).max() > 0.05 * np.abs(expected).max()
        assert np.abs(logits(out, [], "cpu") - expected).max() <= 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize(("arch", "is_fused"), [("qwen3moe", False), ("qwen3moe", True), ("mixtral", True)])
def test_merged_experts(tmp_path: Path, arch: str, is_fused: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """Modules of single experts, and PEFT's ``target_parameters`` with the matrices of all."""
    write_checkpoint(tmp_path / "hf", arch)
    oracle, rng, out = oracle_of(arch), np.random.default_rng(4), tmp_path / "out.gguf"
    tensors, kept = dict[str, Array](), {}
    for name, module in modules_of(oracle, ["experts"]).items():
        n = len(module.down_proj)
        kept[name] = (module.gate_up_proj.detach().clone(), module.down_proj.detach().clone())
        for parameter, parts, home in (
            (module.gate_up_proj, ("gate_proj", "up_proj"), ".base_layer"), (module.down_proj, ("down_proj",), ""),
        ):  # fmt: skip
            n_out, n_in = parameter.shape[1:]
            if is_fused:
                a = tensors[f"{name}{home}.lora_A"] = random(rng, 2 * n, n_in)
                b = tensors[f"{name}{home}.lora_B"] = random(rng, n_out, 2 * n)
                added = np.einsum("ore,eri->eoi", b.reshape(n_out, 2, n), a.reshape(n, 2, n_in))
            else:
                added = np.zeros((n, n_out, n_in), np.float32)
                height = n_out // len(parts)
                for expert in (0, n - 1):
                    for i, part in enumerate(parts):
                        a = tensors[f"{name}.{expert}.{part}.lora_A"] = random(rng, 2, n_in)
                        b = tensors[f"{name}.{expert}.{part}.lora_B"] = random(rng, height, 2)
                        added[expert, i * height : (i + 1) * height] = b @ a
            with torch.no_grad():
                parameter.add_(torch.from_numpy(added), alpha=3)
    expected = oracle.answer(IDS).numpy()
    for name, (gate_up, down) in kept.items():
        module = oracle.model.get_submodule(name)
        with torch.no_grad():
            module.gate_up_proj.copy_(gate_up)
            module.down_proj.copy_(down)
    assert np.abs(oracle.answer(IDS).numpy() - expected).max() > 0.05 * np.abs(expected).max()
    fields = {"target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]} if is_fused else {}
    targets = [] if is_fused else ["gate_proj", "up_proj", "down_proj"]
    path = write_peft_adapter(tmp_path / "a", tensors, {"r": 2, "lora_alpha": 6, "target_modules": targets} | fields)
    words = ["lora", "merge", str(tmp_path / "hf"), str(out), "--lora", str(path)]
    assert main(words) == 0
    assert np.abs(logits(out, [], "cpu") - expected).max() <= 1e-3 * np.abs(expected).max()
    with pytest.raises(UnsupportedError, match=r"experts.*quire lora merge"):
        LLM(tmp_path / "hf", lora_modules={"a": path}, threads=1)
    tensors[next(iter(tensors))] = random(rng, 2, 5)
    write_peft_adapter(tmp_path / "b", tensors, {"r": 2, "lora_alpha": 6, "target_modules": targets} | fields)
    capsys.readouterr()
    assert main([*words[:-1], str(tmp_path / "b")]) != 0
    assert "[adapter]" in capsys.readouterr().err


def test_refused_kinds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_checkpoint(tmp_path / "hf", "llama")
    oracle, q = oracle_of("llama"), "model.layers.0.self_attn.q_proj"
    hf = str(tmp_path / "hf")
    whole_head, table = make_whole(oracle, ["lm_head"]), make_low_rank(oracle, ["embed_tokens"])
    changes: dict[str, tuple[Made, dict[str, Array], type[Exception], str]] = {
        "norm": (make_whole(oracle, ["input_layernorm"]), {}, UnsupportedError, "attn_norm.weight'.*quire lora merge"),
        "shape": (whole_head, {"lm_head": np.ones((271, 64), np.float32)}, LoadError, r"'lm_head.weight' has shape \[271, 64\]"),
        "unknown": (whole_head, {"other.lm_head": np.ones((2, 2), np.float32)}, UnsupportedError, "other.lm_head.weight"),
        "infinite": (whole_head, {"lm_head": np.full((272, 64), np.inf, np.float32)}, LoadError, "not finite"),
        "both": (
            whole_head,
            {"lm_head.lora_A": np.ones((3, 64), np.float32), "lm_head.lora_B": np.ones((272, 3), np.float32)},
            UnsupportedError, "'output.weight' is both",
        ),
        "rows": (table, {"model.embed_tokens.lora_embedding_A": np.ones((3, 271), np.float32)}, LoadError, r"\[272, rank\]"),
        "base": (table, {"model.embed_tokens.base_layer": np.ones((272, 64), np.float32)}, UnsupportedError, "'token_embd.weight'"),
        "lengths": (
            make_low_rank(oracle, ["q_proj"], with_lengths=True),
            {f"{q}.lora_magnitude_vector": np.ones(63, np.float32)}, LoadError, f"'{q}' has no lora_magnitude_vector of 64",
        ),
    }  # fmt: skip
    with LLM(hf, **OPTIONS) as model:
        for name, (made, tensors, error, words) in changes.items():
            config = made.config | {
                "target_modules": [*made.config["target_modules"], *(["lm_head"] if name == "both" else [])]
            }
            path = Made({**made.tensors, **tensors}, config, {}).write(tmp_path / name)
            with pytest.raises(error, match=words):
                model.load_adapter(path)
    late = make_low_rank(oracle, ["q_proj"], alora_invocation_tokens=[1, 2]).write(tmp_path / "late")
    assert main(["lora", "merge", hf, str(tmp_path / "x.gguf"), "--lora", str(late)]) != 0
    assert "alora_invocation_tokens" in capsys.readouterr().err


def test_converted_kinds(tmp_path: Path) -> None:
    """Embeddings and invocation tokens are kept in llama.cpp's GGUF adapters."""
    write_checkpoint(tmp_path / "hf", "llama")
    oracle = oracle_of("llama")
    ids = [*IDS[:12], 7, 9, *IDS[:9]]
    made = make_low_rank(oracle, ["embed_tokens", "v_proj"], alora_invocation_tokens=[7, 9])
    made = Made(made.tensors, made.config, made.changes, 12)
    made.write(tmp_path / "a")
    out = tmp_path / "a.gguf"
    assert main(["lora", "convert", str(tmp_path / "a"), str(out), "--for", str(tmp_path / "hf")]) == 0
    with changed(oracle, made):
        expected = expected_scores(oracle, ids)
    with LLM(tmp_path / "hf", lora_modules={"a": out}, **OPTIONS) as model:
        assert np.abs(scored(model, ids, adapter="a") - expected).max() < 1e-3
