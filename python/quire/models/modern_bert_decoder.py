"""ModernBERT as a decoder, such as Ettin (Weller et al. 2025): causal attention, windows in two of three layers."""

from __future__ import annotations

from .._native.graph import activate, add_weight
from ..checkpoints.mapping import Checkpoint, Fields, Key, Source, computed, f32, only_with, tensor, u32
from ..errors import UnsupportedError
from ..nn import CacheSpec, FusedGatedMLP, Keys, LayerNorm, Step, Tensor, Weights, rope_spec, select_rows
from .base import DenseConfig
from .classic import EPS, Attention
from .modern_bert import LOCAL_BASE, UNITS, local_layers, pattern_of, rope_of_layers

ARCHES = ("modern-bert-decoder",)


class Block:
    """A pre-norm block; the first layer's attention has no norm, because the embeddings' norm precedes it."""

    def __init__(self, config: DenseConfig, weights: Weights, attention: Attention, activation: str) -> None:
        has_norm = weights.has("attn_norm.weight")
        self.attn_norm: LayerNorm | None = weights.layer_norm("attn_norm", config.dim, config.eps) if has_norm else None
        self.attention = attention
        self.mlp_norm = weights.layer_norm("ffn_norm", config.dim, config.eps)
        self.mlp = FusedGatedMLP(weights, config.dim, config.ffn_dim, "silu" if activation == "silu" else "gelu")

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.attention(x if self.attn_norm is None else self.attn_norm(x), step)
        return x + self.mlp(self.mlp_norm(x))


class ModernBertDecoder:
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        self.config = config = DenseConfig.read(keys, n_vocab, eps=EPS)
        window = keys.integer("attention.sliding_window", 0)  # 0: full attention in every layer
        self.windows = [window if local else 0 for local in local_layers(keys, config.n_layer)]
        everywhere = rope_spec(keys, n_dims=config.n_rot, layout="half")
        base = keys.number("rope.freq_base_swa", LOCAL_BASE)
        nearby = rope_spec(keys, n_dims=config.n_rot, layout="half", freq_base=base)
        unit = keys.text("hidden_activation", "gelu")
        if unit not in UNITS:
            raise UnsupportedError(f"[{keys.arch}] unsupported hidden_activation '{unit}': expected {', '.join(UNITS)}")
        self.tokens = weights.embedding("token_embd", n_vocab, config.dim)
        self.first_norm, self.norm, self.last_norm = (
            weights.layer_norm(name, config.dim, config.eps) for name in ("token_embd_norm", "output_norm", "mlm.norm")
        )
        self.blocks = [
            Block(config, block, Attention(config, block, i, nearby if self.windows[i] else everywhere), UNITS[unit])
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        # The names of ModernBERT's head for masked tokens, which has the same form.
        self.dense = weights.linear("mlm", config.dim, config.dim, bias=None)
        own = weights.has("output.weight")
        self.head = weights.linear("output", config.dim, n_vocab) if own else self.tokens.as_head()
        bias = "output.bias"
        self.bias = weights.tensor(bias, (n_vocab,), vector=True) if weights.has(bias) else None

    def cache(self) -> list[CacheSpec]:
        return self.config.cache(self.windows)

    def __call__(self, step: Step) -> Tensor:
        x = step.run_layers(self.blocks, self.first_norm(self.tokens(step.tokens)))
        x = self.norm(select_rows(x, step.logit_rows))
        logits = self.head(self.last_norm(activate(self.dense(x), "gelu")))
        return logits if self.bias is None else add_weight(logits, self.bias)


MODEL = ModernBertDecoder

# --- checkpoint ---


def _window(config: Fields) -> int | None:
    """Return half of ``local_attention``, which counts tokens on both sides as in the encoder."""
    if config.is_null("local_attention"):
        return None
    n = config.integer("local_attention", 128, low=0) // 2
    return n or None


_KEYS: dict[str, Key] = {
    "context_length": u32("max_position_embeddings", default=8192, low=1),
    "embedding_length": u32("hidden_size", default=768),
    "block_count": u32("num_hidden_layers", default=22),
    "feed_forward_length": u32("intermediate_size", default=1152),
    "attention.head_count": u32("num_attention_heads", default=12, low=1),
    "attention.layer_norm_epsilon": f32("norm_eps", default=1e-5),
    "attention.sliding_window": computed("u32", _window),
    "attention.sliding_window_pattern": computed("bool[]", pattern_of),
    "hidden_activation": computed("string", lambda config: config.text("hidden_activation", "gelu")),
}
_ATTENTION = only_with("attention_bias", default=False, biases=True)
_MLP = only_with("mlp_bias", default=False, biases=True)
_LAYER = "model.layers.{i}"
_TENSORS: dict[str, str | Source] = {
    "token_embd": "model.embeddings.tok_embeddings",
    "token_embd_norm": "model.embeddings.norm",
    "output_norm": "model.final_norm",
    "mlm": tensor("lm_head.dense", change=only_with("classifier_bias", default=False, biases=True)),
    "mlm.norm": "lm_head.norm",
    "output": tensor("decoder", change=only_with("decoder_bias", default=True, biases=True)),
    "blk.{i}.attn_norm": f"{_LAYER}.attn_norm",
    **{f"blk.{{i}}.attn_{one}": tensor(f"{_LAYER}.attn.{one}_proj", change=_ATTENTION) for one in "qkv"},
    "blk.{i}.attn_output": tensor(f"{_LAYER}.attn.Wo", change=_ATTENTION),
    "blk.{i}.ffn_norm": f"{_LAYER}.mlp_norm",
    "blk.{i}.ffn_up": tensor(f"{_LAYER}.mlp.Wi", change=_MLP),
    "blk.{i}.ffn_down": tensor(f"{_LAYER}.mlp.Wo", change=_MLP),
}
HF = {
    "ModernBertDecoderForCausalLM": Checkpoint(
        "modern-bert-decoder",
        _KEYS,
        _TENSORS,
        fixed={"hidden_activation": tuple(UNITS), "classifier_activation": ("gelu",)},
        rope=rope_of_layers,
        tied=True,
        unused=(
            "norm_bias",
            "initializer_cutoff_factor",
            "sliding_window",
            "deterministic_flash_attn",
            "reference_compile",
            "repad_logits_with_grad",
            "sparse_pred*",
            "classifier_pooling",
            "layer_norm_eps",
            "position_embedding_type",
        ),
    )
}
