"""AFM (Arcee AI 2025): Llama with an ungated MLP and squared ReLU (So et al. 2021)."""

from __future__ import annotations

from .._native.graph import relu_squared
from ..checkpoints.mapping import Checkpoint, f32, no_windows
from ..nn import MLP, Keys, Weights, frequency_factors, rope_spec
from . import llama
from .base import Block, Decoder, DenseConfig

ARCHES = ("arcee",)


class Arcee(Decoder):
    """Files store q and k interleaved, as for Llama."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        rotation = rope_spec(
            keys, n_dims=config.n_rot, layout="interleaved", factors=frequency_factors(weights, config.n_rot)
        )
        blocks = [
            Block(
                config,
                block,
                llama.Attention(config, block, i, rotation),
                MLP(block, config.dim, config.ffn_dim, relu_squared),
            )
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)


MODEL = Arcee

# --- checkpoint ---

HF = {
    "ArceeForCausalLM": Checkpoint(
        "arcee",
        {**llama.KEYS, "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-5)},
        llama.TENSORS,
        fixed={"hidden_act": ("relu2",)},
        checks=(no_windows,),
        unused=("attention_bias", "mlp_bias"),
    )
}
