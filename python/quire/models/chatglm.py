"""ChatGLM 3 and GLM-4-9B (GLM team 2024): biases on q, k and v, interleaved RoPE on half of each head."""

from __future__ import annotations

from ..checkpoints.mapping import SILU, Checkpoint, Fields, computed, f32, u32
from ..checkpoints.mapping.decoder import BIASED_TENSORS
from ..errors import UnsupportedError
from ..nn import FusedGatedMLP, Keys, Weights, rope_spec
from . import glm4
from .base import Block, Decoder, DenseConfig
from .classic import Attention

ARCHES = ("chatglm",)


class ChatGLM(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="interleaved")
        blocks = [
            Block(
                config, block, Attention(config, block, i, rotation), FusedGatedMLP(block, config.dim, config.ffn_dim)
            )
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)


MODEL = ChatGLM

# --- checkpoint ---


def _n_kv_head(config: Fields) -> int:
    n_head, several = config.integer("num_attention_heads", low=1), config.integer("multi_query_group_num", 1, low=1)
    return several if config.flag("multi_query_attention", False) else n_head


def _half(config: Fields) -> int:
    return config.integer("kv_channels", 128) // 2


def _base(config: Fields) -> float:
    return 10000.0 * config.number("rope_ratio", 1.0)


def _whole_vocabulary(config: Fields) -> None:
    n = config.integer("vocab_size")
    if config.integer("padded_vocab_size", n) != n:
        padded = config.integer("padded_vocab_size", n)
        raise UnsupportedError(f"[convert] 'padded_vocab_size' is {padded}, but 'vocab_size' is {n}")


class _ChatGLM(Checkpoint):
    """Reads the size of the vocabulary from ``padded_vocab_size``."""

    def config_of(self, whole: Fields) -> Fields:
        padded = whole.value("padded_vocab_size")
        return whole if padded is None else whole.filled({"vocab_size": padded})


_LAYER = "transformer.encoder.layers.{i}"
_CHATGLM = _ChatGLM(
    "chatglm",
    {
        "context_length": u32("seq_length", low=1),
        "embedding_length": u32("hidden_size"),
        "block_count": u32("num_layers", "num_hidden_layers"),
        "feed_forward_length": u32("ffn_hidden_size"),
        "attention.head_count": u32("num_attention_heads", low=1),
        "attention.head_count_kv": computed("u32", _n_kv_head),
        "attention.key_length": u32("kv_channels", default=128),
        "attention.value_length": u32("kv_channels", default=128),
        "attention.layer_norm_rms_epsilon": f32("layernorm_epsilon", default=1e-5),
        "rope.dimension_count": computed("u32", _half),
        "rope.freq_base": computed("f32", _base),
    },
    {
        "token_embd": "transformer.embedding.word_embeddings",
        "output_norm": "transformer.encoder.final_layernorm",
        "output": "transformer.output_layer",
        "blk.{i}.attn_norm": f"{_LAYER}.input_layernorm",
        "blk.{i}.attn_qkv": f"{_LAYER}.self_attention.query_key_value",
        "blk.{i}.attn_output": f"{_LAYER}.self_attention.dense",
        "blk.{i}.ffn_norm": f"{_LAYER}.post_attention_layernorm",
        "blk.{i}.ffn_up": f"{_LAYER}.mlp.dense_h_to_4h",
        "blk.{i}.ffn_down": f"{_LAYER}.mlp.dense_4h_to_h",
    },
    fixed={
        "add_bias_linear": (False,),
        "apply_residual_connection_post_layernorm": (False,),
        "interleaved_qkv": (False,),
        "original_rope": (True,),
        "post_layer_norm": (True,),
        "prefix_projection": (False,),
        "quantization_bit": (0,),
        "rmsnorm": (True,),
    },
    checks=(_whole_vocabulary,),
    rope=None,
    unused=(
        "add_qkv_bias",
        "apply_query_key_layer_scaling",  # divides by the factor that it multiplies by
        "attention_softmax_in_fp32",
        "bias_dropout_fusion",
        "fp32_residual_connection",
        "multi_query_group_num",
    ),
    ignored=("*.rotary_pos_emb.inv_freq",),
    base="transformer.",
)
HF = {
    "GlmForCausalLM": Checkpoint(
        "chatglm",
        glm4.KEYS,
        {**BIASED_TENSORS, "blk.{i}.ffn_up": "model.layers.{i}.mlp.gate_up_proj"},
        fixed={"hidden_act": SILU},
        unused=("attention_bias",),
    ),
    "ChatGLMModel": _CHATGLM,
    "ChatGLMForConditionalGeneration": _CHATGLM,
}
