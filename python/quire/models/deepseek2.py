"""DeepSeek V2 and V3, R1, Kimi K2, Moonlight, GLM 4.7 Flash (DeepSeek-AI 2024): latent attention, shared experts.

The first layers are dense.  A layer behind the last one predicts later tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from ..checkpoint import (
    DECODER_KEYS,
    DECODER_TENSORS,
    EXPERT_TENSORS,
    PREDICTING_LAYERS,
    SHARED_EXPERT_TENSORS,
    SILU,
    Array,
    Change,
    Checkpoint,
    Entry,
    Fields,
    Key,
    Source,
    f32,
    factor,
    flag,
    made,
    n_dense,
    rope_keys,
    taken,
    u32,
)
from ..checkpoint.rope import kind_of, rope_of
from ..errors import LoadError, UnsupportedError
from ..nn import (
    ROUTING,
    CacheSpec,
    ExpertConfig,
    GatedMLP,
    Keys,
    LatentAttention,
    LatentSizes,
    Weights,
    experts_of,
    latent_rope,
)
from ..nn.experts import Gating
from .base import MAX_HEAD_DIM, Block, Decoder, DenseConfig, Layer, layers_left_out

ARCHES = ("deepseek2",)
LATENT_EPS = 1e-6
# GLM 4.7 Flash, whose files did not say at first that scores are sigmoids.
UNSAID_SIGMOIDS = {(47, 154880), (48, 154880)}


class DeepSeek2(Decoder):
    def __init__(self, m: Keys, w: Weights, n_vocab: int) -> None:
        c = DenseConfig.read(m, n_vocab)
        self.sizes = s = sizes_of(m, c)
        n_next = layers_left_out(m, w, c.n_layer, n_used=1)
        c = replace(c, n_layer=c.n_layer - n_next, n_kv_head=1, head_dim=s.rank + s.n_rot, v_head_dim=s.rank)
        n_dense_layers = m.integer("leading_dense_block_count", 0, high=c.n_layer)
        n_shared = m.integer("expert_shared_count", 0, high=64)
        e = experts(m, c, n_next) if n_dense_layers < c.n_layer else None
        if e is None:
            m.without_effect("expert_*")

        def mlp(i: int, b: Weights) -> Layer:
            if e is None or i < n_dense_layers:
                return GatedMLP(b, c.dim, c.ffn_dim)
            return experts_of(b, c.dim, e, n_shared * e.ffn_dim)

        rotation, sharper = latent_rope(m, n_dims=s.n_rot, layout="interleaved")
        scale = sharper * s.head_dim**-0.5
        beta, n_ctx_orig = growth(m)

        def attention(i: int, b: Weights) -> LatentAttention:
            how = {"eps": c.eps, "scale": scale, "beta": beta}
            return LatentAttention(b, c.dim, s, i, rotation=rotation, n_ctx_orig=n_ctx_orig, **how)

        blocks = [Block(c, b, attention(i, b), mlp(i, b)) for i, b in enumerate(w.blocks(c.n_layer))]
        super().__init__(c, w, blocks)
        self.add_predictor(w, lambda b: Block(c, b, attention(0, b), mlp(c.n_layer, b)), s.cache(1)[0])

    def cache(self) -> list[CacheSpec]:
        return self.sizes.cache(self.config.n_layer)


MODEL = DeepSeek2


def sizes_of(m: Keys, c: DenseConfig) -> LatentSizes:
    """Of files whose ``key_length`` is that of the latent row, and of older ones, where it is that of a head."""
    if not m.has("attention.key_length_mla"):
        return LatentSizes.read(m, c.n_head, c.head_dim, c.v_head_dim)
    head_dim = m.integer("attention.key_length_mla", low=1, high=MAX_HEAD_DIM)
    s = LatentSizes.read(m, c.n_head, head_dim, m.integer("attention.value_length_mla", low=1, high=MAX_HEAD_DIM))
    if (c.n_kv_head, c.head_dim, c.v_head_dim) != (1, s.rank + s.n_rot, s.rank):
        raise LoadError(
            f"[{m.arch}] the cache must have 1 head of {s.rank + s.n_rot} and {s.rank} numbers but head_count_kv, "
            f"key_length and value_length are {c.n_kv_head}, {c.head_dim} and {c.v_head_dim}"
        )
    return s


def growth(m: Keys) -> tuple[float, int]:
    """How much queries grow for every so many positions, as in Mistral's large models."""
    if not (beta := m.number("attention.temperature_scale", 0.0)):
        m.without_effect("attention.temperature_length")
        return 0.0, 1
    return beta, m.integer("attention.temperature_length", low=1)


