"""PaddleOCR-VL (Baidu 2025), text: ERNIE 4.5 with RoPE on halves, and positions in time, height and width."""

from __future__ import annotations

from dataclasses import replace

from ..checkpoints.mapping import with_pictures
from ..checkpoints.mapping.rope import mrope_keys
from ..nn import GatedMLP, Keys, Weights, rope_spec
from . import ernie4_5
from .base import Block, Decoder, DenseConfig
from .llama import Attention

ARCHES = ("paddleocr",)


class PaddleOcr(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        sections = keys.integers("rope.dimension_sections", 3) if keys.has("rope.dimension_sections") else []
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half", sections=sections, take_turns=False)
        blocks = [
            Block(config, block, Attention(config, block, i, rotation), GatedMLP(block, config.dim, config.ffn_dim))
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)


MODEL = PaddleOcr

# --- checkpoint ---

_ERNIE = replace(ernie4_5.HF["Ernie4_5ForCausalLM"], arch="paddleocr", rope=mrope_keys(500000.0, (16, 24, 24)))
_PICTURED = with_pictures(_ERNIE)
HF = {
    "PaddleOCRVLForConditionalGeneration": replace(
        _PICTURED, ignored=(*_PICTURED.ignored, "visual.*", "model.visual.*", "mlp_AR.*", "model.projector.*")
    )
}
