"""How the checkpoints of each architecture map to GGUF's keys and tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ..errors import LoadError, UnsupportedError
from .checkpoint import Fields

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..gguf import GGUFWriter

    Array = npt.NDArray[np.float32]

Change = Callable[["Array"], "Array"]


@dataclass(frozen=True)
class Target:
    """A tensor to write: its name, the checkpoint tensors it is stacked of, and what is done to each."""

    name: str
    sources: tuple[str, ...]
    change: Change | None = None
    keep_f32: bool = False
    made: Array | None = None  # computed from the configuration, with no source
    stacked: bool = False


@dataclass(frozen=True)
class Family:
    """One architecture: GGUF's name for it and what sets it apart."""

    arch: str
    norms: dict[str, str]  # by checkpoint name within a layer
    q_k_norms: bool = False
    interleave: bool = False  # rotated pairs side by side, as the original llama checkpoints have them
    qkv_biases: bool = False
    experts: bool = False
    norm_offset: float = 0.0  # what checkpoints leave out of norm weights
    extra_keys: Callable[[GGUFWriter, Fields], None] = field(default=lambda writer, config: None)


_LLAMA_NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
_GEMMA_NORMS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def _rope(config: Fields) -> Fields:
    """The rotary parameters, wherever the configuration keeps them (``rope_parameters`` since transformers 5)."""
    if config.has("rope_parameters"):
        inner = config.inner("rope_parameters")
        return inner.inner("full_attention") if inner.has("full_attention") else inner
    values = dict(config.inner("rope_scaling").values)
    if config.has("rope_theta"):
        values["rope_theta"] = config.number("rope_theta")
    return Fields(config.where, values)


def _window_keys(writer: GGUFWriter, config: Fields) -> None:
    if config.has("sliding_window") and (not config.has("use_sliding_window") or config.flag("use_sliding_window")):
        writer.set("llama.attention.sliding_window", config.integer("sliding_window"), "u32")


def _no_window(writer: GGUFWriter, config: Fields) -> None:
    if config.has("use_sliding_window") and config.flag("use_sliding_window"):
        raise UnsupportedError("[convert] 'use_sliding_window' must be false for this architecture but is true")


def _expert_keys(writer: GGUFWriter, config: Fields) -> None:
    _no_window(writer, config)
    if not config.flag("norm_topk_prob", True):
        raise UnsupportedError("[convert] 'norm_topk_prob' must be true but is false")
    if config.has("mlp_only_layers") and config.values["mlp_only_layers"]:
        raise UnsupportedError("[convert] 'mlp_only_layers' must be empty but is not")
    if config.integer("decoder_sparse_step", 1) != 1:
        raise UnsupportedError("[convert] 'decoder_sparse_step' must be 1")
    experts = config.integer("num_experts") if config.has("num_experts") else config.integer("num_local_experts")
    writer.set("qwen3moe.expert_count", experts, "u32")
    writer.set("qwen3moe.expert_used_count", config.integer("num_experts_per_tok"), "u32")
    writer.set("qwen3moe.expert_feed_forward_length", config.integer("moe_intermediate_size"), "u32")


def _gemma_keys(writer: GGUFWriter, config: Fields) -> None:
    n_layer, head_dim = config.integer("num_hidden_layers"), config.integer("head_dim")
    expected = (
        config.integer("hidden_size") / config.integer("num_attention_heads") if n_layer == 62 else float(head_dim)
    )
    if config.number("query_pre_attn_scalar", expected) != expected:
        raise UnsupportedError(
            f"[convert] 'query_pre_attn_scalar' must be {expected} but is {config.values['query_pre_attn_scalar']}"
        )
    kinds = config.values.get("layer_types")
    pattern = ["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(n_layer)]
    if kinds is not None and kinds != pattern:
        raise UnsupportedError("[convert] 'layer_types' must have full attention in every sixth layer but has not")
    if kinds is None and config.integer("sliding_window_pattern", 6) != 6:
        raise UnsupportedError("[convert] 'sliding_window_pattern' must be 6 but is not")
    if config.has("attn_logit_softcapping"):
        raise UnsupportedError("[convert] 'attn_logit_softcapping' must be null but is not")
    writer.set("gemma3.attention.sliding_window", config.integer("sliding_window"), "u32")
    if config.has("final_logit_softcapping"):
        writer.set("gemma3.final_logit_softcapping", config.number("final_logit_softcapping"), "f32")
    local = config.number("rope_local_base_freq", 10000.0)
    if config.has("rope_parameters") and config.inner("rope_parameters").has("sliding_attention"):
        local = config.inner("rope_parameters").inner("sliding_attention").number("rope_theta")
    writer.set("gemma3.rope.freq_base_swa", local, "f32")


FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": Family("llama", _LLAMA_NORMS, interleave=True),
    "MistralForCausalLM": Family("llama", _LLAMA_NORMS, interleave=True, extra_keys=_window_keys),
    "Qwen2ForCausalLM": Family("qwen2", _LLAMA_NORMS, qkv_biases=True, extra_keys=_no_window),
    "Qwen3ForCausalLM": Family("qwen3", _LLAMA_NORMS, q_k_norms=True, extra_keys=_no_window),
    "Qwen3MoeForCausalLM": Family("qwen3moe", _LLAMA_NORMS, q_k_norms=True, experts=True, extra_keys=_expert_keys),
    "Gemma3ForCausalLM": Family("gemma3", _GEMMA_NORMS, q_k_norms=True, norm_offset=1.0, extra_keys=_gemma_keys),
}