def experts(m: Keys, c: DenseConfig, n_next: int) -> ExpertConfig:
    unsaid = (c.n_layer + n_next, c.n_vocab) in UNSAID_SIGMOIDS
    gating: Gating = "sigmoid" if unsaid else "softmax"
    return ExpertConfig.read(m, c.n_layer, gating=gating, normalize=False, grouped=True, reads=ROUTING)


def rope(config: Fields) -> Iterator[Entry]:
    """As the files have YaRN: the sharpening of long contexts apart from what rotations are multiplied by."""
    parameters = rope_of(config)
    if (kind := kind_of(parameters)) not in ("default", "yarn"):
        raise UnsupportedError(f"[convert] the rope scaling must be default or yarn but is '{kind}'")
    if (part := parameters.value("partial_rotary_factor")) is not None:  # what the sizes of heads say already
        n_rot, n_rest = config.integer("qk_rope_head_dim"), config.integer("qk_nope_head_dim")
        if part not in (1, n_rot / (n_rot + n_rest)):
            raise UnsupportedError(f"[convert] unsupported 'partial_rotary_factor' beside 'qk_rope_head_dim': {part}")
    entries = {name: (name, kind, value) for name, kind, value in rope_keys(config)}
    attention = entries.pop("rope.scaling.attn_factor", ("", "", 1.0))[2]
    yield from entries.values()
    if kind != "yarn" or (log := math.log(parameters.number("factor"))) <= 0:
        return
    own, scale = 1.0 + 0.1 * log, parameters.number("mscale_all_dim", 0.0)
    assert isinstance(attention, float)
    rotated, sharper = attention * own, 1.0 + 0.1 * scale * log if scale else 1.0
    multiplier = 0.1 * scale if abs(rotated - 1.0) < 1e-9 else (sharper / rotated - 1.0) / log
    if multiplier:
        yield "rope.scaling.yarn_log_multiplier", "f32", multiplier
    else:
        rotated /= own
    if abs(rotated - 1.0) >= 1e-9:
        yield "rope.scaling.attn_factor", "f32", rotated


def _k_b(x: Array, nope: int) -> Array:
    part: Array = x[:, :nope].swapaxes(1, 2)
    return part


def _v_b(x: Array, nope: int) -> Array:
    return x[:, nope:]


def _part(part: Callable[[Array, int], Array], nope: int = 128, v_dim: int = 128) -> Change:
    """Of ``[n_head, nope + v_dim, rank]``; the sizes are transformers' defaults."""

    def change(x: Array, config: Fields) -> Array:
        n_nope, n_v = config.integer("qk_nope_head_dim", nope), config.integer("v_head_dim", v_dim)
        return part(x.reshape(config.integer("num_attention_heads"), n_nope + n_v, -1), n_nope)

    return change


def q_rank(default: int) -> Key:
    """0 where queries are made in one product: llama.cpp wants the key of most models."""
    return made("u32", lambda config: 0 if config.is_null("q_lora_rank") else config.integer("q_lora_rank", default))


def latent_eps(default: float) -> Key:
    """Of the norms of latent rows, which no field changes, where the other norms have another."""
    return made("f32", lambda config: None if config.number("rms_norm_eps", default) == LATENT_EPS else LATENT_EPS)


def _whole_rotation(config: Fields) -> None:
    if (found := rope_of(config).number("partial_rotary_factor", 1.0)) != 1.0:
        raise UnsupportedError(f"[convert] 'partial_rotary_factor' must be 1 but is {found}")


