"""Change one field of config.json or one key of a GGUF file at a time: it is honoured or rejected, never ignored.

Oracle for fields: transformers, reading the same changed folder.  ``benchmarks/fuzz_gguf_keys.py`` does the same for
keys against llama.cpp.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from quire.checkpoints.conversion import convert
from quire.checkpoints.reading import reference_of
from quire.errors import LoadError, QuireError, UnsupportedError
from quire.gguf import GGUFReader, GGUFWriter
from quire.models import architectures, load_model
from siblings import is_theirs
from test_models import TOLERANCE, Runner
from tiny_checkpoints import (
    CONFIGS,
    HEARING,
    MADE_TENSORS,
    class_of,
    config_of,
    shapes_of,
    weight_of,
    write_checkpoint,
    write_safetensors,
)

pytestmark = pytest.mark.python_only  # test_models.py runs the same native code, also under the sanitizers

Array = npt.NDArray[np.float32]
IDS = [3, 250, 17, 99, 12, 64, 7, 200, 31, 5, 5, 80, 144, 2, 61, 240, 9, 33, 18, 27, 111, 90, 45, 8]
# One checkpoint for each class of transformers; if a class has two architectures, the one with more fields.
MORE_NAMES = ["nemotron_h", "nomic-bert-moe"]
NAMES = list({class_of(name): name for name in reversed(CONFIGS) if name not in MORE_NAMES}.values()) + MORE_NAMES
# Fields of these are changed in every run; the others take minutes and run with ``pytest -m fuzz``.
ALWAYS = ("llama-linear", "qwen3moe", "gemma3")
FUZZED = [
    name if name in ALWAYS else pytest.param(name, marks=pytest.mark.fuzz)
    for name in NAMES
    if name not in MORE_NAMES and is_theirs(name, class_of(name))  # transformers does not read their fields
]
# Models compared with another class; tests/support says how their fields are translated.
FUZZED_SIBLINGS = [
    pytest.param(name, marks=pytest.mark.fuzz)
    for name in (
        "deepseek", "bailingmoe", "bailingmoe2", "rwkv6", "rwkv7", "rwkv6qwen2", "spark2_5", "solar", "nomic-bert-moe", "jina-bert-v2", "llama-embed", "arctic",
        "smallthinker", "minimax-text-01", "plm", "mimo", "internlm", "internlm3", "iquestcoder", "maincoder", "nanbeige", "ouro", "telechat2", "sarvam_moe", "sarvam-mla",
    )
]  # fmt: skip

# Fields that classes read although their configuration does not list them, and old and new names.
MORE_FIELDS = (
    "is_causal", "rope_theta", "rope_scaling", "partial_rotary_factor", "rope_local_base_freq", "sliding_window_pattern",
    "attention_bias", "mlp_bias", "hidden_act", "hidden_activation", "head_dim", "num_experts", "num_local_experts",
    "norm_topk_prob", "query_pre_attn_scalar", "use_bidirectional_attention", "layer_types", "use_sliding_window",
    "sliding_window", "max_window_layers", "attn_logit_softcapping", "final_logit_softcapping", "attention_multiplier",
    "residual_multiplier", "embedding_multiplier", "logits_scaling", "rope_interleaved", "qk_norm", "use_qk_norm",
    "no_rope_layers", "clip_qkv", "scale_embedding",
)  # fmt: skip
ROPES: list[object] = [
    {"rope_type": "default", "rope_theta": 500.0},
    {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
    {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
    {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16},
    {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 4.0, "beta_slow": 0.5},
    {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16, "attention_factor": 1.5},
    {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16, "mscale": 0.7, "mscale_all_dim": 1.1},
    {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16, "truncate": False},
    {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16},
    {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    {"rope_type": "proportional", "rope_theta": 10000.0, "factor": 8.0, "partial_rotary_factor": 0.5},
    {"rope_type": "longrope", "rope_theta": 10000.0, "factor": 4.0, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "original_max_position_embeddings": 16},
    {"full_attention": {"rope_type": "linear", "rope_theta": 3e5, "factor": 2.0}, "sliding_attention": {"rope_type": "default", "rope_theta": 700.0}},
    {"full_attention": {"rope_type": "default", "rope_theta": 1e6}, "sliding_attention": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
    {"full_attention": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 16}, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}},
    {"full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_type": "default"}},
]  # fmt: skip


# Parts of larger configurations.  They are never left out whole: transformers would make a model of its default sizes in
# their place, of up to 36 GB, only to find that its weights are missing.
TEXT = "text_config"
SECTIONS = (TEXT, "vision_config", "audio_config")
# Changes that affect transformers' answer and must not affect Quire's.
THEIR_MISTAKES = {
    "rescale_prenorm_residual=True": "of initialization, but it divides weights that it has loaded as well",
}


CAPPED = ("gemma2", "gemma3", "gemma3n", "gemma4")
WINDOWED = [
    name
    for name, config in CONFIGS.items()
    if isinstance(config.get("sliding_window"), int) and not {"use_sliding_window", TEXT} & set(config)
]
TEXTS: dict[str, dict[str, object]] = {name: config[TEXT] for name, config in CONFIGS.items() if TEXT in config}  # type: ignore[misc]
LINEAR, YARN, LLAMA3 = ROPES[1], ROPES[3], ROPES[8]


def alternatives(name: str, value: object) -> Iterator[object]:
    """Return other values of a field: of its type, or of the types that a field without a value may have."""
    if name == "rope_parameters":
        yield from ROPES
    elif name == "rope_scaling":
        yield from [
            {k: v for k, v in rope.items() if k != "rope_theta"} for rope in ROPES[1:9] if isinstance(rope, dict)
        ]
        yield {"type": "linear", "factor": 3.0}
    elif name in ("hidden_act", "hidden_activation"):
        yield from ("silu", "swish", "gelu", "relu", "gelu_pytorch_tanh", "gelu_new", "quick_gelu", "relu2")
    elif name == "layer_types":
        yield from (
            ["full_attention"] * 7,
            ["sliding_attention"] * 7,
            ["full_attention", "sliding_attention"] * 3 + ["full_attention"],
        )
        yield from (["sliding_attention"] * 2, ["full_attention", "sliding_attention"], ["full_attention"] * 2)
    elif name == "pad_token_id":  # RoBERTa's padding has a position of its own, so prompts must not contain it
        yield from (value for value in (0, 1, 4, 256) if value not in IDS)
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (0, 1, 2, 3, value + 1, 2 * value)
    elif isinstance(value, float):
        yield from (0.0, 0.5, 2.0 * value)
    elif isinstance(value, str):
        yield "something else"
    elif value is None:
        yield from (True, 1, 0.5)
    elif isinstance(value, list):
        yield from ([0], [1], [])
    yield None


def changes_of(base: Mapping[str, object], fields: Mapping[str, object]) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield each change and the changed configuration; each field is also left out once."""
    for field in sorted({*fields, *base, *MORE_FIELDS} - {"architectures", "model_type", "vocab_size", *SECTIONS}):
        for value in alternatives(field, base.get(field, fields.get(field))):
            if value != base.get(field, "absent"):
                yield f"{field}={value!r}", {**base, field: value}
        if field in base:
            yield f"{field} absent", {key: value for key, value in base.items() if key != field}


