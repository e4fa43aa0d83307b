"""EAGLE-3 heads compared with the paper's equations, computed with transformers' layers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from chosen_kernels import threads_of
from quire._native import graph
from quire._native.core import find_device
from quire.checkpoints.conversion import CheckpointReader, convert
from quire.checkpoints.mapping import checkpoint_dtype, speaks_of_eagle
from quire.errors import LoadError, QuireError, UnsupportedError
from quire.gguf import GGUFReader
from quire.models import is_head, load_head, load_model, trace_predictor
from tiny_checkpoints import N_VOCAB, write_checkpoint

torch = pytest.importorskip("torch", reason="needs torch (CI installs torch==2.13.0)")
pytest.importorskip("transformers", reason="needs transformers")

from eagle_heads import (  # noqa: E402
    LAYER,
    HeadOracle,
    head_config,
    head_tensors,
    known_tokens,
    maps_of,
    write_deep,
    write_head,
    write_head_file,
)

pytestmark = [pytest.mark.python_only, pytest.mark.filterwarnings("ignore")]  # torch and transformers warn
Array = npt.NDArray[np.float32]
N = 45


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return converted(tmp_path_factory.mktemp("llama"), "llama")


def converted(folder: Path, name: str) -> Path:
    write_checkpoint(folder / "target", name)
    convert(folder / "target", folder / "target.gguf", "f32")
    return folder / "target.gguf"


class Pair:
    """A model and its head, each with an executor."""

    def __init__(self, scratch: Path, target: Path, head: Path, kernels: str = "cpu") -> None:
        self.model = load_model(GGUFReader(target))
        self.has_state = any(spec.states for spec in self.model.cache)
        with CheckpointReader(head, scratch, checkpoint_dtype(head)) as reader:
            self.loaded = load_head(reader, self.model)
        self.target = self._executor(self.model.trace(96, fusion=self.loaded.fusion), kernels)
        self.head = self._executor(trace_predictor(self.loaded.head, 96), kernels, self.target)

    @staticmethod
    def _executor(trace: graph.Trace, kernels: str, other: graph.Executor | None = None) -> graph.Executor:
        return graph.Executor(
            trace, find_device("cpu"), n_blocks=9, n_states=3, threads=threads_of(kernels), kv_dtype="f32",
            kernels=kernels, max_rows=64, max_sequences=2, team_of=other if kernels == "cpu" else None,
        )  # fmt: skip

    def features(self, ids: Sequence[int]) -> Array:
        self.run(self.target, ids, 0, state=self.has_state)
        return self.target.features(len(ids))

    def predict(self, ids: Sequence[int], start: int, features: Array) -> Array:
        return self.run(self.head, ids, start, features=np.ascontiguousarray(features))

    @staticmethod
    def run(
        model: graph.Executor, ids: Sequence[int], start: int, *, state: bool = False, features: Array | None = None
    ) -> Array:
        """Logits of ids, which are at ``start`` and after it."""
        rows = range(start, start + len(ids))
        return model.run(
            list(ids), positions=list(rows), slots=[32 + p for p in rows], logit_rows=list(range(len(ids))),
            row_begin=[0, len(ids)], n_kv=[start + len(ids)], tables=[list(range(1, 9))],
            states=[1] if state else [], features=features,
        )  # fmt: skip


def close(found: Array, expected: Any) -> None:
    wanted = expected.numpy()
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() <= 1e-3 * np.abs(wanted).max()


def expect_equal(pair: Pair, oracle: HeadOracle, layers: Sequence[int] = (0, 1, 2)) -> None:
    """Compare features, logits and the head's own features in two steps over one cache, then one further token."""
    ids = np.random.default_rng(5).integers(0, 256, N).tolist()
    features, known = pair.features(ids), oracle.features(ids, layers)
    close(features, known)
    texts, given = ids[1:], features[:-1]
    first = pair.predict(texts[:19], 0, given[:19])
    rest = pair.predict(texts[19:], 19, given[19:])
    logits, own = oracle.predict(texts, known[:-1])
    close(np.concatenate([first, rest]), logits)
    left = pair.head.features(N - 20)
    close(left, own[19:])
    tokens = pair.loaded.tokens or range(N_VOCAB)
    token = tokens[int(rest[-1].argmax())]
    chained = pair.predict([token], N - 1, left[-1:])
    logits, _ = oracle.predict([*texts, token], torch.cat([known[:-1], own[-1:]]))
    close(chained, logits[-1:])


# Dense models, experts, sandwich norms, windows, latent rows, a recurrent state.
TARGETS = ["llama", "qwen2", "qwen3", "qwen3moe", "gemma2", "glm4", "gpt-oss", "deepseek2", "qwen35"]


