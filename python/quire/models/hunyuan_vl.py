"""HunyuanOCR (Tencent 2025), text: Hunyuan, dense, with positions in text, width, height and time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..checkpoints.mapping import Fields, with_pictures
from ..checkpoints.mapping.rope import Entry, rope_of
from ..nn import GatedMLP, Keys, Weights, frequency_factors, rope_spec
from . import hunyuan_dense
from .base import Block, Decoder, DenseConfig
from .hunyuan_dense import Attention

ARCHES = ("hunyuan_vl",)


class HunyuanVL(Decoder):
    """The four positions of a text token are equal."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        keys.without_effect("rope.dimension_sections")  # for images only
        base, n = keys.number("rope.freq_base", 10000.0), config.n_rot
        if (alpha := keys.number("rope.scaling.alpha", 0.0)) > 0:
            rotation = rope_spec(keys, n_dims=n, layout="half", freq_base=base * alpha ** (n / (n - 2)))
        else:
            rotation = rope_spec(keys, n_dims=n, layout="half", factors=frequency_factors(weights, n))
        blocks = [
            Block(config, block, Attention(config, block, i, rotation), GatedMLP(block, config.dim, config.ffn_dim))
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)


MODEL = HunyuanVL

# --- checkpoint ---

_DENSE = hunyuan_dense.HF["HunYuanDenseV1ForCausalLM"]


def _rope(config: Fields) -> Iterator[Entry]:
    assert _DENSE.rope is not None
    rope = rope_of(config)
    sections = rope.items("mrope_section") or rope.items("xdrope_section")
    if sections:
        yield "rope.dimension_sections", "i32[]", [*map(int, map(str, sections)), 0, 0, 0, 0][:4]
    yield from _DENSE.rope(config)


HF = {
    "HunYuanVLForConditionalGeneration": replace(
        with_pictures(replace(_DENSE, arch="hunyuan_vl", rope=_rope), tied=True),
        ignored=("vit.*", "visual.*", "model.vit.*", "model.visual.*", "model.vision_tower.*", "vision_tower.*"),
        unused=("vision_config", "attention_bias", "im_*_id", "image_token_id", "org_vocab_size", "pad_id"),
    )
}
