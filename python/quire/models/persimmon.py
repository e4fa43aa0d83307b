"""Persimmon (Adept 2023): StableLM with biases, norms of queries and keys, and squared ReLU."""

from __future__ import annotations

from ..checkpoints.mapping import Checkpoint, f32, only_with, tensor, u32
from ..nn import RopeSpec, Step, Tensor, Weights
from . import classic
from .base import DenseConfig
from .classic import CLASSIC_KEYS, in_order, n_rotated
from .jais2 import Jais2

ARCHES = ("persimmon",)


class Attention(classic.Attention):
    """Attention with layer norms of the heads of q and k, if the file has them."""

    def __init__(self, config: DenseConfig, weights: Weights, layer: int, rotation: RopeSpec) -> None:
        super().__init__(config, weights, layer, rotation)
        self.q_norm, self.k_norm = (
            weights.layer_norm(f"attn_{one}_norm", config.head_dim, config.eps)
            if weights.has(f"attn_{one}_norm.weight")
            else None
            for one in "qk"
        )

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q, k = self.q(x).heads(self.n_head), self.k(x).heads(self.n_kv_head)
        q = self.placed(self.q_norm(q) if self.q_norm else q, step)
        k = self.placed(self.k_norm(k) if self.k_norm else k, step)
        return self.o(step.attend(self.layer, q, k, self.v(x).heads(self.n_kv_head), scale=self.scale))


class Persimmon(Jais2):
    attention = Attention


MODEL = Persimmon

# --- checkpoint ---

_LAYER = "model.layers.{i}"
_NORMS = only_with("qk_layernorm", default=True)
HF = {
    "PersimmonForCausalLM": Checkpoint(
        "persimmon",
        {
            **CLASSIC_KEYS,
            "attention.head_count_kv": u32("num_attention_heads", low=1),
            "attention.layer_norm_epsilon": f32("layer_norm_eps", default=1e-5),
            "rope.dimension_count": n_rotated(0.5),
        },
        {
            "token_embd": "model.embed_tokens",
            "output_norm": "model.final_layernorm",
            "output": "lm_head",
            "blk.{i}.attn_norm": f"{_LAYER}.input_layernorm",
            "blk.{i}.attn_qkv": tensor(f"{_LAYER}.self_attn.query_key_value", change=in_order),
            "blk.{i}.attn_q_norm": tensor(f"{_LAYER}.self_attn.q_layernorm", change=_NORMS),
            "blk.{i}.attn_k_norm": tensor(f"{_LAYER}.self_attn.k_layernorm", change=_NORMS),
            "blk.{i}.attn_output": f"{_LAYER}.self_attn.dense",
            "blk.{i}.ffn_norm": f"{_LAYER}.post_attention_layernorm",
            "blk.{i}.ffn_up": f"{_LAYER}.mlp.dense_h_to_4h",
            "blk.{i}.ffn_down": f"{_LAYER}.mlp.dense_4h_to_h",
        },
        fixed={"hidden_act": ("relu2",)},
        unused=("num_key_value_heads",),
    )
}
