"""Command R and R+ (Cohere 2024), Aya 23: attention and MLP in parallel, scaled logits."""

from __future__ import annotations

from collections.abc import Sequence

from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    SILU,
    Checkpoint,
    computed,
    f32,
    factor,
    no_windows,
    only_with,
    rope_keys,
    tensor,
    u32,
)
from ..nn import GatedMLP, Keys, RopeSpec, Step, Tensor, Weights, frequency_factors, rope_spec
from .base import DenseConfig
from .classic import EPS, HeadNorms, LayerNormDecoder, ParallelBlock
from .llama import head_dim_of

ARCHES = ("command-r",)


class CommandR(LayerNormDecoder):
    """Files and checkpoints store q and k interleaved."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab, eps=EPS)
        self.scale = keys.number("logit_scale", 0.0) or 1.0  # 0: not set
        blocks = [
            ParallelBlock(
                config, block, HeadNorms(config, block, i, rotation), GatedMLP(block, config.dim, config.ffn_dim)
            )
            for i, (block, rotation) in enumerate(
                zip(weights.blocks(config.n_layer), self.rotations(keys, weights, config), strict=True)
            )
        ]
        super().__init__(config, weights, blocks)

    def rotations(self, keys: Keys, weights: Weights, config: DenseConfig) -> Sequence[RopeSpec | None]:
        """Return each layer's rotation; None: without RoPE."""
        factors = frequency_factors(weights, config.n_rot)
        return [rope_spec(keys, n_dims=config.n_rot, layout="interleaved", factors=factors)] * config.n_layer

    def __call__(self, step: Step) -> Tensor:
        return super().__call__(step) * self.scale


MODEL = CommandR

# --- checkpoint ---

_LAYER = "model.layers.{i}"
_BIASES = only_with("attention_bias", default=False, biases=True)
KEYS = {
    **{name: key for name, key in DECODER_KEYS.items() if not name.endswith("rms_epsilon")},
    "context_length": u32("max_position_embeddings", default=8192),
    "attention.key_length": computed("u32", head_dim_of),
    "attention.value_length": computed("u32", head_dim_of),
    "attention.layer_norm_epsilon": f32("layer_norm_eps", default=1e-5),
    "logit_scale": factor("logit_scale", default=0.0625),
}
TENSORS = {
    **{name: source for name, source in DECODER_TENSORS.items() if not name.endswith("ffn_norm")},
    "blk.{i}.attn_q": tensor(f"{_LAYER}.self_attn.q_proj", change=_BIASES),
    "blk.{i}.attn_k": tensor(f"{_LAYER}.self_attn.k_proj", change=_BIASES),
    "blk.{i}.attn_v": tensor(f"{_LAYER}.self_attn.v_proj", change=_BIASES),
    "blk.{i}.attn_output": tensor(f"{_LAYER}.self_attn.o_proj", change=_BIASES),
}
_HEAD_NORMS = only_with("use_qk_norm", default=False)
HF = {
    "CohereForCausalLM": Checkpoint(
        "command-r",
        {**KEYS, "context_length": u32("model_max_length", "max_position_embeddings", default=8192)},
        {
            **TENSORS,
            "blk.{i}.attn_q_norm": tensor(f"{_LAYER}.self_attn.q_norm", change=_HEAD_NORMS),
            "blk.{i}.attn_k_norm": tensor(f"{_LAYER}.self_attn.k_norm", change=_HEAD_NORMS),
        },
        fixed={"hidden_act": SILU},
        checks=(no_windows,),
        rope=lambda config: rope_keys(config, 500000.0),
        tied=True,
        unused=("rms_norm_eps", "max_position_embeddings"),  # model_max_length takes precedence
    )
}