def cases(name: str, fields: Mapping[str, object]) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield changes of config.json, and of its text model's section if there is one."""
    base = config_of(name)
    yield from changes_of(base, fields)
    if (text := base.get(TEXT)) is not None:
        known = fields[TEXT]
        assert isinstance(text, dict)
        assert isinstance(known, dict)
        for label, changed in changes_of(text, known):
            yield f"{TEXT}.{label}", {**base, TEXT: changed}


def near(one: Array, other: Array) -> bool:
    return bool(np.abs(one - other).max() <= TOLERANCE * np.abs(other).max())


def near_except_ties(one: Array, other: Array) -> bool:
    """Return whether all rows but one are near: rounding may decide between experts or groups with equal scores."""
    far = np.abs(one - other).max(axis=1) > TOLERANCE * np.abs(other).max()
    return int(far.sum()) <= 1


def theirs(folder: Path, kind: str) -> Array | None:
    """Return transformers' logits; None if it raises or weights are missing."""
    torch = pytest.importorskip("torch", reason="needs torch")
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    from oracle_models import Oracle, no_inputs

    try:
        model, info = getattr(transformers, kind).from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
        if info["mismatched_keys"] or not all(key.endswith(MADE_TENSORS) for key in info["missing_keys"]):
            return None
        logits: Array = Oracle(model.eval(), no_inputs, {}).answer(IDS).numpy()
    except Exception:  # any error means that there is no answer
        return None
    return logits if np.isfinite(logits).all() else None


def siblings(name: str, config: Mapping[str, object]) -> Array | None:
    """Return the logits of the model that the checkpoint is compared with; None if that has other tensors."""
    pytest.importorskip("torch", reason="needs torch")
    pytest.importorskip("transformers", reason="needs transformers")
    from oracle_models import oracle_of

    try:
        oracle = oracle_of(name, config)
        if oracle.shapes != shapes_of(name):
            return None
        answer: Array = oracle.answer(IDS).numpy()
    except Exception:  # as above
        return None
    return answer if np.isfinite(answer).all() else None


