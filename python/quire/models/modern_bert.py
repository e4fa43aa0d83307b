"""ModernBERT (Warner et al. 2024): pre-norms, windows in two of three layers, GeGLU."""

from __future__ import annotations

from collections.abc import Iterator

from ..checkpoints.mapping import Checkpoint, Fields, Key, Source, computed, f32, layers_of_type, only_with, tensor, u32
from ..checkpoints.mapping.rope import Entry, kind_of, rope_of
from ..errors import UnsupportedError
from ..nn import (
    CacheSpec,
    FusedGatedMLP,
    Keys,
    LayerNorm,
    RopeSpec,
    Step,
    Tensor,
    Weights,
    rope_spec,
    select_rows,
)
from .base import Layer, Vectors
from .encoder_heads import CLS, MEAN, MaskedHead, head_of
from .encoding import (
    ENCODER_KEYS,
    HEAD_KEYS,
    TOKEN_HEAD_KEYS,
    TRAINING_HEADS,
    Attention,
    EncoderConfig,
    below,
    masked_head,
)

ARCHES = ("modern-bert",)
PERIOD = 3  # the first of every three layers has full attention
GLOBAL_BASE, LOCAL_BASE = 160000.0, 10000.0
POOLINGS = {"cls": CLS, "mean": MEAN}  # values of classifier.pooling_type
UNITS = {"gelu": "gelu", "silu": "silu", "swish": "silu"}


def local_layers(keys: Keys, n_layer: int) -> list[bool]:
    """Return the layers with windows: all but the first of every period, or those of an array."""
    if keys.is_array("attention.sliding_window_pattern"):
        return [bool(local) for local in keys.integers("attention.sliding_window_pattern", n_layer, high=1)]
    period = keys.integer("attention.sliding_window_pattern", PERIOD)
    return [period == 0 or i % period != 0 for i in range(n_layer)]


class Block:
    """A pre-norm block; the first layer's attention has no norm, because the embeddings' norm precedes it."""

    def __init__(
        self, config: EncoderConfig, weights: Weights, rotation: RopeSpec, window: int, activation: str
    ) -> None:
        has_norm = weights.has("attn_norm.weight")
        self.attn_norm: LayerNorm | None = weights.layer_norm("attn_norm", config.dim, config.eps) if has_norm else None
        self.attention = Attention(config, weights, rotation, window)
        self.mlp_norm = weights.layer_norm("ffn_norm", config.dim, config.eps)
        self.mlp = FusedGatedMLP(weights, config.dim, config.ffn_dim, "silu" if activation == "silu" else "gelu")

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.attention(x if self.attn_norm is None else self.attn_norm(x), step)
        return x + self.mlp(self.mlp_norm(x))