def family_of(config: Fields) -> Family:
    """By the configuration's ``architectures``.  UnsupportedError lists what there is."""
    names = config.values.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise LoadError("[convert] 'architectures' of config.json must name one architecture")
    if names[0] not in FAMILIES:
        raise UnsupportedError(f"[convert] the architecture must be one of {', '.join(FAMILIES)} but is '{names[0]}'")
    return FAMILIES[names[0]]


@dataclass(frozen=True)
class Sizes:
    """Of the configuration."""

    n_layer: int
    n_head: int
    n_kv_head: int
    head_dim: int
    n_expert: int


def sizes_of(config: Fields, family: Family) -> Sizes:
    n_head, dim = config.integer("num_attention_heads"), config.integer("hidden_size")
    if n_head < 1:
        raise LoadError("[convert] 'num_attention_heads' must be above 0 but is 0")
    experts = 0
    if family.experts:
        experts = config.integer("num_experts") if config.has("num_experts") else config.integer("num_local_experts")
    return Sizes(
        n_layer=config.integer("num_hidden_layers"),
        n_head=n_head,
        n_kv_head=config.integer("num_key_value_heads", n_head),
        head_dim=config.integer("head_dim", dim // n_head),
        n_expert=experts,
    )


def write_keys(writer: GGUFWriter, config: Fields, family: Family) -> None:
    """Sizes, norms and rotation."""
    if config.text("hidden_act", config.text("hidden_activation", "silu")) not in ("silu", "gelu_pytorch_tanh"):
        raise UnsupportedError("[convert] 'hidden_act' must be silu or gelu_pytorch_tanh")
    arch, sizes = family.arch, sizes_of(config, family)
    for key, value in {
        "context_length": config.integer("max_position_embeddings"),
        "embedding_length": config.integer("hidden_size"),
        "block_count": sizes.n_layer,
        "feed_forward_length": config.integer("intermediate_size"),
        "attention.head_count": sizes.n_head,
        "attention.head_count_kv": sizes.n_kv_head,
        "attention.key_length": sizes.head_dim,
        "attention.value_length": sizes.head_dim,
        "rope.dimension_count": sizes.head_dim,
        "vocab_size": config.integer("vocab_size"),
    }.items():
        writer.set(f"{arch}.{key}", value, "u32")
    writer.set(f"{arch}.attention.layer_norm_rms_epsilon", config.number("rms_norm_eps"), "f32")
    _write_rope_keys(writer, config, arch)
    family.extra_keys(writer, config)


def _rope_kind(rope: Fields) -> str:
    return rope.text("rope_type", rope.text("type", "default"))


def _write_rope_keys(writer: GGUFWriter, config: Fields, arch: str) -> None:
    rope = _rope(config)
    kind = _rope_kind(rope)
    writer.set(f"{arch}.rope.freq_base", rope.number("rope_theta", 10000.0), "f32")
    if kind == "linear":
        writer.set(f"{arch}.rope.scaling.type", "linear")
        writer.set(f"{arch}.rope.scaling.factor", rope.number("factor"), "f32")
    elif kind == "yarn":
        if rope.has("mscale") or rope.has("mscale_all_dim") or not rope.flag("truncate", True):
            raise UnsupportedError("[convert] YaRN with mscale, mscale_all_dim or truncate=false is not known")
        factor = rope.number("factor")
        original = rope.integer("original_max_position_embeddings", config.integer("max_position_embeddings"))
        writer.set(f"{arch}.rope.scaling.type", "yarn")
        writer.set(f"{arch}.rope.scaling.factor", factor, "f32")
        writer.set(f"{arch}.rope.scaling.original_context_length", original, "u32")
        writer.set(f"{arch}.rope.scaling.yarn_beta_fast", rope.number("beta_fast", 32.0), "f32")
        writer.set(f"{arch}.rope.scaling.yarn_beta_slow", rope.number("beta_slow", 1.0), "f32")
        if rope.has("attention_factor"):
            own = 1.0 + 0.1 * math.log(factor)
            writer.set(f"{arch}.rope.scaling.attn_factor", rope.number("attention_factor") / own, "f32")
    elif kind not in ("default", "llama3"):
        raise UnsupportedError(f"[convert] the rope scaling must be default, linear, yarn or llama3 but is '{kind}'")


def llama3_factors(rope: Fields, head_dim: int) -> Array:
    """What each frequency is divided by (Grattafiori et al. 2024): 1 for short waves, ``factor`` for long ones."""
    base = rope.number("rope_theta", 10000.0)
    factor, low, high = rope.number("factor"), rope.number("low_freq_factor"), rope.number("high_freq_factor")
    context = rope.integer("original_max_position_embeddings")
    waves = 2 * np.pi * base ** (np.arange(0, head_dim, 2) / head_dim)
    between = (context / waves - low) / (high - low)
    mixed = 1 / ((1 - between) / factor + between)
    return np.where(waves < context / high, 1.0, np.where(waves > context / low, factor, mixed)).astype(np.float32)


def interleaved(n_head: int) -> Change:
    """Rows of each head from halves to pairs: 0, n/2, 1, n/2 + 1, ..."""

    def change(rows: Array) -> Array:
        split = rows.reshape(n_head, 2, rows.shape[0] // n_head // 2, *rows.shape[1:])
        return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(rows.shape)

    return change


def targets(config: Fields, family: Family, has: Callable[[str], bool]) -> Iterator[Target]:
    """Every tensor of the file, in order.  ``has`` tells whether the checkpoint holds a tensor."""
    sizes = sizes_of(config, family)
    offset: Change | None = (lambda x: x + np.float32(family.norm_offset)) if family.norm_offset else None
    yield Target("token_embd.weight", ("model.embed_tokens.weight",))
    if not config.flag("tie_word_embeddings", family.arch == "gemma3") and has("lm_head.weight"):
        yield Target("output.weight", ("lm_head.weight",))
    yield Target("output_norm.weight", ("model.norm.weight",), offset, keep_f32=True)
    rope = _rope(config)
    if _rope_kind(rope) == "llama3":
        yield Target("rope_freqs.weight", (), made=llama3_factors(rope, sizes.head_dim), keep_f32=True)
    for layer in range(sizes.n_layer):
        yield from _layer_targets(f"model.layers.{layer}", f"blk.{layer}", family, sizes, offset)


def _layer_targets(source: str, target: str, family: Family, sizes: Sizes, offset: Change | None) -> Iterator[Target]:
    for theirs, ours in family.norms.items():
        yield Target(f"{target}.{ours}.weight", (f"{source}.{theirs}.weight",), offset, keep_f32=True)
    for theirs, ours, n_head in (
        ("q_proj", "attn_q", sizes.n_head),
        ("k_proj", "attn_k", sizes.n_kv_head),
        ("v_proj", "attn_v", 0),
    ):
        change = interleaved(n_head) if family.interleave and n_head else None
        yield Target(f"{target}.{ours}.weight", (f"{source}.self_attn.{theirs}.weight",), change)
        if family.qkv_biases:
            yield Target(f"{target}.{ours}.bias", (f"{source}.self_attn.{theirs}.bias",), change, keep_f32=True)
    yield Target(f"{target}.attn_output.weight", (f"{source}.self_attn.o_proj.weight",))
    if family.q_k_norms:
        for theirs, ours in (("q_norm", "attn_q_norm"), ("k_norm", "attn_k_norm")):
            yield Target(f"{target}.{ours}.weight", (f"{source}.self_attn.{theirs}.weight",), offset, keep_f32=True)
    parts = (("gate_proj", "ffn_gate"), ("up_proj", "ffn_up"), ("down_proj", "ffn_down"))
    if not family.experts:
        for theirs, ours in parts:
            yield Target(f"{target}.{ours}.weight", (f"{source}.mlp.{theirs}.weight",))
        return
    yield Target(f"{target}.ffn_gate_inp.weight", (f"{source}.mlp.gate.weight",), keep_f32=True)
    for theirs, ours in parts:
        experts = tuple(f"{source}.mlp.experts.{i}.{theirs}.weight" for i in range(sizes.n_expert))
        yield Target(f"{target}.{ours}_exps.weight", experts, stacked=True)
