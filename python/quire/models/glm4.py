"""GLM-4-0414 (GLM team 2024): pre- and post-norms, interleaved RoPE on half of each head.

The text models of GLM-4V and GLM-OCR have positions in time, height and width; their files store q and k in halves.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    SILU,
    Array,
    Change,
    Checkpoint,
    Fields,
    Key,
    computed,
    f32,
    tensor,
    u32,
    with_pictures,
)
from ..checkpoints.mapping.decoder import BIASED_TENSORS
from ..checkpoints.mapping.rope import mrope_keys, partial_rotary
from ..nn import FusedGatedMLP, Keys, Weights, rope_spec
from .base import Decoder, DenseConfig, SandwichBlock
from .llama import Attention, head_dim_of

ARCHES = ("glm4",)


class Glm4(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        sections = sections_of(keys)
        rotation = rope_spec(
            keys, n_dims=config.n_rot, layout="half" if sections else "interleaved", sections=sections, take_turns=False
        )
        blocks = [
            SandwichBlock(
                config, block, Attention(config, block, i, rotation), FusedGatedMLP(block, config.dim, config.ffn_dim)
            )
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)


def sections_of(keys: Keys) -> Sequence[int]:
    """Return how many pairs rotate by time, height and width; empty if all rotate by the position."""
    if not keys.has("rope.dimension_sections"):
        return ()
    sections = keys.integers("rope.dimension_sections", 3)
    return sections if any(sections) else ()


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
_NORMS = {
    "blk.{i}.post_attention_norm": f"{_LAYER}.post_self_attn_layernorm",
    "blk.{i}.post_ffw_norm": f"{_LAYER}.post_mlp_layernorm",
    "blk.{i}.ffn_up": f"{_LAYER}.mlp.gate_up_proj",
}


def _n_rot(config: Fields) -> int:
    return partial_rotary(config, head_dim_of(config))


def _halved(n_heads: str) -> Change:
    """Reorder the rotated rows of each head from pairs to halves."""

    def change(x: Array, config: Fields) -> Array:
        import numpy as np

        n_head, n_rot = config.integer(n_heads, config.integer("num_attention_heads")), _n_rot(config)
        heads = x.reshape(n_head, x.shape[0] // n_head, *x.shape[1:])
        whole: Array = np.concatenate([heads[:, 0:n_rot:2], heads[:, 1:n_rot:2], heads[:, n_rot:]], axis=1)
        return whole.reshape(x.shape)

    return change


def _with_places(n_kv_head: int, sections: Sequence[int]) -> Checkpoint:
    """Return the mapping of a text model beside a vision encoder."""
    return with_pictures(
        Checkpoint(
            "glm4",
            {
                **DECODER_KEYS,
                "attention.head_count_kv": u32("num_key_value_heads", default=n_kv_head, low=1),
                "attention.key_length": computed("u32", head_dim_of),
                "attention.value_length": computed("u32", head_dim_of),
                "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-5),
                "rope.dimension_count": computed("u32", _n_rot),
            },
            {
                **DECODER_TENSORS,
                **_NORMS,
                "blk.{i}.attn_q": tensor(f"{_LAYER}.self_attn.q_proj", change=_halved("num_attention_heads")),
                "blk.{i}.attn_k": tensor(f"{_LAYER}.self_attn.k_proj", change=_halved("num_key_value_heads")),
            },
            fixed={"hidden_act": SILU},
            rope=mrope_keys(10000.0, sections),
            unused=("attention_bias", "num_nextn_predict_layers"),
            ignored=("model.visual.*", "visual.*", "model.language_model.layers.16.*"),
        )
    )


HF = {
    "Glm4ForCausalLM": Checkpoint(
        "glm4", KEYS, {**BIASED_TENSORS, **_NORMS}, fixed={"hidden_act": SILU}, unused=("attention_bias",)
    ),
    "Glm4vForConditionalGeneration": _with_places(2, (8, 12, 12)),
    "Glm46VForConditionalGeneration": _with_places(2, (8, 12, 12)),
    "GlmOcrForConditionalGeneration": _with_places(8, (8, 12, 12)),
}
