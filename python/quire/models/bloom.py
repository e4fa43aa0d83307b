"""BLOOM (Scao et al. 2022): ALiBi, layer norms, a norm after the embedding."""

from __future__ import annotations

from ..checkpoints.mapping import Checkpoint, Fields, computed, f32, tensor, u32
from ..nn import MLP, Keys, Step, Tensor, Weights
from .base import DenseConfig
from .classic import EPS, AlibiAttention, Block, LayerNormDecoder, LinearBiases, in_order

ARCHES = ("bloom",)


class Bloom(LayerNormDecoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab, eps=EPS)
        self.embedding_norm = weights.layer_norm("token_embd_norm", config.dim, config.eps)
        biases = LinearBiases(weights, config.n_head)
        blocks = [
            Block(
                config,
                block,
                AlibiAttention(config, block, i, biases),
                MLP(block, config.dim, config.ffn_dim, "gelu_tanh"),
            )
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)

    def __call__(self, step: Step) -> Tensor:
        return self.logits(self.embedding_norm(self.embedding(step.tokens)), step)


MODEL = Bloom

# --- checkpoint ---

_N_HEAD = u32("n_head", "num_attention_heads", default=8, low=1)
_WIDTH = u32("n_embed", "hidden_size", default=64)


def _ffn_dim(config: Fields) -> int:
    width = _WIDTH.read(config)
    assert isinstance(width, int)
    return 4 * width


_LAYER = "transformer.h.{i}"
HF = {
    "BloomForCausalLM": Checkpoint(
        "bloom",
        {
            "context_length": u32("seq_length", default=2048, low=1),
            "embedding_length": _WIDTH,
            "block_count": u32("n_layer", "num_hidden_layers", default=2),
            "feed_forward_length": computed("u32", _ffn_dim),
            "attention.head_count": _N_HEAD,
            "attention.head_count_kv": _N_HEAD,
            "attention.layer_norm_epsilon": f32("layer_norm_epsilon", default=1e-5),
        },
        {
            "token_embd": "transformer.word_embeddings",
            "token_embd_norm": "transformer.word_embeddings_layernorm",
            "output_norm": "transformer.ln_f",
            "output": "lm_head",
            "blk.{i}.attn_norm": f"{_LAYER}.input_layernorm",
            "blk.{i}.attn_qkv": tensor(f"{_LAYER}.self_attention.query_key_value", change=in_order),
            "blk.{i}.attn_output": f"{_LAYER}.self_attention.dense",
            "blk.{i}.ffn_norm": f"{_LAYER}.post_attention_layernorm",
            "blk.{i}.ffn_up": f"{_LAYER}.mlp.dense_h_to_4h",
            "blk.{i}.ffn_down": f"{_LAYER}.mlp.dense_4h_to_h",
        },
        fixed={"apply_residual_connection_post_layernorm": (False,), "offset_alibi": (100,), "n_inner": (None,)},
        rope=None,
        tied=True,
        unused=(
            "attention_softmax_in_fp32",
            "bias_dropout_fusion",
            "masked_softmax_fusion",
            "skip_bias_add",
            "skip_bias_add_qkv",
            "slow_but_exact",
        ),
        base="transformer.",
    )
}