def all_heads(config: Fields) -> None:
    """UnsupportedError where keys and values have other heads than queries."""
    n = config.integer("num_attention_heads", low=1)
    if not config.is_null("num_key_value_heads") and (found := config.integer("num_key_value_heads", n)) != n:
        raise UnsupportedError(f"[convert] 'num_key_value_heads' must be {n} but is {found}")


def _rotated_head(config: Fields) -> None:
    """As transformers rotates ``head_dim`` numbers, wherever there is one."""
    n = config.integer("qk_rope_head_dim", 64)
    if (found := config.integer("head_dim", n)) != n:
        raise UnsupportedError(f"[convert] 'head_dim' must be 'qk_rope_head_dim', {n}, but is {found}")


LATENT_KEYS: dict[str, Key] = {
    **DECODER_KEYS,
    "attention.head_count_kv": made("u32", lambda config: 1),
    "attention.q_lora_rank": q_rank(1536),
    "attention.kv_lora_rank": u32("kv_lora_rank", default=512, low=1),
    "attention.key_length": made(
        "u32", lambda config: config.integer("kv_lora_rank", 512) + config.integer("qk_rope_head_dim", 64)
    ),
    "attention.value_length": u32("kv_lora_rank", default=512),
    "attention.key_length_mla": made(
        "u32", lambda config: config.integer("qk_nope_head_dim", 128) + config.integer("qk_rope_head_dim", 64)
    ),
    "attention.value_length_mla": u32("v_head_dim", default=128),
    "attention.latent_norm_rms_epsilon": latent_eps(1e-6),
    "rope.dimension_count": u32("qk_rope_head_dim", default=64),
}
EXPERT_KEYS: dict[str, Key] = {
    "expert_count": u32("n_routed_experts", "num_experts", "num_local_experts"),
    "expert_used_count": u32("num_experts_per_tok"),
    "expert_feed_forward_length": u32("moe_intermediate_size"),
    "expert_shared_count": u32("n_shared_experts"),
    "expert_weights_scale": factor("routed_scaling_factor", default=1.0),
    "leading_dense_block_count": u32("first_k_dense_replace", default=0),
    "nextn_predict_layers": made("u32", lambda config: 0),
}
_LAYER = "model.layers.{i}"
LATENT_TENSORS: dict[str, str | Source] = {
    **{name: source for name, source in DECODER_TENSORS.items() if not name.endswith(("attn_k", "attn_v"))},
    "blk.{i}.attn_q_a": f"{_LAYER}.self_attn.q_a_proj",
    "blk.{i}.attn_q_a_norm": f"{_LAYER}.self_attn.q_a_layernorm",
    "blk.{i}.attn_q_b": f"{_LAYER}.self_attn.q_b_proj",
    "blk.{i}.attn_kv_a_mqa": f"{_LAYER}.self_attn.kv_a_proj_with_mqa",
    "blk.{i}.attn_kv_a_norm": f"{_LAYER}.self_attn.kv_a_layernorm",
    "blk.{i}.attn_k_b": taken(f"{_LAYER}.self_attn.kv_b_proj", change=_part(_k_b)),
    "blk.{i}.attn_v_b": taken(f"{_LAYER}.self_attn.kv_b_proj", change=_part(_v_b)),
}
SHARED_TENSORS: dict[str, str | Source] = {
    **EXPERT_TENSORS,
    "blk.{i}.exp_probs_b.bias": f"{_LAYER}.mlp.gate.e_score_correction_bias",
    **SHARED_EXPERT_TENSORS,
}
UNUSED = (
    "head_dim",
    "qk_head_dim",
    "ep_size",
    "aux_loss_alpha",
    "seq_aux",
    "num_nextn_predict_layers",
    "num_mtp_layers",
)
FIXED = {"hidden_act": SILU, "attention_bias": (False,), "moe_layer_freq": (1,)}


def _groups(name: str) -> Key:
    """Groups count where the choice is limited to some."""

    def read(config: Fields) -> int:
        n = 1 if config.is_null(name) else config.integer(name, 1, low=1)
        return n if config.text("topk_method", "greedy") == "group_limited_greedy" else 1

    return made("u32", read)