@pytest.mark.parametrize(
    ("name", "kernels"), [(name, "cpu") for name in TARGETS] + [(name, "stock") for name in TARGETS[:3]]
)
def test_predictions_equal_the_equations(tmp_path: Path, name: str, kernels: str) -> None:
    target = converted(tmp_path, name)
    n = load_model(GGUFReader(target)).config.n_layer
    layers = [1, n - 1, n] if n > 2 else [0, 1, 2]
    config = head_config(name, eagle_aux_hidden_state_layer_ids=layers)
    tensors = head_tensors(config)
    pair = Pair(tmp_path, target, write_head(tmp_path / "head", config, tensors), kernels)
    expect_equal(pair, HeadOracle(tmp_path / "oracle", name, config, tensors), layers)


# Options of published heads.
KINDS: dict[str, dict[str, object]] = {
    "normed-residual": {"norm_before_residual": True},
    "normed-features": {"norm_output": True},
    "norm-of-all": {"norm_before_fc": True},
    "norm-of-each": {"fc_norm": True},
    "nested": {"eagle_aux_hidden_state_layer_ids": None, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1], "use_aux_hidden_state": True, "norm_before_fc": True}},
    "all-tokens": {"draft_vocab_size": N_VOCAB},
    "llama3": {"rope_scaling": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}},
    "every-head": {"num_key_value_heads": 4},
    "biases": {"attention_bias": True},
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_heads(tmp_path: Path, llama: Path, kind: str) -> None:
    config = head_config("llama", **KINDS[kind])
    inner: Any = config.get("eagle_config", {})
    layers = [i + 1 for i in inner.get("eagle_aux_hidden_state_layer_ids", [])] or [0, 1, 2]
    flags = {**config, **inner}
    tensors = head_tensors(flags, n_states=len(layers))
    head = write_head(tmp_path / "head", config, tensors)
    expect_equal(Pair(tmp_path, llama, head), HeadOracle(tmp_path / "oracle", "llama", flags, tensors), layers)


def test_a_head_of_another_width_needs_its_own_embedding(tmp_path: Path, llama: Path) -> None:
    config = head_config("llama", hidden_size=48, target_hidden_size=64, num_attention_heads=3, num_key_value_heads=1)
    tensors = head_tensors(config, has_embedding=True)
    head = write_head(tmp_path / "head", config, tensors)
    expect_equal(Pair(tmp_path, llama, head), HeadOracle(tmp_path / "oracle", "llama", config, tensors))
    without = {name: values for name, values in tensors.items() if name != "embed_tokens.weight"}
    with pytest.raises(UnsupportedError, match=r"hidden size 48 .* 64"):
        Pair(tmp_path, llama, write_head(tmp_path / "bare", config, without))


def test_a_head_shares_matrices_that_it_lacks(tmp_path: Path, llama: Path) -> None:
    config = head_config("llama", draft_vocab_size=None)
    tensors = {name: values for name, values in head_tensors(config).items() if name != "lm_head.weight"}
    pair = Pair(tmp_path, llama, write_head(tmp_path / "head", config, tensors))
    assert pair.loaded.tokens == ()
    assert pair.loaded.head.head.weight.name == "output.weight"
    assert pair.loaded.head.embedding.weight.name == "token_embd.weight"
    expect_equal(pair, HeadOracle(tmp_path / "oracle", "llama", config, tensors))


def test_layers_are_those_of_the_published_code(tmp_path: Path, llama: Path) -> None:
    """The default layers are those of the published code; a head made for fewer layers names its own."""
    convert(write_deep(tmp_path / "deep", "llama", 9), tmp_path / "deep.gguf", "f32")
    config = head_config("llama", eagle_aux_hidden_state_layer_ids=None)
    head = write_head(tmp_path / "head", config, head_tensors(config))
    assert Pair(tmp_path, tmp_path / "deep.gguf", head).loaded.fusion.layers == (2, 4, 6)
    with pytest.raises(UnsupportedError, match="target_layers 2, 1, -1"):
        Pair(tmp_path, llama, head)


