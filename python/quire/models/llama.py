"""Llama (Touvron et al. 2023, Grattafiori et al. 2024), Mistral (Jiang et al. 2023), Mixtral (Jiang et al. 2024).

Mixtral is Llama with experts.
"""

from __future__ import annotations

from collections.abc import Callable

from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    SILU,
    Checkpoint,
    Fields,
    Key,
    Source,
    computed,
    interleaved,
    no_windows,
    rope_keys,
    tensor,
    u32,
    window,
)
from ..nn import (
    CacheSpec,
    ExpertConfig,
    GatedMLP,
    Keys,
    MoE,
    RopeSpec,
    Step,
    Tensor,
    Weights,
    frequency_factors,
    rope,
    rope_spec,
)
from .base import Block, Decoder, DenseConfig, Layer
from .encoding import scoring

ARCHES = ("llama",)


class Attention:
    """Grouped-query attention with RoPE.  ``bias``: q, k and v have biases; None: if the file has them."""

    def __init__(
        self, config: DenseConfig, weights: Weights, layer: int, rotation: RopeSpec, *, bias: bool | None = None
    ) -> None:
        self.layer, self.n_head, self.n_kv_head = layer, config.n_head, config.n_kv_head
        self.scale, self.rotation = config.head_dim**-0.5, rotation
        self.q = weights.linear("attn_q", config.dim, config.n_head * config.head_dim, bias=bias)
        self.k = weights.linear("attn_k", config.dim, config.n_kv_head * config.head_dim, bias=bias)
        self.v = weights.linear("attn_v", config.dim, config.n_kv_head * config.v_head_dim, bias=bias)
        self.o = weights.linear("attn_output", config.n_head * config.v_head_dim, config.dim, bias=None)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q = rope(self.q(x).heads(self.n_head), step.positions, self.rotation)
        k = rope(self.k(x).heads(self.n_kv_head), step.positions, self.rotation)
        v = self.v(x).heads(self.n_kv_head)
        return self.o(step.attend(self.layer, q, k, v, scale=self.scale))


class Llama(Decoder):
    """Files store q and k with the halves of each head interleaved, as in the original checkpoints."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        mlp = self.mlps(keys, config)
        self.window = self.window_of(keys)
        rotation = rope_spec(
            keys, n_dims=config.n_rot, layout="interleaved", factors=frequency_factors(weights, config.n_rot)
        )
        blocks = [
            Block(config, block, Attention(config, block, i, rotation), mlp(block))
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)

    @staticmethod
    def window_of(keys: Keys) -> int:
        """Return Mistral's window, which applies to every layer; 0: none."""
        return keys.integer("attention.sliding_window", 0)

    @staticmethod
    def mlps(keys: Keys, config: DenseConfig) -> Callable[[Weights], Layer]:
        """Return a function that makes a layer's MLP, or its mixture if the file has experts."""
        if keys.integer("expert_count", 0) == 0:
            keys.only("expert_count", 0)
            keys.only("expert_used_count", 0)
            return lambda weights: GatedMLP(weights, config.dim, config.ffn_dim)
        experts = ExpertConfig.read(keys, config.n_layer, ffn_dim=config.ffn_dim)
        return lambda weights: MoE(weights, config.dim, experts.ffn_dim, experts.n, experts.spec())

    def cache(self) -> list[CacheSpec]:
        return self.config.cache([self.window] * self.config.n_layer)


class Windowless(Llama):
    """Llama for architectures that never have windows."""

    @staticmethod
    def window_of(keys: Keys) -> int:
        keys.only("attention.sliding_window", 0)
        return 0


MODEL = Llama

# --- checkpoint ---


def head_dim_of(config: Fields) -> int:
    return config.integer("head_dim", config.integer("hidden_size") // config.integer("num_attention_heads", low=1))


KEYS: dict[str, Key] = {
    **DECODER_KEYS,
    "attention.key_length": computed("u32", head_dim_of),
    "attention.value_length": computed("u32", head_dim_of),
    "rope.dimension_count": computed("u32", head_dim_of),
    "vocab_size": u32("vocab_size"),
}
TENSORS: dict[str, str | Source] = {
    **DECODER_TENSORS,
    "blk.{i}.attn_q": tensor("model.layers.{i}.self_attn.q_proj", change=interleaved("num_attention_heads")),
    "blk.{i}.attn_k": tensor(
        "model.layers.{i}.self_attn.k_proj", change=interleaved("num_key_value_heads", "num_attention_heads")
    ),
}
_CAUSAL = Checkpoint(
    "llama",
    KEYS,
    TENSORS,
    fixed={"hidden_act": SILU},
    checks=(no_windows,),
    unused=("attention_bias", "mlp_bias"),
)
HF = {
    "LlamaForCausalLM": _CAUSAL,
    "LlamaForSequenceClassification": scoring(_CAUSAL),
    "MistralForCausalLM": Checkpoint(
        "llama",
        {**KEYS, "attention.sliding_window": window(4096)},
        TENSORS,
        fixed={"hidden_act": SILU},
        unused=("layer_types",),  # transformers ignores them with a warning
    ),
    "MixtralForCausalLM": Checkpoint(
        "llama",
        {
            **KEYS,
            "attention.sliding_window": window(None),
            "expert_count": u32("num_local_experts", "num_experts", default=8),
            "expert_used_count": u32("num_experts_per_tok", default=2),
        },
        {
            **TENSORS,
            "blk.{i}.ffn_gate_inp": "model.layers.{i}.block_sparse_moe.gate",
            "blk.{i}.ffn_gate_exps": "model.layers.{i}.block_sparse_moe.experts.{e}.w1",
            "blk.{i}.ffn_up_exps": "model.layers.{i}.block_sparse_moe.experts.{e}.w3",
            "blk.{i}.ffn_down_exps": "model.layers.{i}.block_sparse_moe.experts.{e}.w2",
        },
        fixed={"hidden_act": SILU},
        rope=lambda config: rope_keys(config, 1e6),
        unused=("router_jitter_noise",),
    ),
}
