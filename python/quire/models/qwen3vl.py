"""Qwen3-VL (Bai et al. 2025): Qwen3 with positions in time, height and width.

The three positions of a text token are equal.  The vision encoder is in ``media/qwen3vl.py``.
"""

from __future__ import annotations

from ..checkpoints.mapping import DECODER_KEYS, DECODER_TENSORS, SILU, tensor, u32
from ..checkpoints.mapping.pictures import DeepStack
from ..checkpoints.mapping.rope import mrope_keys
from ..nn import GatedMLP, Keys, Weights, frequency_factors, rope_spec
from .base import Block, Decoder, DenseConfig
from .qwen3 import HEADS, QK_NORMS, Attention

ARCHES = ("qwen3vl",)


class Qwen3VL(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        keys.without_effect("n_deepstack_layers")  # the vision encoder has the same number of them
        config = DenseConfig.read(keys, n_vocab)
        sections = keys.integers("rope.dimension_sections", 3) if keys.has("rope.dimension_sections") else []
        factors = frequency_factors(weights, config.n_rot)
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half", factors=factors, sections=sections)
        blocks = [
            Block(config, block, Attention(config, block, i, rotation), GatedMLP(block, config.dim, config.ffn_dim))
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)


MODEL = Qwen3VL

# --- checkpoint ---

_TENSORS = {
    ours: tensor(str(theirs).replace("model.", "model.language_model.", 1))
    for ours, theirs in {**DECODER_TENSORS, **QK_NORMS}.items()
}
HF = {
    "Qwen3VLForConditionalGeneration": DeepStack(
        "qwen3vl",
        {
            **DECODER_KEYS,
            **HEADS,
            "attention.head_count_kv": u32("num_key_value_heads", default=32),
            "n_deepstack_layers": u32("n_deepstack_layers", default=None),
        },
        _TENSORS,
        fixed={"hidden_act": SILU},
        rope=mrope_keys(500000.0),
        section="text_config",
        base="model.language_model.",
        unused=("attention_bias", "vision_config"),
        ignored=("model.visual.*", "visual.*"),
    )
}
