"""DeepSeek V2 and V3, R1, Kimi K2, Moonlight, GLM 4.7 Flash (DeepSeek-AI 2024): latent attention, shared experts.

The first layers are dense.  A layer after the last one predicts later tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from ..checkpoints.mapping import (
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
    computed,
    f32,
    factor,
    flag,
    n_dense,
    rope_keys,
    tensor,
    u32,
)
from ..checkpoints.mapping.rope import kind_of, rope_of
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
# Numbers of layers and tokens of GLM 4.7 Flash: its first files lack the key that says scores are sigmoids.
UNSAID_SIGMOIDS = {(47, 154880), (48, 154880)}


class DeepSeek2(Decoder):
    attention: type[LatentAttention] = LatentAttention
    block: type[Block] = Block

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        self.sizes = sizes = sizes_of(keys, config)
        n_next = layers_left_out(keys, weights, config.n_layer, n_used=1)
        config = replace(
            config,
            n_layer=config.n_layer - n_next,
            n_kv_head=1,
            head_dim=sizes.rank + sizes.n_rot,
            v_head_dim=sizes.rank,
        )
        n_dense_layers = keys.integer("leading_dense_block_count", 0, high=config.n_layer)
        n_shared = keys.integer("expert_shared_count", 0, high=64)
        experts = read_experts(keys, config, n_next) if n_dense_layers < config.n_layer else None
        if experts is None:
            keys.without_effect("expert_*")

        def mlp(i: int, block: Weights) -> Layer:
            if experts is None or i < n_dense_layers:
                return GatedMLP(block, config.dim, config.ffn_dim)
            return self.mixture(keys, block, config.dim, experts, n_shared * experts.ffn_dim)

        rotation, sharper = latent_rope(keys, n_dims=sizes.n_rot, layout="interleaved")
        scale = sharper * sizes.head_dim**-0.5
        beta, n_ctx_orig = growth(keys)

        def attention(i: int, block: Weights) -> LatentAttention:
            how = {"eps": config.eps, "scale": scale, "beta": beta}
            return self.attention(block, config.dim, sizes, i, rotation=rotation, n_ctx_orig=n_ctx_orig, **how)

        blocks = [
            self.block(config, block, attention(i, block), mlp(i, block))
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)
        self.add_predictor(
            weights,
            lambda block: self.block(config, block, attention(0, block), mlp(config.n_layer, block)),
            sizes.cache(1)[0],
        )

    def mixture(self, keys: Keys, weights: Weights, dim: int, experts: ExpertConfig, shared_dim: int) -> Layer:
        """Return a layer's routed experts, with the shared ones."""
        return experts_of(weights, dim, experts, shared_dim)

    def cache(self) -> list[CacheSpec]:
        return self.sizes.cache(self.config.n_layer)


def sizes_of(keys: Keys, config: DenseConfig) -> LatentSizes:
    """Read the sizes: ``key_length`` is that of the latent row, or of a head in older files."""
    if not keys.has("attention.key_length_mla"):
        return LatentSizes.read(keys, config.n_head, config.head_dim, config.v_head_dim)
    head_dim = keys.integer("attention.key_length_mla", low=1, high=MAX_HEAD_DIM)
    sizes = LatentSizes.read(
        keys, config.n_head, head_dim, keys.integer("attention.value_length_mla", low=1, high=MAX_HEAD_DIM)
    )
    if (config.n_kv_head, config.head_dim, config.v_head_dim) != (1, sizes.rank + sizes.n_rot, sizes.rank):
        raise LoadError(
            f"[{keys.arch}] head_count_kv, key_length and value_length are {config.n_kv_head}, {config.head_dim} and "
            f"{config.v_head_dim}: the latent cache needs 1, {sizes.rank + sizes.n_rot} and {sizes.rank}"
        )
    return sizes


def growth(keys: Keys) -> tuple[float, int]:
    """Return beta and length of the queries' growth with their position, as in Mistral's large models."""
    if not (beta := keys.number("attention.temperature_scale", 0.0)):
        keys.without_effect("attention.temperature_length")
        return 0.0, 1
    return beta, keys.integer("attention.temperature_length", low=1)


def read_experts(keys: Keys, config: DenseConfig, n_next: int) -> ExpertConfig:
    unsaid = (config.n_layer + n_next, config.n_vocab) in UNSAID_SIGMOIDS
    gating: Gating = "sigmoid" if unsaid else "softmax"
    return ExpertConfig.read(keys, config.n_layer, gating=gating, normalize=False, grouped=True, reads=ROUTING)


MODEL = DeepSeek2

# --- checkpoint ---

LATENT_EPS = 1e-6


def rope(config: Fields) -> Iterator[Entry]:
    """Yield the RoPE keys; YaRN's sharpening of long contexts is separate from the factor of the rotation."""
    parameters = rope_of(config)
    if (kind := kind_of(parameters)) not in ("default", "yarn"):
        raise UnsupportedError(f"[convert] unsupported rope scaling '{kind}': expected default or yarn")
    if (part := parameters.value("partial_rotary_factor")) is not None:  # redundant: head sizes determine it
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
    """Take a part of ``[n_head, nope + v_dim, rank]``; the sizes given are transformers' defaults."""

    def change(x: Array, config: Fields) -> Array:
        n_nope, n_v = config.integer("qk_nope_head_dim", nope), config.integer("v_head_dim", v_dim)
        return part(x.reshape(config.integer("num_attention_heads"), n_nope + n_v, -1), n_nope)

    return change


