"""GLM-4-0414 (GLM team 2024): pre- and post-norms, interleaved RoPE on half of each head."""

from __future__ import annotations

from ..checkpoints.mapping import DECODER_KEYS, SILU, Checkpoint, Fields, Key, computed, f32, u32
from ..checkpoints.mapping.decoder import BIASED_TENSORS
from ..checkpoints.mapping.rope import partial_rotary
from ..nn import FusedGatedMLP, Keys, Weights, rope_spec
from .base import Decoder, DenseConfig, SandwichBlock
from .llama import Attention

ARCHES = ("glm4",)


class Glm4(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="interleaved")
        blocks = [
            SandwichBlock(
                config, block, Attention(config, block, i, rotation), FusedGatedMLP(block, config.dim, config.ffn_dim)
            )
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)


MODEL = Glm4

# --- checkpoint ---


def n_rot_of(config: Fields) -> int:
    return partial_rotary(config, config.integer("head_dim", 128), 0.5)


# Also used by transformers' version of ChatGLM.
KEYS: dict[str, Key] = {
    **DECODER_KEYS,
    "context_length": u32("max_position_embeddings", default=131072),
    "attention.head_count_kv": u32("num_key_value_heads", default=2, low=1),
    "attention.key_length": u32("head_dim", default=128),
    "attention.value_length": u32("head_dim", default=128),
    "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1.5625e-07),
    "rope.dimension_count": computed("u32", n_rot_of),
}
_LAYER = "model.layers.{i}"
HF = {
    "Glm4ForCausalLM": Checkpoint(
        "glm4",
        KEYS,
        {
            **BIASED_TENSORS,
            "blk.{i}.post_attention_norm": f"{_LAYER}.post_self_attn_layernorm",
            "blk.{i}.post_ffw_norm": f"{_LAYER}.post_mlp_layernorm",
            "blk.{i}.ffn_up": f"{_LAYER}.mlp.gate_up_proj",
        },
        fixed={"hidden_act": SILU},
        unused=("attention_bias",),
    )
}
