"""MiniCPM3 (OpenBMB 2024): latent attention in a dense model, MiniCPM's multipliers, LongRoPE."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..checkpoints.mapping import Checkpoint, Entry, Fields, Source, computed, f32, rope_keys, u32
from ..checkpoints.mapping.rope import LONGROPE, kind_of, longrope_keys, rope_of
from ..errors import UnsupportedError
from ..nn import CacheSpec, GatedMLP, Keys, LatentAttention, LatentSizes, LongRope, Step, Tensor, Weights
from . import deepseek2
from .base import Block, Decoder, DenseConfig

ARCHES = ("minicpm3",)
# Files have no keys for these.
EMBEDDING_SCALE, DEPTH_SCALE, BASE_DIM = 12.0, 1.4, 256


class ScaledBlock(Block):
    def __init__(self, config: DenseConfig, weights: Weights, attention: LatentAttention, mlp: GatedMLP) -> None:
        super().__init__(config, weights, attention, mlp)
        self.scale: float = DEPTH_SCALE / config.n_layer**0.5

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.attention(self.attn_norm(x), step) * self.scale
        return x + self.mlp(self.ffn_norm(x)) * self.scale


class MiniCPM3(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        v_dim = config.v_head_dim if keys.has("attention.value_length") else config.dim // config.n_head
        self.sizes = sizes = LatentSizes.read(keys, config.n_head, config.head_dim, v_dim)
        config = replace(config, n_kv_head=1, head_dim=sizes.rank + sizes.n_rot, v_head_dim=sizes.rank)
        rotation, scale = LongRope(keys, weights, sizes.n_rot), sizes.head_dim**-0.5
        blocks = [
            ScaledBlock(
                config,
                block,
                LatentAttention(block, config.dim, sizes, i, eps=config.eps, rotation=rotation, scale=scale),
                GatedMLP(block, config.dim, config.ffn_dim),
            )
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)

    def cache(self) -> list[CacheSpec]:
        return self.sizes.cache(self.config.n_layer)

    def __call__(self, step: Step) -> Tensor:
        x = self.embedding(step.tokens) * EMBEDDING_SCALE
        return self.logits(x, step) * (BASE_DIM / self.config.dim)


MODEL = MiniCPM3

# --- checkpoint ---


def _rope(config: Fields) -> Iterator[Entry]:
    rope = rope_of(config)
    if kind_of(rope) != "default" and (scale := rope.number("mscale_all_dim", 0.0)):
        raise UnsupportedError(f"[convert] unsupported 'mscale_all_dim' of the rope scaling: {scale} (expected 0)")
    if kind_of(rope) not in LONGROPE:
        return rope_keys(config)
    n_ctx = config.integer("max_position_embeddings", low=1)
    return longrope_keys(config, rope.integer("original_max_position_embeddings", n_ctx, low=1))


def _v_dim(config: Fields) -> int:
    heads = config.integer("num_attention_heads", low=1)
    shared = config.integer("hidden_size") // heads
    return shared if config.is_null("v_head_dim") else config.integer("v_head_dim", shared)


_SPLIT = ("blk.{i}.attn_k_b", "blk.{i}.attn_v_b")
TENSORS: dict[str, str | Source] = {
    **{name: source for name, source in deepseek2.LATENT_TENSORS.items() if name not in _SPLIT},
    "blk.{i}.attn_kv_b": "model.layers.{i}.self_attn.kv_b_proj",
}
HF = {
    "MiniCPM3ForCausalLM": Checkpoint(
        "minicpm3",
        {
            **{name: key for name, key in deepseek2.LATENT_KEYS.items() if not name.endswith("_mla")},
            "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-5),
            "attention.head_count_kv": u32("num_attention_heads", low=1),
            "attention.latent_norm_rms_epsilon": deepseek2.latent_eps(1e-5),
            "attention.q_lora_rank": deepseek2.q_rank(768),
            "attention.kv_lora_rank": u32("kv_lora_rank", default=256, low=1),
            "attention.key_length": computed(
                "u32", lambda config: config.integer("qk_nope_head_dim", 64) + config.integer("qk_rope_head_dim", 32)
            ),
            "attention.value_length": computed("u32", _v_dim),
            "rope.dimension_count": u32("qk_rope_head_dim", default=32),
        },
        TENSORS,
        fixed={
            **deepseek2.FIXED,
            "mlp_bias": (False,),
            "scale_emb": (EMBEDDING_SCALE,),
            "scale_depth": (DEPTH_SCALE,),
            "dim_model_base": (BASE_DIM,),
        },
        checks=(deepseek2.all_heads,),
        rope=_rope,
        tied=True,
        unused=("head_dim", "qk_head_dim"),
    )
}