def ours(folder: Path) -> Array | None:
    """Return Quire's logits, or None if the configuration is rejected.

    The context has the prompt's length, by which transformers chooses between the rotations of LongRoPE.
    """
    try:
        convert(folder, folder / "x.gguf", "f32")
        runner = Runner(folder / "x.gguf", threads=1, n_ctx=len(IDS))
        return runner.answer(IDS) if runner.n_ctx >= len(IDS) else None  # traces are for contexts up to that
    except QuireError:
        return None


@pytest.mark.filterwarnings("ignore")  # torch and transformers warn
@pytest.mark.parametrize("name", FUZZED)
def test_a_changed_field_is_honoured_or_rejected(tmp_path: Path, name: str) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    write_checkpoint(tmp_path, name)
    kind = class_of(name)
    fields = transformers.AutoConfig.from_pretrained(tmp_path).to_dict()
    seen = compared(tmp_path, name, fields, lambda config: theirs(tmp_path, kind))
    assert seen["honoured"] >= 1  # few fields of StarCoder and T5 change the answer
    assert seen["refused"] >= 2  # GPT-J and GPT-Neo have few
    assert seen["harmless and accepted"] >= 30


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FUZZED_SIBLINGS)
def test_a_changed_field_of_a_sibling_is_honoured_or_rejected(tmp_path: Path, name: str) -> None:
    write_checkpoint(tmp_path, name)
    seen = compared(tmp_path, name, {}, lambda config: siblings(name, config))
    assert seen["honoured"] + seen["refused"] >= 1  # few fields of RWKV and Jina BERT change the answer


def compared(
    folder: Path, name: str, fields: Mapping[str, object], oracle: Callable[[Mapping[str, object]], Array | None]
) -> Counter[str]:
    """Return the outcome of each change of the configuration; none may be ignored."""
    plain = oracle(config_of(name))
    assert plain is not None
    ignored, seen = [], Counter[str]()
    for label, config in cases(name, fields):
        (folder / "config.json").write_text(json.dumps(config))
        found = ours(folder)
        if found is None and seen["refused"] >= 3:
            continue  # rejected, which is always allowed
        expected = oracle(config)
        if expected is None or label in THEIR_MISTAKES:
            continue
        has_effect = not near(expected, plain)
        seen["honoured" if found is not None else "refused"] += has_effect
        seen["harmless and accepted"] += not has_effect and found is not None
        if found is not None and (found.shape != expected.shape or not near(found, expected)):
            ignored.append(label)
    assert ignored == []
    return seen


def reads(name: str, field: str) -> bool:
    """Return whether transformers' class of a checkpoint reads a field of its configuration."""
    return reference_of(class_of(name)).has_effect(field) and TEXT not in CONFIGS[name]


def with_fields(tmp_path: Path, name: str, **changes: object) -> Path:
    """Write the checkpoint with fields set, or left out if they are ``...``."""
    write_checkpoint(tmp_path / "hf", name)
    config = {key: value for key, value in (config_of(name) | changes).items() if value is not ...}
    (tmp_path / "hf" / "config.json").write_text(json.dumps(config))
    return tmp_path / "hf"


