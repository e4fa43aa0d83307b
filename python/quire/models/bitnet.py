"""BitNet b1.58 (Ma et al. 2024): Llama with a norm before the output projections of attention and MLP.

Weights are used as stored, ternary or not.
"""

from __future__ import annotations

from .._native.graph import glu
from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    SILU,
    Checkpoint,
    Fields,
    computed,
    f32,
    no_windows,
    only_with,
    rope_keys,
    tensor,
    u32,
)
from ..errors import UnsupportedError
from ..nn import GatedMLP, Keys, RopeSpec, Step, Tensor, Weights, frequency_factors, rope, rope_spec
from . import llama
from .base import Block, Decoder, DenseConfig

ARCHES = ("bitnet",)


class Attention(llama.Attention):
    def __init__(self, config: DenseConfig, weights: Weights, layer: int, rotation: RopeSpec) -> None:
        super().__init__(config, weights, layer, rotation)
        self.sub_norm = weights.norm("attn_sub_norm", config.n_head * config.v_head_dim, config.eps)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q = rope(self.q(x).heads(self.n_head), step.positions, self.rotation)
        k = rope(self.k(x).heads(self.n_kv_head), step.positions, self.rotation)
        v = self.v(x).heads(self.n_kv_head)
        return self.o(self.sub_norm(step.attend(self.layer, q, k, v, scale=self.scale)))


class NormedMLP(GatedMLP):
    def __init__(self, config: DenseConfig, weights: Weights) -> None:
        super().__init__(weights, config.dim, config.ffn_dim)
        self.sub_norm = weights.norm("ffn_sub_norm", config.ffn_dim, config.eps)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self.sub_norm(glu(self.gate(x), self.up(x), self.activation)))


class BitNet(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half", factors=frequency_factors(weights, config.n_rot))
        blocks = [
            Block(config, block, Attention(config, block, i, rotation), NormedMLP(config, block))
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)


MODEL = BitNet

# --- checkpoint ---

_LAYER = "model.layers.{i}"
_BIASES = only_with("attention_bias", default=False, biases=True)


def _is_silu(config: Fields) -> None:
    """Require SiLU: files have no key for the activation."""
    if (name := config.text("hidden_act", "relu2")) not in SILU:
        raise UnsupportedError(f"[convert] unsupported 'hidden_act': '{name}' (expected silu)")


_CHECKPOINT = Checkpoint(
    "bitnet",
    {
        **DECODER_KEYS,
        "attention.head_count_kv": u32("num_key_value_heads", default=5, low=1),
        "attention.key_length": computed("u32", llama.head_dim_of),
        "attention.value_length": computed("u32", llama.head_dim_of),
        "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-5),
    },
    {
        **DECODER_TENSORS,
        **{f"blk.{{i}}.attn_{one}": tensor(f"{_LAYER}.self_attn.{one}_proj", change=_BIASES) for one in "qkv"},
        "blk.{i}.attn_output": tensor(f"{_LAYER}.self_attn.o_proj", change=_BIASES),
        "blk.{i}.attn_sub_norm": f"{_LAYER}.self_attn.attn_sub_norm",
        "blk.{i}.ffn_sub_norm": f"{_LAYER}.mlp.ffn_sub_norm",
    },
    checks=(no_windows, _is_silu),
    rope=lambda config: rope_keys(config, 500000.0),
    unused=("attention_bias",),
)
HF = {"BitNetForCausalLM": _CHECKPOINT, "BitnetForCausalLM": _CHECKPOINT}
