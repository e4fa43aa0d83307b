"""Hunyuan with experts (Sun et al. 2024): query and key norms after RoPE, a shared expert."""

from __future__ import annotations

from collections.abc import Iterator

from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    EXPERT_TENSORS,
    SILU,
    Checkpoint,
    Fields,
    computed,
    f32,
    rope_keys,
    u32,
)
from ..checkpoints.mapping.rope import Entry, kind_of, rope_of, theta_of
from ..errors import UnsupportedError
from ..nn import ExpertConfig, Keys, Step, Tensor, Weights, experts_of, rope, rope_spec
from .base import MAX_DIM, Block, Decoder, DenseConfig
from .qwen3 import Attention

ARCHES = ("hunyuan-moe",)


class RotatedFirst(Attention):
    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q = self.q_norm(rope(self.q(x).heads(self.n_head), step.positions, self.rotation))
        k = self.k_norm(rope(self.k(x).heads(self.n_kv_head), step.positions, self.rotation))
        v = self.v(x).heads(self.n_kv_head)
        return self.o(step.attend(self.layer, q, k, v, scale=self.scale))


class HunyuanMoe(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        experts = ExpertConfig.read(keys, config.n_layer)
        shared_dim = keys.integer("expert_shared_feed_forward_length", config.ffn_dim, low=1, high=MAX_DIM)
        keys.without_effect("expert_shared_count")  # the key above holds the width of all of them together
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half")
        blocks = [
            Block(
                config,
                block,
                RotatedFirst(config, block, i, rotation),
                experts_of(block, config.dim, experts, shared_dim),
            )
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)


MODEL = HunyuanMoe

# --- checkpoint ---


def _n_used(config: Fields) -> int:
    if isinstance(config.value("moe_topk"), list):
        numbers = set(config.items("moe_topk"))
        if len(numbers) != 1 or not isinstance(number := numbers.pop(), int):
            raise UnsupportedError("[convert] unsupported 'moe_topk': it differs between layers")
        return number
    return config.integer("moe_topk", 1)


def _rope(config: Fields) -> Iterator[Entry]:
    """Yield the RoPE keys; "dynamic" scaling with a fixed ``alpha`` is just a larger base."""
    rope = rope_of(config)
    if kind_of(rope) == "dynamic" and rope.has("alpha"):
        head_dim = config.integer("head_dim", 0)
        if head_dim <= 2:
            raise UnsupportedError(f"[convert] 'head_dim' {head_dim} is out of range: expected more than 2")
        rope.read(("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "original_max_position_embeddings"))
        yield "rope.freq_base", "f32", theta_of(config) * rope.number("alpha") ** (head_dim / (head_dim - 2))
    else:
        yield from rope_keys(config)


_LAYER = "model.layers.{i}"
HF = {
    "HunYuanMoEV1ForCausalLM": Checkpoint(
        "hunyuan-moe",
        {
            **DECODER_KEYS,
            "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-5),
            "expert_count": u32("num_experts", "num_local_experts", default=1),
            "expert_used_count": computed("u32", _n_used),
            "expert_feed_forward_length": u32("intermediate_size"),
            "expert_shared_feed_forward_length": u32("intermediate_size"),
        },
        {
            **DECODER_TENSORS,
            **EXPERT_TENSORS,
            "blk.{i}.attn_q_norm": f"{_LAYER}.self_attn.query_layernorm",
            "blk.{i}.attn_k_norm": f"{_LAYER}.self_attn.key_layernorm",
            "blk.{i}.ffn_gate_inp": f"{_LAYER}.mlp.gate.wg",
            "blk.{i}.ffn_gate_shexp": f"{_LAYER}.mlp.shared_mlp.gate_proj",
            "blk.{i}.ffn_up_shexp": f"{_LAYER}.mlp.shared_mlp.up_proj",
            "blk.{i}.ffn_down_shexp": f"{_LAYER}.mlp.shared_mlp.down_proj",
        },
        fixed={"hidden_act": SILU, "use_cla": (False,), "use_mla": (False,), "use_qk_norm": (True,)},
        rope=_rope,
        unused=("attention_bias", "mlp_bias", "moe_intermediate_size", "num_shared_expert"),
    )
}