class ModernBert:
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        self.config = config = EncoderConfig.read_file(keys, weights, n_vocab, MEAN)
        window = keys.integer("attention.sliding_window", 0)  # 0: full attention in every layer
        local = [window > 0 and one for one in local_layers(keys, config.n_layer)]
        base = keys.number("rope.freq_base_swa", LOCAL_BASE)
        everywhere = rope_spec(keys, n_dims=config.head_dim, layout="half")
        nearby = rope_spec(keys, n_dims=config.head_dim, layout="half", freq_base=base)
        unit = keys.text("hidden_activation", "gelu")
        if unit not in UNITS:
            expected = ", ".join(UNITS)
            raise UnsupportedError(f"[{keys.arch}] unsupported hidden_activation '{unit}': expected one of {expected}")
        self.tokens = weights.embedding("token_embd", n_vocab, config.dim)
        self.norm = weights.layer_norm("token_embd_norm", config.dim, config.eps)
        self.blocks = [
            Block(config, block, nearby if local[i] else everywhere, window if local[i] else 0, UNITS[unit])
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        self.output_norm = weights.layer_norm("output_norm", config.dim, config.eps)
        self.head: Layer = (
            MaskedHead(weights, config.dim, config.eps, self.tokens)
            if config.predicts_masked
            else head_of(keys, weights, config.dim, config.classes, activation="gelu", eps=config.eps)
        )

    def cache(self) -> list[CacheSpec]:
        return [CacheSpec()] * self.config.n_layer

    def __call__(self, step: Step) -> Vectors:
        x = self.norm(self.tokens(step.tokens))
        x = step.run_layers(self.blocks, x)
        return Vectors(self.head(self.output_norm(select_rows(x, step.logit_rows))))


MODEL = ModernBert

# --- checkpoint ---


def pattern_of(config: Fields) -> list[bool]:
    n_layer = config.integer("num_hidden_layers")
    period = config.integer("global_attn_every_n_layers", PERIOD, low=1)
    return layers_of_type(config, "sliding_attention") or [bool(i % period) for i in range(n_layer)]


def rope_of_layers(config: Fields) -> Iterator[Entry]:
    """Yield the RoPE base of each kind of layer."""
    for layers, key, old, default in (
        ("full_attention", "rope.freq_base", "global_rope_theta", GLOBAL_BASE),
        ("sliding_attention", "rope.freq_base_swa", "local_rope_theta", LOCAL_BASE),
    ):
        rope = rope_of(config, layers)
        if kind_of(rope) != "default":
            raise UnsupportedError(
                f"[convert] unsupported rope scaling of {layers}: '{kind_of(rope)}' (expected default)"
            )
        old_base = config.number(old, default)
        yield key, "f32", rope.number("rope_theta", old_base)


def _pooling(config: Fields) -> int:
    pooling = config.text("classifier_pooling", "cls")
    if pooling not in POOLINGS:
        raise UnsupportedError(f"[convert] unsupported 'classifier_pooling': '{pooling}' (expected cls or mean)")
    return POOLINGS[pooling]


_KEYS: dict[str, Key] = {
    **ENCODER_KEYS,
    "context_length": u32("max_position_embeddings", default=8192),
    "attention.layer_norm_epsilon": f32("norm_eps", default=1e-5),
    "attention.sliding_window": u32("local_attention", default=128, low=1),
    "attention.sliding_window_pattern": computed("bool[]", pattern_of),
    "hidden_activation": computed("string", lambda config: config.text("hidden_activation", "gelu")),
}
_ATTENTION = only_with("attention_bias", default=False, biases=True)
_MLP = only_with("mlp_bias", default=False, biases=True)
_TENSORS: dict[str, str | Source] = {
    "token_embd": "embeddings.tok_embeddings",
    "token_embd_norm": "embeddings.norm",
    "output_norm": "final_norm",
    "blk.{i}.attn_norm": "layers.{i}.attn_norm",
    "blk.{i}.attn_qkv": tensor("layers.{i}.attn.Wqkv", change=_ATTENTION),
    "blk.{i}.attn_output": tensor("layers.{i}.attn.Wo", change=_ATTENTION),
    "blk.{i}.ffn_norm": "layers.{i}.mlp_norm",
    "blk.{i}.ffn_up": tensor("layers.{i}.mlp.Wi", change=_MLP),
    "blk.{i}.ffn_down": tensor("layers.{i}.mlp.Wo", change=_MLP),
}
_HEAD: dict[str, str | Source] = {"cls": "head.dense", "cls.norm": "head.norm", "cls.output": "classifier"}
_TEXT_KEYS: dict[str, Key] = {**HEAD_KEYS, "classifier.pooling_type": computed("u32", _pooling)}


_MASKED = masked_head("head.dense", "head.norm", "decoder", "decoder.bias")


def _of(head: dict[str, str | Source], keys: dict[str, Key] | None = None) -> Checkpoint:
    return Checkpoint(
        "modern-bert",
        {**_KEYS, **(keys or {})},
        {**below("model.", _TENSORS), **head},
        fixed={
            "hidden_activation": ("gelu", "silu", "swish"),
            "classifier_activation": ("gelu",) if head else ("gelu", "silu", "relu", "tanh"),
            "position_embedding_type": ("absolute", None),  # published, but without effect
        },
        rope=rope_of_layers,
        tied=True,
        unused=(
            "norm_bias",
            "classifier_bias",
            "decoder_bias",
            "classifier_pooling",
            "initializer_cutoff_factor",
            "layer_norm_eps",  # norm_eps is used instead
            "deterministic_flash_attn",
            "sparse_pred*",
            "reference_compile",
            "repad_logits_with_grad",
        ),
        ignored=(*TRAINING_HEADS, "head.*", "decoder.*"),
        masked=_MASKED if not head else {},
    )


HF = {
    "ModernBertModel": _of({}),
    "ColBERTModernBertModel": _of({}),  # vLLM's name; sentence-transformers' modules have the dense layer
    "ModernBertForMaskedLM": _of({}),
    "ModernBertForSequenceClassification": _of(_HEAD, _TEXT_KEYS),
    "ModernBertForTokenClassification": _of(_HEAD, TOKEN_HEAD_KEYS),
}