HF = {
    "DeepseekV2ForCausalLM": Checkpoint(
        "deepseek2",
        {
            **LATENT_KEYS,
            **EXPERT_KEYS,
            "expert_count": u32("n_routed_experts", "num_experts", default=64),
            "expert_shared_count": u32("n_shared_experts", default=2),
            "expert_feed_forward_length": u32("moe_intermediate_size", default=1407),
            "expert_gating_func": made("u32", lambda config: 1),
            "expert_group_count": _groups("n_group"),
            "expert_group_used_count": _groups("topk_group"),
        },
        {**LATENT_TENSORS, **SHARED_TENSORS},
        fixed={
            **FIXED,
            "mlp_bias": (False,),
            "scoring_func": ("softmax",),
            "norm_topk_prob": (False, None),
            "topk_method": ("greedy", "group_limited_greedy"),
        },
        checks=(all_heads,),
        rope=rope,
        unused=UNUSED,
    ),
    "DeepseekV3ForCausalLM": Checkpoint(
        "deepseek2",
        {
            **LATENT_KEYS,
            **EXPERT_KEYS,
            "expert_count": u32("n_routed_experts", "num_local_experts", default=256),
            "expert_used_count": u32("num_experts_per_tok", default=8),
            "expert_shared_count": u32("n_shared_experts", default=1),
            "expert_feed_forward_length": u32("moe_intermediate_size", default=2048),
            "expert_weights_scale": factor("routed_scaling_factor", default=2.5),
            "expert_weights_norm": flag("norm_topk_prob", default=True),
            "expert_gating_func": made("u32", lambda config: 2),
            "expert_group_count": u32("n_group", default=8, low=1),
            "expert_group_used_count": u32("topk_group", default=4, low=1),
            "leading_dense_block_count": u32("first_k_dense_replace", default=3),
        },
        {**LATENT_TENSORS, **SHARED_TENSORS},
        fixed={
            **FIXED,
            "scoring_func": ("sigmoid",),
            "topk_method": ("noaux_tc",),
            "rope_interleave": (True,),
        },
        checks=(all_heads, _rotated_head),
        rope=rope,
        unused=UNUSED,
        predicting=PREDICTING_LAYERS,
    ),
    "Glm4MoeLiteForCausalLM": Checkpoint(
        "deepseek2",
        {
            **LATENT_KEYS,
            **EXPERT_KEYS,
            "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-5),
            "attention.latent_norm_rms_epsilon": latent_eps(1e-5),
            "attention.q_lora_rank": q_rank(768),
            "attention.key_length_mla": made(
                "u32", lambda config: config.integer("qk_nope_head_dim", 192) + config.integer("qk_rope_head_dim", 64)
            ),
            "attention.value_length_mla": u32("v_head_dim", default=256),
            "expert_count": u32("n_routed_experts", "num_local_experts", default=64),
            "expert_used_count": u32("num_experts_per_tok", default=4),
            "expert_shared_count": u32("n_shared_experts", default=1),
            "expert_feed_forward_length": u32("moe_intermediate_size", default=1536),
            "expert_weights_scale": factor("routed_scaling_factor", default=1.8),
            "expert_weights_norm": flag("norm_topk_prob", default=True),
            "expert_gating_func": made("u32", lambda config: 2),
            "expert_group_count": u32("n_group", default=1, low=1),
            "expert_group_used_count": u32("topk_group", default=1, low=1),
            "leading_dense_block_count": made("u32", lambda config: n_dense(config, 1)),
        },
        {
            **LATENT_TENSORS,
            **SHARED_TENSORS,
            "blk.{i}.attn_k_b": taken(f"{_LAYER}.self_attn.kv_b_proj", change=_part(_k_b, 192, 256)),
            "blk.{i}.attn_v_b": taken(f"{_LAYER}.self_attn.kv_b_proj", change=_part(_v_b, 192, 256)),
        },
        fixed={
            **FIXED,
            "scoring_func": ("sigmoid",),
            "topk_method": ("noaux_tc",),
            "rope_interleave": (True,),
            "partial_rotary_factor": (1.0, 1),
        },
        checks=(all_heads, _whole_rotation),
        rope=rope,
        unused=(*UNUSED, "first_k_dense_replace"),
        predicting=PREDICTING_LAYERS,
    ),
}
