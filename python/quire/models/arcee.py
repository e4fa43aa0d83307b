"""AFM (Arcee AI 2025): llama with an ungated MLP of squared ReLUs (So et al. 2021)."""

from __future__ import annotations

from .._native.graph import relu_squared
from ..checkpoint import Checkpoint, f32, no_windows
from ..nn import MLP, Keys, Weights, frequency_factors, rope_spec
from . import llama
from .base import Block, Decoder, DenseConfig

ARCHES = ("arcee",)


class Arcee(Decoder):
    """Files store q and k interleaved, as llama's."""

    def __init__(self, m: Keys, w: Weights, n_vocab: int) -> None:
        c = DenseConfig.read(m, n_vocab)
        rotation = rope_spec(m, n_dims=c.n_rot, layout="interleaved", factors=frequency_factors(w, c.n_rot))
        blocks = [
            Block(c, b, llama.Attention(c, b, i, rotation), MLP(b, c.dim, c.ffn_dim, relu_squared))
            for i, b in enumerate(w.blocks(c.n_layer))
        ]
        super().__init__(c, w, blocks)


MODEL = Arcee
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
