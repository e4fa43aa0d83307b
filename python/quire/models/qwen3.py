"""Qwen3, dense (Yang et al. 2025): Llama with query and key norms, no biases, RoPE on halves."""

from __future__ import annotations

from ..checkpoints.mapping import DECODER_KEYS, DECODER_TENSORS, SILU, Checkpoint, no_windows, u32
from ..nn import GatedMLP, Keys, RopeSpec, Step, Tensor, Weights, frequency_factors, rope, rope_spec
from .base import Block, Decoder, DenseConfig
from .encoding import scoring

ARCHES = ("qwen3",)


class Attention:
    def __init__(self, config: DenseConfig, weights: Weights, layer: int, rotation: RopeSpec) -> None:
        self.layer, self.n_head, self.n_kv_head = layer, config.n_head, config.n_kv_head
        self.scale, self.rotation = config.head_dim**-0.5, rotation
        self.q = weights.linear("attn_q", config.dim, config.n_head * config.head_dim, bias=None)
        self.k = weights.linear("attn_k", config.dim, config.n_kv_head * config.head_dim, bias=None)
        self.v = weights.linear("attn_v", config.dim, config.n_kv_head * config.v_head_dim, bias=None)
        self.o = weights.linear("attn_output", config.n_head * config.v_head_dim, config.dim, bias=None)
        self.q_norm = weights.norm("attn_q_norm", config.head_dim, config.eps)
        self.k_norm = weights.norm("attn_k_norm", config.head_dim, config.eps)

    def attended(self, x: Tensor, step: Step) -> Tensor:
        """Return the heads' outputs, before the output projection."""
        q = rope(self.q_norm(self.q(x).heads(self.n_head)), step.positions, self.rotation)
        k = rope(self.k_norm(self.k(x).heads(self.n_kv_head)), step.positions, self.rotation)
        v = self.v(x).heads(self.n_kv_head)
        return step.attend(self.layer, q, k, v, scale=self.scale)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        return self.o(self.attended(x, step))


class Qwen3(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half", factors=frequency_factors(weights, config.n_rot))
        blocks = [
            Block(config, block, Attention(config, block, i, rotation), GatedMLP(block, config.dim, config.ffn_dim))
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)


MODEL = Qwen3

# --- checkpoint ---

HEADS = {
    "attention.key_length": u32("head_dim", default=128),
    "attention.value_length": u32("head_dim", default=128),
}
QK_NORMS = {
    "blk.{i}.attn_q_norm": "model.layers.{i}.self_attn.q_norm",
    "blk.{i}.attn_k_norm": "model.layers.{i}.self_attn.k_norm",
}
_CAUSAL = Checkpoint(
    "qwen3",
    {**DECODER_KEYS, **HEADS},
    {**DECODER_TENSORS, **QK_NORMS},
    fixed={"hidden_act": SILU},
    checks=(no_windows,),
    unused=("attention_bias",),
)
HF = {"Qwen3ForCausalLM": _CAUSAL, "Qwen3ForSequenceClassification": scoring(_CAUSAL)}