def part_of_kv(*, of_values: bool, sizes: tuple[int, int]) -> Change:
    """Take the heads' matrices of keys or of values; ``sizes`` are transformers' defaults of both."""
    return _part(_v_b if of_values else _k_b, *sizes)


def q_rank(default: int) -> Key:
    """Return the key of the queries' rank, 0 for a single product: llama.cpp requires the key for most models."""
    return computed(
        "u32", lambda config: 0 if config.is_null("q_lora_rank") else config.integer("q_lora_rank", default)
    )


def latent_eps(default: float) -> Key:
    """Return the key for the epsilon of latent norms, a constant; it is written if the other norms differ."""
    return computed("f32", lambda config: None if config.number("rms_norm_eps", default) == LATENT_EPS else LATENT_EPS)


def _whole_rotation(config: Fields) -> None:
    if (found := rope_of(config).number("partial_rotary_factor", 1.0)) != 1.0:
        raise UnsupportedError(f"[convert] unsupported 'partial_rotary_factor': {found} (expected 1)")


def all_heads(config: Fields) -> None:
    """Require as many heads of keys and values as of queries."""
    n = config.integer("num_attention_heads", low=1)
    if not config.is_null("num_key_value_heads") and (found := config.integer("num_key_value_heads", n)) != n:
        raise UnsupportedError(f"[convert] unsupported 'num_key_value_heads': {found} (expected {n})")


def _rotated_head(config: Fields) -> None:
    """Require ``head_dim`` to equal ``qk_rope_head_dim``: transformers rotates ``head_dim`` dimensions if it is set."""
    n = config.integer("qk_rope_head_dim", 64)
    if (found := config.integer("head_dim", n)) != n:
        raise UnsupportedError(f"[convert] 'head_dim' is {found}, but 'qk_rope_head_dim' is {n}")


LATENT_KEYS: dict[str, Key] = {
    **DECODER_KEYS,
    "attention.head_count_kv": computed("u32", lambda config: 1),
    "attention.q_lora_rank": q_rank(1536),
    "attention.kv_lora_rank": u32("kv_lora_rank", default=512, low=1),
    "attention.key_length": computed(
        "u32", lambda config: config.integer("kv_lora_rank", 512) + config.integer("qk_rope_head_dim", 64)
    ),
    "attention.value_length": u32("kv_lora_rank", default=512),
    "attention.key_length_mla": computed(
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
    "nextn_predict_layers": computed("u32", lambda config: 0),
}
_LAYER = "model.layers.{i}"
LATENT_TENSORS: dict[str, str | Source] = {
    **{name: source for name, source in DECODER_TENSORS.items() if not name.endswith(("attn_k", "attn_v"))},
    "blk.{i}.attn_q_a": f"{_LAYER}.self_attn.q_a_proj",
    "blk.{i}.attn_q_a_norm": f"{_LAYER}.self_attn.q_a_layernorm",
    "blk.{i}.attn_q_b": f"{_LAYER}.self_attn.q_b_proj",
    "blk.{i}.attn_kv_a_mqa": f"{_LAYER}.self_attn.kv_a_proj_with_mqa",
    "blk.{i}.attn_kv_a_norm": f"{_LAYER}.self_attn.kv_a_layernorm",
    "blk.{i}.attn_k_b": tensor(f"{_LAYER}.self_attn.kv_b_proj", change=_part(_k_b)),
    "blk.{i}.attn_v_b": tensor(f"{_LAYER}.self_attn.kv_b_proj", change=_part(_v_b)),
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
    """Return a key of expert groups, 1 unless the choice is limited to some groups."""

    def read(config: Fields) -> int:
        n = 1 if config.is_null(name) else config.integer(name, 1, low=1)
        return n if config.text("topk_method", "greedy") == "group_limited_greedy" else 1

    return computed("u32", read)


HF = {
    "DeepseekV2ForCausalLM": Checkpoint(
        "deepseek2",
        {
            **LATENT_KEYS,
            **EXPERT_KEYS,
            "expert_count": u32("n_routed_experts", "num_experts", default=64),
            "expert_shared_count": u32("n_shared_experts", default=2),
            "expert_feed_forward_length": u32("moe_intermediate_size", default=1407),
            "expert_gating_func": computed("u32", lambda config: 1),
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
            "expert_gating_func": computed("u32", lambda config: 2),
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
            "attention.key_length_mla": computed(
                "u32", lambda config: config.integer("qk_nope_head_dim", 192) + config.integer("qk_rope_head_dim", 64)
            ),
            "attention.value_length_mla": u32("v_head_dim", default=256),
            "expert_count": u32("n_routed_experts", "num_local_experts", default=64),
            "expert_used_count": u32("num_experts_per_tok", default=4),
            "expert_shared_count": u32("n_shared_experts", default=1),
            "expert_feed_forward_length": u32("moe_intermediate_size", default=1536),
            "expert_weights_scale": factor("routed_scaling_factor", default=1.8),
            "expert_weights_norm": flag("norm_topk_prob", default=True),
            "expert_gating_func": computed("u32", lambda config: 2),
            "expert_group_count": u32("n_group", default=1, low=1),
            "expert_group_used_count": u32("topk_group", default=1, low=1),
            "leading_dense_block_count": computed("u32", lambda config: n_dense(config, 1)),
        },
        {
            **LATENT_TENSORS,
            **SHARED_TENSORS,
            "blk.{i}.attn_k_b": tensor(f"{_LAYER}.self_attn.kv_b_proj", change=_part(_k_b, 192, 256)),
            "blk.{i}.attn_v_b": tensor(f"{_LAYER}.self_attn.kv_b_proj", change=_part(_v_b, 192, 256)),
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
