"""A.X K1 (SK Telecom 2026): DeepSeek V3 with a norm after the experts."""

from __future__ import annotations

from dataclasses import replace

from ..checkpoints.mapping import Fields, computed, n_dense, u32
from ..nn import Keys, Tensor, Weights
from . import deepseek2
from .base import Block, Layer

ARCHES = ("axk1",)


class Normed:
    """A layer with a norm after it."""

    def __init__(self, layer: Layer, norm: Layer) -> None:
        self.layer, self.norm = layer, norm

    def __call__(self, x: Tensor) -> Tensor:
        return self.norm(self.layer(x))


class AxK1(deepseek2.DeepSeek2):
    """Checkpoints have the norm in dense layers, too, where it is not used."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        super().__init__(keys, weights, n_vocab)
        n_dense_layers = keys.integer("leading_dense_block_count", 0)
        for i, (block, layer) in enumerate(zip(self.blocks, weights.blocks(self.config.n_layer), strict=True)):
            assert isinstance(block, Block)
            if i < n_dense_layers:
                layer.ignore("post_ffw_norm.*", "dense layers have no norm after the MLP")
                continue
            norm = layer.norm("post_ffw_norm", self.config.dim, self.config.eps)
            block.mlp = Normed(block.mlp, norm)


MODEL = AxK1

# --- checkpoint ---


def _n_dense(config: Fields) -> int:
    return n_dense(config, config.integer("first_k_dense_replace", 1))


_V3 = deepseek2.HF["DeepseekV3ForCausalLM"]
HF = {
    "AXK1ForCausalLM": replace(
        _V3,
        arch="axk1",
        keys={
            **_V3.keys,
            "expert_count": u32("n_routed_experts", "num_local_experts", default=192),
            "leading_dense_block_count": computed("u32", _n_dense),
        },
        tensors={**_V3.tensors, "blk.{i}.post_ffw_norm": "model.layers.{i}.post_mlp_layernorm"},
        predicting=None,
    )
}