@pytest.mark.parametrize(
    ("name", "changes", "field"),
    [
        *((name, {"hidden_act": "relu"}, "hidden_act") for name in NAMES if reads(name, "hidden_act")),
        ("gemma3", {"hidden_activation": "silu"}, "hidden_activation"),
        *((name, {"is_causal": False}, "is_causal") for name in NAMES if reads(name, "is_causal")),
        *((name, {"is_causal": None}, "is_causal") for name in NAMES if reads(name, "is_causal")),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma3", {"query_pre_attn_scalar": ...}, "query_pre_attn_scalar"),
        ("gemma3", {"rope_parameters": ROPES[13]}, "sliding_attention"),
        ("llama", {"rope_parameters": {**LINEAR, "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ("qwen3", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ("glm4moe", {"routed_scaling_factor": 0.0}, "routed_scaling_factor"),
        # Transformers treats null as false, even if the default is true.
        *(
            (name, {"norm_topk_prob": None}, "norm_topk_prob")
            for name in ("deepseek2-v3", "deepseek2-glm", "glm4moe", "lfm2moe", "mimo2", "exaone-moe")
        ),
        ("gptneox", {"use_parallel_residual": None}, "use_parallel_residual"),
        ("mistral3-vl", {"tie_word_embeddings": None}, "tie_word_embeddings"),
        *(
            (name, {"rope_parameters": ..., "rope_scaling": {"type": "linear", "factor": 3.0}}, "rope_type")
            for name in ("gemma3", "gemma3n", "olmo3", "gemma-embedding")
        ),
        ("gemma3-vl", {TEXT: {**TEXTS["gemma3-vl"], "final_logit_softcapping": 0.5}}, "final_logit_softcapping"),
        ("gpt-oss", {"attention_bias": False}, "attention_bias"),
        ("gpt-oss", {"swiglu_limit": 3.0}, "swiglu_limit"),
        ("qwen2moe", {"qkv_bias": False}, "qkv_bias"),
        ("granitehybrid", {"attention_multiplier": 0.0}, "attention_multiplier"),
        ("qwen3", {"quantization_config": {"quant_method": "aqlm"}}, "quantization_config"),
        ("bamba", {"partial_rotary_factor": 1.0}, "partial_rotary_factor"),
        ("lfm2moe", {"routed_scaling_factor": 0.0}, "routed_scaling_factor"),
        *((name, {"final_logit_softcapping": 0.0}, "final_logit_softcapping") for name in CAPPED),
        ("gemma2", {"attn_logit_softcapping": 0.0}, "attn_logit_softcapping"),
        ("minicpm3", {"rope_parameters": ROPES[6]}, "mscale_all_dim"),
        ("deepseek2-v3", {"head_dim": 2}, "head_dim"),
        ("minicpm", {"scale_emb": 0.0}, "scale_emb"),
        ("minicpm", {"scale_depth": 0.0}, "scale_depth"),
        *(
            ("gemma-embedding", {"use_bidirectional_attention": value}, "use_bidirectional")
            for value in (..., None, False)
        ),
    ],
)
def test_fields_that_change_the_answer_are_rejected_by_name(
    tmp_path: Path, name: str, changes: dict[str, object], field: str
) -> None:
    with pytest.raises(UnsupportedError, match=field):
        convert(with_fields(tmp_path, name, **changes), tmp_path / "x.gguf", "f32")
    assert not (tmp_path / "x.gguf").exists()


@pytest.mark.parametrize("name", NAMES)
def test_a_field_that_transformers_does_not_know_is_ignored_and_named(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Finetunes and other programs write such fields; the file records them."""
    folder = with_fields(tmp_path, name, mystery=1, training_args={"lr": 2.5})
    convert(folder, tmp_path / "x.gguf", "f32")
    ignored = GGUFReader(tmp_path / "x.gguf").metadata.strings("quire.checkpoint.ignored_fields")
    assert {b"mystery", b"training_args"} <= set(ignored)
    assert "mystery" in caplog.text


@pytest.mark.parametrize(
    ("name", "field"), [("modern-bert", "local_attention"), *((name, "sliding_window") for name in WINDOWED)]
)
def test_an_empty_window_is_rejected_by_name(tmp_path: Path, name: str, field: str) -> None:
    """In transformers each token then sees only itself, or nothing; in files 0 means no window."""
    with pytest.raises(LoadError, match=field):
        convert(with_fields(tmp_path, name, **{field: 0}), tmp_path / "x.gguf", "f32")


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("qwen35", {"linear_num_key_heads": 0}),
        ("qwen35moe", {"linear_num_key_heads": 0}),
        ("qwen3next", {"linear_num_key_heads": 0}),
        ("hunyuan-dense", {"head_dim": 2}),
        ("llama", {"rope_parameters": {**LLAMA3, "high_freq_factor": 0.0}}),
        ("deepseek2-v3", {"rope_parameters": {**YARN, "factor": 0.0, "mscale_all_dim": 1.0}}),
        ("phi3", {"original_max_position_embeddings": 0}),
    ],
)
def test_invalid_numbers_are_errors_of_the_configuration(tmp_path: Path, name: str, changes: dict[str, object]) -> None:
    """Invalid numbers raise Quire's own errors, whatever is computed from them."""
    with pytest.raises(LoadError):
        convert(with_fields(tmp_path, name, **changes), tmp_path / "x.gguf", "f32")


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        # Norms of latent rows have a separate epsilon.
        ("deepseek2-groups", {"rms_norm_eps": 0.5}),
        ("deepseek2-glm", {"rms_norm_eps": 0.5}),
        ("minicpm3", {"rms_norm_eps": 0.5}),
        # LongRoPE's factors depend on the context, its multiplier on one of the fields.
        ("phi3-short", {"max_position_embeddings": 512}),
        ("minicpm3", {"max_position_embeddings": 512}),
    ],
)
def test_a_change_has_transformers_effect(tmp_path: Path, name: str, changes: dict[str, object]) -> None:
    folder = with_fields(tmp_path, name, **changes)
    expected, found = theirs(folder, class_of(name)), ours(folder)
    assert expected is not None
    assert found is not None
    assert near(found, expected)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("activation", ["gelu", "gelu_fast", "gelu_new"])
def test_gpt_neox_has_the_activation_that_its_configuration_names(tmp_path: Path, activation: str) -> None:
    folder = with_fields(tmp_path, "gptneox", hidden_act=activation)  # the two functions differ by 1e-4 of the logits
    expected, found = theirs(folder, class_of("gptneox")), ours(folder)
    assert expected is not None
    assert found is not None
    assert np.abs(found - expected).max() <= 2e-5 * np.abs(expected).max()


DENIED: list[tuple[str, dict[str, object]]] = [
    ("glm4moe", {"use_qk_norm": False}),
    ("glm4moe", {"attention_bias": False}),
    ("mamba", {"use_conv_bias": False}),
    ("granitehybrid", {"mamba_conv_bias": None}),
    ("jamba", {"mamba_conv_bias": False}),
    *(("falcon_h1", {"mamba_rms_norm": value}) for value in (..., None, False)),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "changes"), DENIED)
def test_tensors_that_a_field_disables_are_ignored_as_in_transformers(
    tmp_path: Path, name: str, changes: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    folder = with_fields(tmp_path, name, **changes)
    expected, found = theirs(folder, class_of(name)), ours(folder)
    assert expected is not None
    assert found is not None
    # Two groups of experts of glm4moe differ by 1.2e-7 in a row.
    assert near_except_ties(found, expected) if name == "glm4moe" else near(found, expected)
    assert next(iter(changes)) in caplog.text


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "module", "field"),
    [
        ("llama", "self_attn.q_proj", "attention_bias"),
        ("llama", "self_attn.o_proj", "attention_bias"),
        ("llama", "mlp.down_proj", "mlp_bias"),
        ("qwen3", "self_attn.k_proj", "attention_bias"),
        ("granite", "self_attn.v_proj", "attention_bias"),
        ("granite", "mlp.up_proj", "mlp_bias"),
        ("granitemoe", "self_attn.q_proj", "attention_bias"),
        ("nemotron", "self_attn.q_proj", "attention_bias"),
        ("nemotron", "mlp.up_proj", "mlp_bias"),
        ("hunyuan-dense", "self_attn.q_proj", "attention_bias"),
        ("seed_oss", "self_attn.o_proj", "attention_out_bias"),
        ("seed_oss", "mlp.gate_proj", "mlp_bias"),
        ("ernie4_5", "self_attn.q_proj", "use_bias"),
    ],
)
def test_biases_that_a_field_denies_are_left_out_as_by_transformers(
    tmp_path: Path, name: str, module: str, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The field is absent, and its default is false."""
    tensor = f"model.layers.0.{module}"
    shapes = shapes_of(name)
    shapes[f"{tensor}.bias"] = shapes[f"{tensor}.weight"][:1]
    write_checkpoint(tmp_path, name, shapes)
    config = {key: value for key, value in config_of(name).items() if key != field}
    (tmp_path / "config.json").write_text(json.dumps(config))
    expected, found = theirs(tmp_path, class_of(name)), ours(tmp_path)
    assert expected is not None
    assert found is not None
    assert near(found, expected)
    assert field in caplog.text


# Keys that an architecture does not support, in transformers and in llama.cpp.
ROUTED = {
    "mixtral": True,
    "granitemoe": True,
    "hunyuan-moe": True,
    "ernie4_5-moe": True,
    "jamba": False,
    "llama4": False,
}
UNCHOSEN: list[tuple[str, str, tuple[object, str] | None]] = [
    # In llama.cpp each token then sees only itself, or nothing.
    ("gemma-embedding", "attention.sliding_window", (0, "u32")),
    ("gemma-embedding", "attention.sliding_window", None),
    ("granite_swa", "attention.sliding_window", (0, "u32")),
    ("granite_swa", "attention.rope_pattern", (0, "u32")),
    *((name, "attention.sliding_window", (8, "u32")) for name in ("xverse", "internlm2", "lfm2moe")),
    *(("llama4", "attention.sliding_window_pattern", change) for change in ((2, "u32"), ([1] * 5, "u32[]"))),
    *((name, "expert_weights_norm", (not norm, "bool")) for name, norm in ROUTED.items()),
    *((name, "expert_gating_func", (3, "u32")) for name in (*ROUTED, "olmoe", "qwen2moe", "mimo2")),
    *((name, "expert_weights_scale", (3.0, "f32")) for name in (*ROUTED, "olmoe", "qwen2moe", "minimax-m2", "gpt-oss")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "key", "change"), UNCHOSEN)
def test_keys_that_an_architecture_does_not_support_are_rejected_by_name(
    tiny: Callable[[str], Path], tmp_path: Path, name: str, key: str, change: tuple[object, str] | None
) -> None:
    path = edited(tiny(name), tmp_path / "x.gguf", {key: change})
    with pytest.raises((LoadError, UnsupportedError), match=key):
        load_model(GGUFReader(path))


def test_missing_and_zero_keys_mean_the_same_as_in_llama_cpp(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    """Defaults are llama.cpp's, and a multiplier of 0 means not set."""
    for name, one, other in (
        ("gemma4", {"final_logit_softcapping": None}, {"final_logit_softcapping": (30.0, "f32")}),
        ("minicpm", {"embedding_scale": (0.0, "f32")}, {"embedding_scale": (1.0, "f32")}),
        ("minicpm", {"residual_scale": (0.0, "f32")}, {"residual_scale": (1.0, "f32")}),
    ):
        mine, same = (Runner(edited(tiny(name), tmp_path / "x.gguf", each)).logits(IDS) for each in (one, other))  # type: ignore[arg-type]
        assert np.array_equal(mine, same)


def keys_of(folder: Path, out: Path) -> dict[str, object]:
    convert(folder, out, "f32")
    return dict(GGUFReader(out).metadata)


def test_defaults_are_those_of_transformers(tmp_path: Path) -> None:
    """Defaults equal those of transformers' configuration classes (5.17)."""
    out = tmp_path / "x.gguf"
    moe = keys_of(with_fields(tmp_path / "a", "qwen3moe", norm_topk_prob=...), out)
    assert moe["qwen3moe.expert_weights_norm"] is False
    mistral = keys_of(with_fields(tmp_path / "b", "mistral", sliding_window=...), out)
    assert mistral["llama.attention.sliding_window"] == 4096
    mistral = keys_of(with_fields(tmp_path / "c", "mistral", sliding_window=None), out)
    assert "llama.attention.sliding_window" not in mistral
    gemma = keys_of(with_fields(tmp_path / "d", "gemma3", rope_parameters=..., sliding_window=...), out)
    assert gemma["gemma3.rope.freq_base"] == 1e6
    assert gemma["gemma3.rope.freq_base_swa"] == 1e4
    assert gemma["gemma3.attention.sliding_window"] == 4096
    kimi = keys_of(with_fields(tmp_path / "e", "kimi-linear", rms_norm_eps=...), out)
    assert kimi["kimi-linear.attention.layer_norm_rms_epsilon"] == pytest.approx(1e-5)


def test_a_stored_output_matrix_overrides_tying(tmp_path: Path) -> None:
    """Transformers ties them only if both are equal."""
    shapes = shapes_of("qwen3") | {"lm_head.weight": shapes_of("qwen3")["model.embed_tokens.weight"]}
    write_checkpoint(tmp_path / "hf", "qwen3", shapes)
    convert(tmp_path / "hf", tmp_path / "x.gguf", "f32")
    head = weight_of("qwen3", "lm_head.weight", tuple(shapes["lm_head.weight"]))
    assert np.array_equal(GGUFReader(tmp_path / "x.gguf").tensor("output.weight").numpy(), head)
    tensors = {name: weight_of("qwen3", name, tuple(shape)) for name, shape in shapes.items()}
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    write_safetensors(tmp_path / "hf" / "model.safetensors", tensors)
    convert(tmp_path / "hf", tmp_path / "x.gguf", "f32")
    assert "output.weight" not in GGUFReader(tmp_path / "x.gguf")


def test_a_tied_matrix_may_be_stored_as_the_output_alone(tmp_path: Path) -> None:
    """Some programs save the tied matrix under the head's name; transformers 5 accepts that."""
    shapes = shapes_of("qwen3")
    tensors = {name: weight_of("qwen3", name, tuple(shape)) for name, shape in shapes.items()}
    write_checkpoint(tmp_path / "hf", "qwen3", shapes)
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    write_safetensors(tmp_path / "hf" / "model.safetensors", tensors)
    convert(tmp_path / "hf", tmp_path / "x.gguf", "f32")
    written = GGUFReader(tmp_path / "x.gguf")
    assert np.array_equal(written.tensor("token_embd.weight").numpy(), tensors["lm_head.weight"])
    assert "output.weight" not in written
    fields = json.loads((tmp_path / "hf" / "config.json").read_text()) | {"tie_word_embeddings": False}
    (tmp_path / "hf" / "config.json").write_text(json.dumps(fields))
    with pytest.raises(LoadError, match="token_embd"):
        convert(tmp_path / "hf", tmp_path / "x.gguf", "f32")


def test_an_output_matrix_that_is_neither_stored_nor_tied_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="no head"):
        convert(with_fields(tmp_path, "qwen3", tie_word_embeddings=False), tmp_path / "x.gguf", "f32")


