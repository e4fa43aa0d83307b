"""PLM (Deng et al. 2025): latent attention in a dense model, an ungated MLP with squared ReLU (So et al. 2021)."""

from __future__ import annotations

from dataclasses import replace

from .._native.graph import relu_squared
from ..checkpoints.mapping import Checkpoint, computed, u32
from ..nn import MLP, CacheSpec, Keys, LatentAttention, Weights, latent_rope
from . import deepseek2
from .base import Block, Decoder, DenseConfig
from .deepseek2 import LATENT_KEYS, LATENT_TENSORS, all_heads, sizes_of

ARCHES = ("plm",)


class Plm(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        self.sizes = sizes = sizes_of(keys, config)
        config = replace(config, n_kv_head=1, head_dim=sizes.rank + sizes.n_rot, v_head_dim=sizes.rank)
        rotation, sharper = latent_rope(keys, n_dims=sizes.n_rot, layout="interleaved")
        scale = sharper * sizes.head_dim**-0.5
        blocks = [
            Block(
                config,
                block,
                LatentAttention(block, config.dim, sizes, i, eps=config.eps, rotation=rotation, scale=scale),
                MLP(block, config.dim, config.ffn_dim, relu_squared),
            )
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)

    def cache(self) -> list[CacheSpec]:
        return self.sizes.cache(self.config.n_layer)


MODEL = Plm

# --- checkpoint ---

_KV = "model.layers.{i}.self_attn.kv_b_proj"
HF = {
    "PLMForCausalLM": Checkpoint(
        "plm",
        {
            **{key: value for key, value in LATENT_KEYS.items() if not key.endswith(("_mla", "q_lora_rank"))},
            "attention.head_count_kv": u32("num_key_value_heads", "num_attention_heads", low=1),
            "attention.key_length": computed(
                "u32", lambda config: config.integer("qk_nope_head_dim") + config.integer("qk_rope_head_dim")
            ),
            "attention.value_length": u32("v_head_dim"),
        },
        {
            **{
                name: source for name, source in LATENT_TENSORS.items() if not name.endswith(("k_b", "v_b", "ffn_gate"))
            },
            "blk.{i}.attn_kv_b": _KV,
        },
        fixed={"hidden_act": ("relu2",), "attention_bias": (False,), "q_lora_rank": (None,)},
        checks=(all_heads,),
        rope=deepseek2.rope,
        tied=True,
        unused=("head_dim", "qk_head_dim", "mlp_bias", "use_sliding_window", "sliding_window", "max_window_layers"),
    )
}
