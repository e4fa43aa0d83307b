"""GTE (Zhang et al. 2024) and Arctic Embed 2 (Yu et al. 2024): BERT with RoPE and a gated MLP, GELU on the gate."""

from __future__ import annotations

from collections.abc import Iterator

from ..checkpoints.mapping import Checkpoint, Entry, Fields, Key, Source, f32, rows, tensor, u32
from ..checkpoints.mapping.rope import kind_of, rope_of, theta_of
from ..errors import UnsupportedError
from ..nn import GatedMLP, Keys, Weights, rope_spec
from .encoding import (
    ENCODER_KEYS,
    HEAD_KEYS,
    ROBERTA_MASKED,
    TOKEN_HEAD,
    TOKEN_HEAD_KEYS,
    TRAINING_HEADS,
    Attention,
    Block,
    Embeddings,
    Encoder,
    EncoderConfig,
    below,
)

ARCHES = ("gte",)


class Gte(Encoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = EncoderConfig.read_file(keys, weights, n_vocab)
        rotation = rope_spec(keys, n_dims=config.head_dim, layout="half")
        blocks = [
            Block(
                config,
                block,
                Attention(config, block, rotation),
                GatedMLP(block, config.dim, config.ffn_dim, "gelu"),
            )
            for block in weights.blocks(config.n_layer)
        ]
        super().__init__(config, keys, weights, Embeddings(config, weights), blocks)


MODEL = Gte

# --- checkpoint ---


def _rope(config: Fields) -> Iterator[Entry]:
    """Yield the RoPE base, and NTK scaling as a larger base and linear scaling (Su 2023)."""
    rope, base = rope_of(config), theta_of(config)
    kind = kind_of(rope)
    if kind not in ("default", "ntk"):
        raise UnsupportedError(f"[convert] unsupported rope scaling '{kind}': expected default or ntk")
    if kind == "default":
        yield "rope.freq_base", "f32", base
        return
    if rope.value("mixed_b") is not None:
        raise UnsupportedError(f"[convert] unsupported 'mixed_b' of {rope.where}: expected null")
    factor = rope.number("factor")
    head_dim = config.integer("hidden_size") // config.integer("num_attention_heads", low=1)
    yield "rope.freq_base", "f32", base * factor
    yield "rope.scaling.type", "string", "linear"
    yield "rope.scaling.factor", "f32", factor ** (2 / head_dim)


def _width(config: Fields) -> int:
    return config.integer("hidden_size")


def _units(config: Fields) -> int:
    return config.integer("intermediate_size")


def _part(name: str, i: int) -> Source:
    """Take queries, keys or values from a fused tensor."""
    return tensor(name, change=rows(lambda config: i * _width(config), lambda config: (i + 1) * _width(config)))


_KEYS: dict[str, Key] = {
    **ENCODER_KEYS,
    "context_length": u32("max_position_embeddings", default=2048),
    "embedding_length": u32("hidden_size", default=768),
    "block_count": u32("num_hidden_layers", default=12),
    "feed_forward_length": u32("intermediate_size", default=3072),
    "attention.head_count": u32("num_attention_heads", default=12, low=1),
    "attention.layer_norm_epsilon": f32("layer_norm_eps", default=1e-12),
}
_LAYER = "encoder.layer.{i}"
_MLP = f"{_LAYER}.mlp.up_gate_proj"  # gates below the others
_TENSORS: dict[str, str | Source] = {
    "token_embd": "embeddings.word_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "token_embd_norm": "embeddings.LayerNorm",
    **{f"blk.{{i}}.attn_{one}": _part(f"{_LAYER}.attention.qkv_proj", i) for i, one in enumerate("qkv")},
    "blk.{i}.attn_output": f"{_LAYER}.attention.o_proj",
    "blk.{i}.attn_output_norm": f"{_LAYER}.attn_ln",
    "blk.{i}.ffn_up": tensor(_MLP, change=rows(lambda config: 0, _units)),
    "blk.{i}.ffn_gate": tensor(_MLP, change=rows(_units, lambda config: 2 * _units(config))),
    "blk.{i}.ffn_down": f"{_LAYER}.mlp.down_proj",
    "blk.{i}.layer_output_norm": f"{_LAYER}.mlp_ln",
}
_HEAD: dict[str, str | Source] = {"cls": "new.pooler.dense", "cls.output": "classifier"}


def _of(
    head: dict[str, str | Source] | None = None, keys: dict[str, Key] | None = None, prefix: str = "new."
) -> Checkpoint:
    return Checkpoint(
        "gte",
        {**_KEYS, **(keys or {})},
        {**below(prefix, _TENSORS), **(head or {})},
        fixed={
            "hidden_act": ("gelu",),
            "position_embedding_type": ("rope",),
            "layer_norm_type": ("layer_norm",),
            "pack_qkv": (True,),
            "logn_attention_scale": (False,),
        },
        rope=_rope,
        unused=(
            "type_vocab_size",
            "logn_attention_clip1",  # a part of that scale
            "unpad_inputs",
            "use_memory_efficient_attention",
            "tie_word_embeddings",
            "classifier_dropout",
            "pad_token_id",
        ),
        ignored=(*TRAINING_HEADS, "*rotary_emb.*"),
        masked={} if head else ROBERTA_MASKED | {"mlm.norm": "lm_head.norm"},
        base=prefix,
    )


HF = {
    "NewModel": _of({"sparse_head": "classifier"}),
    "NewForMaskedLM": _of(),
    "NewForSequenceClassification": _of(_HEAD, HEAD_KEYS),
    "NewForTokenClassification": _of(TOKEN_HEAD, TOKEN_HEAD_KEYS),
    # vLLM's names of these classes.
    "GteNewModel": _of({"sparse_head": "classifier"}),
    "GteNewForSequenceClassification": _of(_HEAD, HEAD_KEYS),
    "GteModel": _of(prefix="gte."),
    "GteForSequenceClassification": _of({"cls": "gte.pooler.dense", "cls.output": "classifier"}, HEAD_KEYS, "gte."),
    "GteForTokenClassification": _of(TOKEN_HEAD, TOKEN_HEAD_KEYS, "gte."),
}