def test_buffers_of_rotation_are_accepted(tmp_path: Path) -> None:
    """Older versions of transformers saved such buffers."""
    shapes = shapes_of("llama") | {"model.layers.1.self_attn.rotary_emb.inv_freq": [8]}
    write_checkpoint(tmp_path / "hf", "llama", shapes)
    convert(tmp_path / "hf", tmp_path / "x.gguf", "f32")
    assert not any("inv_freq" in info.name for info in GGUFReader(tmp_path / "x.gguf").tensors)


def edited(source: Path, out: Path, changes: dict[str, tuple[object, str] | None]) -> Path:
    """Write the file with keys below the architecture's name set, or left out (None)."""
    reader = GGUFReader(source)
    arch = reader.metadata.text("general.architecture")
    full = {f"{arch}.{name}": change for name, change in changes.items()}
    with GGUFWriter(out, arch) as writer:
        for key in reader.metadata:
            kind = reader.metadata.type_of(key)
            value = reader.metadata.strings(key) if kind == "string[]" else reader.metadata[key]
            if key not in full:
                writer.set(key, value, kind)  # type: ignore[arg-type]
        for key, change in full.items():
            if change is not None:
                writer.set(key, *change)  # type: ignore[arg-type]
        for info in reader.tensors:
            writer.add_tensor(info.name, info.dtype, info.shape)
        for info in reader.tensors:
            writer.write(info.name, reader.tensor(info.name).numpy())
    return out


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that converts a checkpoint by name."""
    folder = tmp_path_factory.mktemp("fuzz")

    def make(name: str) -> Path:
        if not (folder / f"{name}.gguf").is_file():
            write_checkpoint(folder / name, name)
            convert(folder / name, folder / f"{name}.gguf", "f32")
        return folder / f"{name}.gguf"

    return make


# Keys of the next test that an architecture computes.
HONOURED = {
    ("hunyuan_vl", "rope.scaling.alpha"),
    ("aria", "attention.scale"),
    *((name, key) for name in ("granite", "granite_swa", "bamba") for key in ("logit_scale", "attention.scale")),
    *(
        (name, "nextn_predict_layers")
        for name in (
            "bailingmoe3",
            "dots3note",
            "qwen35",
            "qwen35-vl",
            "qwen35moe",
            "qwen3next",
            "nemotron_h",
            "nemotron_h_moe",
            "mimo2",
            "exaone-moe",
            "hy_v3",
            "cohere2moe",
            "bailingmoe2",
            "sarvam_moe",
            "step35",
        )
    ),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("attention.causal", (False, "bool")),
        ("logit_scale", (2.0, "f32")),
        ("attention.scale", (0.5, "f32")),
        ("rope.scaling.type", ("longrope", "string")),
        ("rope.scaling.alpha", (8.0, "f32")),
        ("expert_group_count", (4, "u32")),
        ("nextn_predict_layers", (1, "u32")),
    ],
)
def test_keys_that_change_the_answer_are_rejected_by_name(
    tiny: Callable[[str], Path], tmp_path: Path, name: str, key: str, change: tuple[object, str]
) -> None:
    metadata = GGUFReader(tiny(name)).metadata
    full = f"{metadata.text('general.architecture')}.{key}"
    if key == "attention.causal":  # the opposite of the file's value
        change = (not metadata.flag(full, True), "bool")
    elif full in metadata:
        pytest.skip("the architecture computes it")
    elif key.startswith("rope.scaling.type") and name == "granitehybrid":
        pytest.skip("the architecture has no rotation")
    elif key == "expert_group_count" and name == "youtu":
        pytest.skip("none of its layers has experts")
    path = edited(tiny(name), tmp_path / "x.gguf", {key: change})
    if (name, key) in HONOURED:
        assert not near(Runner(path).logits(IDS), Runner(tiny(name)).logits(IDS))
        return
    with pytest.raises((LoadError, UnsupportedError), match=key):
        load_model(GGUFReader(path))


def test_keys_that_llama_cpp_does_not_read_are_ignored_and_named(
    tiny: Callable[[str], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    more = {"mystery": (1, "u32"), "training.lr": (0.5, "f32")}
    path = edited(tiny("llama"), tmp_path / "x.gguf", more)  # type: ignore[arg-type]
    assert np.array_equal(Runner(path).logits(IDS), Runner(tiny("llama")).logits(IDS))
    assert "llama.mystery, llama.training.lr" in caplog.text


def test_every_architecture_is_fuzzed(tiny: Callable[[str], Path]) -> None:
    made = {GGUFReader(tiny(name)).metadata.text("general.architecture") for name in NAMES}
    assert made == set(architectures()) - HEARING


SCALED = {"rope.scaling.factor": (4.0, "f32")}


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        # A factor without a type means linear, as does the key of old files; 0 means not set.
        ("llama", SCALED, {**SCALED, "rope.scaling.type": ("linear", "string")}),
        ("llama", {"rope.scale_linear": (4.0, "f32")}, {**SCALED, "rope.scaling.type": ("linear", "string")}),
        ("llama", {"rope.scaling.factor": (0.0, "f32")}, {}),
        ("llama", {**SCALED, "rope.scaling.type": ("none", "string")}, {}),
        # Windows in all but every n-th layer, as a number and as a list.
        ("gemma3", {"attention.sliding_window_pattern": (6, "u32")}, {}),
        ("gemma3", {"attention.sliding_window_pattern": ([True] * 5 + [False, True], "bool[]")}, {}),
        ("gemma3", {"attention.sliding_window_pattern": (3, "u32")}, {"attention.sliding_window_pattern": ([1, 1, 0, 1, 1, 0, 1], "u32[]")}),
        ("gemma3", {"attention.sliding_window_pattern": (1, "u32")}, {"attention.sliding_window": (0, "u32")}),
        ("llama", {"attention.head_count_kv": ([2, 2], "u32[]")}, {}),
    ],
)  # fmt: skip
def test_equivalent_keys_give_the_same_answer(
    tiny: Callable[[str], Path],
    tmp_path: Path,
    name: str,
    one: dict[str, tuple[object, str] | None],
    other: dict[str, tuple[object, str] | None],
) -> None:
    mine = Runner(edited(tiny(name), tmp_path / "one.gguf", one)).logits(IDS)
    assert np.array_equal(mine, Runner(edited(tiny(name), tmp_path / "other.gguf", other)).logits(IDS))
    if one and other:
        assert not near(mine, Runner(tiny(name)).logits(IDS))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama", {"rope.scaling.attn_factor": (1.5, "f32")}),
        ("llama", {"rope.dimension_count": (8, "u32")}),
        ("qwen3", {"rope.dimension_count": (16, "u32")}),
        ("gemma3", {"attention.sliding_window_pattern": (2, "u32")}),
        ("gemma3", {"attention.sliding_window": (3, "u32")}),
        ("gemma3", {"rope.freq_base_swa": (500.0, "f32")}),
        ("gemma3", {"final_logit_softcapping": (2.0, "f32")}),
        ("qwen3moe", {"expert_weights_norm": (False, "bool")}),
        ("qwen3moe", {"expert_used_count": (3, "u32")}),
        ("mistral", {"attention.sliding_window": (5, "u32")}),
    ],
)
@pytest.mark.parametrize("kernels", ["auto", "stock"])
def test_keys_have_their_effect(
    tiny: Callable[[str], Path], tmp_path: Path, name: str, changes: dict[str, tuple[object, str] | None], kernels: str
) -> None:
    """The key changes the answer.  benchmarks/fuzz_gguf_keys.py and the tests above check that it is right."""
    mine = Runner(edited(tiny(name), tmp_path / "x.gguf", changes), kernels).logits(IDS)
    assert not near(mine, Runner(tiny(name), kernels).logits(IDS))


def test_tensors_that_are_known_and_not_used(tiny: Callable[[str], Path]) -> None:
    from quire.nn import Weights

    weights = Weights(GGUFReader(tiny("qwen3")), lambda tensor: tensor)
    with pytest.raises(LoadError, match=r"\(24\)"):
        weights.finish()
    for block in weights.blocks(2):
        block.ignore("*", "the test reads no layer")
    with pytest.raises(LoadError, match=r"\(2\): token_embd\.weight, output_norm\.weight"):
        weights.finish()