SPELLINGS = {
    "layers": ("layers.0.", "", "Eagle3LlamaForCausalLM"),
    "model": ("model.layers.0.", "model.", "LlamaForCausalLMEagle3"),
    "model's class": ("midlayer.", "model.", "LlamaForCausalLM"),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_names_of_other_programs(tmp_path: Path, llama: Path, spelling: str) -> None:
    layer, prefix, kind = SPELLINGS[spelling]
    config = head_config("llama", architectures=[kind])
    tensors = head_tensors(config)
    named = {
        name.replace(LAYER, layer)
        if name.startswith(LAYER)
        else prefix * name.startswith(("fc", "norm")) + name: values
        for name, values in tensors.items()
    }
    expect_same(tmp_path, llama, config, named, tensors)


def test_speculators_configuration(tmp_path: Path, llama: Path) -> None:
    flat = head_config("llama", norm_before_residual=True)
    ours = ("draft_vocab_size", "eagle_aux_hidden_state_layer_ids", "norm_before_residual", "torch_dtype")
    config = {
        **{name: flat[name] for name in ours}, "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3",
        "speculators_version": "0.3.0", "speculators_config": {"algorithm": "eagle3", "verifier": {"architectures": []}},
        "has_no_defaults_at_init": False, "embed_requires_grad": False, "target_hidden_size": None,
        "transformer_layer_config": {**{k: v for k, v in flat.items() if k not in ours}, "architectures": ["LlamaForCausalLM"]},
    }  # fmt: skip
    tensors = head_tensors(flat)
    named = {name.replace(LAYER, "layers.0."): values for name, values in tensors.items()}
    expect_same(tmp_path, llama, config, named, tensors, flat)
    del config["norm_before_residual"]
    with pytest.raises(LoadError, match="'norm_before_residual'"):
        Pair(tmp_path, llama, write_head(tmp_path / "unsaid", config, named))


def expect_same(
    tmp_path: Path,
    llama: Path,
    config: dict[str, object],
    named: dict[str, Any],
    tensors: dict[str, Any],
    flat: dict[str, object] | None = None,
) -> None:
    head = write_head(tmp_path / "head", config, named)
    oracle = HeadOracle(tmp_path / "oracle", "llama", flat or config, tensors)
    expect_equal(Pair(tmp_path, llama, head), oracle)


BROKEN: dict[str, tuple[dict[str, object], dict[str, Any], str]] = {
    "vocabulary": ({"vocab_size": 300}, {"t2d": None}, "vocab_size': 300 .*272"),
    "hidden size": ({"target_hidden_size": 80}, {}, "target_hidden_size': 80 .*64"),
    "layers": ({"num_hidden_layers": 2}, {}, "'num_hidden_layers': 2"),
    "layer ids": ({"eagle_aux_hidden_state_layer_ids": [0, 1, 3]}, {}, "target_layers 0, 1, 3"),
    "order": ({"eagle_aux_hidden_state_layer_ids": [1, 0, 2]}, {}, "target_layers"),
    "twice": ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 1]}}, {}, "'eagle_aux_hidden_state_layer_ids'"),
    "one state": ({"eagle_config": {"use_aux_hidden_state": False}}, {}, "'use_aux_hidden_state': false"),
    "parallel": ({"eagle_config": {"parallel_draft_step": 2}}, {}, "'parallel_draft_step': 2"),
    "mtp norm": ({"eagle_config": {"use_mtp_layernorm": True}}, {}, "'use_mtp_layernorm': true"),
    "unknown field": ({"soft_reset": 3}, {}, "'soft_reset' of config.json"),
    "unknown field within": ({"eagle_config": {"soft_reset": 3}}, {}, "'soft_reset'"),
    "activation": ({"hidden_act": "gelu"}, {}, "'hidden_act': gelu"),
    "window": ({"use_sliding_window": True}, {}, "'use_sliding_window'.* true"),
    "tied": ({"tie_word_embeddings": True}, {"lm_head.weight": None}, "'tie_word_embeddings' of the head: true"),
    "no map": ({}, {"d2t": None, "t2d": None}, "'d2t' .* 200 .* 272"),
    "short map": ({}, {"d2t": known_tokens()[:9]}, r"'d2t' has shape \[9\]"),
    "map of numbers": ({}, {"d2t": np.ones(200, np.float32)}, "'d2t'.* F32"),
    "map beyond": ({}, {**maps_of(known_tokens()), "d2t": np.full(200, 100), "t2d": None}, "'d2t'.* 272"),
    "two maps": ({}, {"t2d": np.zeros(272, bool)}, "'t2d'"),
    "unknown tensor": ({}, {"midlayer.mystery.weight": np.ones(4, np.float32)}, "'midlayer.mystery.weight'"),
    "narrow": ({}, {"midlayer.self_attn.q_proj.weight": np.ones((64, 64), np.float32)}, r"attn_q.weight' has shape \[64, 64\]"),
    "two states": ({}, {"fc.weight": np.ones((64, 128), np.float32)}, r"fc.weight' has shape \[64, 128\]"),
    "unsaid norm": ({}, {"input_norm.weight": np.ones(192, np.float32)}, "enc.output_norm.weight"),
    "eagle 2": ({}, {"midlayer.hidden_norm.weight": None}, "'midlayer.hidden_norm.weight'"),
    "eagle class": ({"architectures": ["EagleLlamaForCausalLM"]}, {}, "'EagleLlamaForCausalLM'"),
    "kind": ({"speculators_model_type": "dflash"}, {}, "'speculators_model_type': 'dflash'"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_heads_that_do_not_fit_are_rejected_by_name(tmp_path: Path, llama: Path, case: str) -> None:
    changes, others, text = BROKEN[case]
    config = head_config("llama", **changes)
    tensors = {**head_tensors(head_config("llama")), **others}
    head = write_head(
        tmp_path / "head", config, {name: values for name, values in tensors.items() if values is not None}
    )
    with pytest.raises(QuireError, match=text):
        Pair(tmp_path, llama, head)


FILES: dict[str, tuple[dict[str, Any], dict[str, Any], str | None]] = {
    "as it is": ({}, {}, None),
    "short numbers": ({}, {"d2t": (known_tokens().astype(np.int32), "i32")}, None),
    "unknown key": ({"eagle3.mystery": (1, "u32")}, {}, None),
    "vocabulary": ({"eagle3.vocab_size": (300, "u32")}, {}, "'eagle3.vocab_size': 300"),
    "width": ({"eagle3.target_hidden_size": (80, "u32")}, {}, "'eagle3.target_hidden_size': 80"),
    "layers": ({"eagle3.block_count": (2, "u32")}, {}, "'eagle3.block_count': 2"),
    "negative layer": ({"eagle3.target_layers": ([-1, 0, 1], "i32[]")}, {}, "target_layers' holds -1"),
    "many layers": ({"eagle3.target_layers": ([*range(99)], "i32[]")}, {}, "target_layers"),
    "one layer": ({"eagle3.target_layers": (1, "i32")}, {}, "'eagle3.target_layers' is i32"),
    "map of numbers": ({}, {"d2t": (np.ones(200, np.float32), "f32")}, r"'d2t' is \[200\] of f32"),
    "long map": ({}, {"d2t": (known_tokens(201), "i64")}, r"'d2t' is \[201\] of i64"),
    "map below": ({}, {"d2t": (known_tokens() - 1, "i64")}, "'d2t'.* 272"),
    "unknown tensor": ({}, {"mystery": (np.ones(4, np.float32), "f32")}, "unused .*mystery"),
}  # fmt: skip


@pytest.mark.parametrize("case", FILES)
def test_files_are_checked(tmp_path: Path, llama: Path, case: str) -> None:
    keys, tensors, text = FILES[case]
    config = head_config("llama")
    head = write_head(tmp_path / "head", config, head_tensors(config))
    reader, model = (
        GGUFReader(write_head_file(head, llama, tmp_path / "x.gguf", keys, tensors)),
        load_model(GGUFReader(llama)),
    )
    if text is None:
        assert load_head(reader, model).tokens == tuple(known_tokens())
        return
    with pytest.raises(QuireError, match=text):
        load_head(reader, model)


def test_multimodal_models_are_not_heads() -> None:
    assert not speaks_of_eagle({"architectures": ["Eagle2_5_VLForConditionalGeneration"]})
    assert speaks_of_eagle({"architectures": ["EagleLlamaForCausalLM"]})


def test_a_head_cannot_be_opened_as_a_model(tmp_path: Path) -> None:
    config = head_config("llama")
    head = write_head(tmp_path / "head", config, head_tensors(config))
    with CheckpointReader(head, tmp_path, "f32") as reader:
        assert is_head(reader.metadata)
        with pytest.raises(UnsupportedError, match=r"holds a head \(eagle3\)"):
            load_model(reader)
    with pytest.raises(UnsupportedError, match="is a head"):
        convert(head, tmp_path / "out.gguf", "f32")


def test_models_that_heads_cannot_read_are_rejected(tmp_path: Path) -> None:
    config = head_config("llama")
    with CheckpointReader(write_head(tmp_path / "head", config, head_tensors(config)), tmp_path, "f32") as reader:
        for name in ("t5", "bert"):
            write_checkpoint(tmp_path / name, name)
            convert(tmp_path / name, tmp_path / f"{name}.gguf", "f32")
            model = load_model(GGUFReader(tmp_path / f"{name}.gguf"))
            with pytest.raises(UnsupportedError, match=f"architecture {name}"):
                load_head(reader, model)
