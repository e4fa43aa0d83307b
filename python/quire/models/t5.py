"""T5 (Raffel et al. 2020), Flan-T5, mT5, UMT5: an encoder for the prompt, a decoder with cross attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..checkpoints.mapping import Checkpoint, Fields, Key, computed, u32
from ..errors import LoadError
from ..nn import CacheSpec, Keys, Step, Tensor, Weight, Weights, select_rows
from .base import MAX_LAYERS, DenseConfig, Vectors, head
from .t5encoder import (
    KEYS,
    MAX_DISTANCE,
    MULTILINGUAL_KEYS,
    TENSORS,
    activation_is_known,
    attention_tensors,
    before,
    encoder_blocks,
    is_gated_unless_said,
    mlp_of,
    mlp_tensors,
    n_buckets_of,
    with_biases,
)

ARCHES = ("t5",)


@dataclass(frozen=True)
class T5Config(DenseConfig):
    """Sizes of encoder and decoder; ``n_layer`` counts the encoder's layers."""

    n_decoder_layer: int
    start: int

    @property
    def decoder_start(self) -> int:
        return self.start

    def cache(self, windows: Sequence[int] | None = None) -> list[CacheSpec]:
        """Return the decoder's layers twice: for its own text, then for the source."""
        kept = [
            CacheSpec(n_kv_head=self.n_head, head_dim=self.head_dim, of_source=of_source) for of_source in (False, True)
        ]
        return [kept[0]] * self.n_decoder_layer + [kept[1]] * self.n_decoder_layer


class DecoderBlock:
    """A decoder layer; its own text is layer ``i`` of the cache, the source is layer ``source``."""

    def __init__(self, config: T5Config, weights: Weights, i: int, bias: Weight) -> None:
        self.n_head, self.i, self.source, self.bias = config.n_head, i, config.n_decoder_layer + i, bias
        inner = config.n_head * config.head_dim
        self.norm, self.cross_norm = (
            weights.norm(f"{name}_norm", config.dim, config.eps) for name in ("attn", "cross_attn")
        )
        self.q, self.k, self.v = (weights.linear(f"attn_{one}", config.dim, inner) for one in "qkv")
        self.cross_q, self.cross_k, self.cross_v = (
            weights.linear(f"cross_attn_{one}", config.dim, inner) for one in "qkv"
        )
        self.o, self.cross_o = (weights.linear(f"{name}_o", inner, config.dim) for name in ("attn", "cross_attn"))
        self.ffn_norm, self.mlp = weights.norm("ffn_norm", config.dim, config.eps), mlp_of(config, weights)
        weights.ignore("cross_attn_rel_b.weight", "cross attention has no bias")

    def write_source(self, encoded: Tensor, step: Step) -> None:
        k, v = (linear(encoded).heads(self.n_head) for linear in (self.cross_k, self.cross_v))
        step.write_source(self.source, k, v)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        y = self.norm(x)
        q, k, v = (linear(y).heads(self.n_head) for linear in (self.q, self.k, self.v))
        x = x + self.o(step.attend(self.i, q, k, v, scale=1.0, bias=self.bias))
        q = self.cross_q(self.cross_norm(x)).heads(self.n_head)
        x = x + self.cross_o(step.attend_to_source(self.source, q, scale=1.0))
        return x + self.mlp(self.ffn_norm(x))


class T5:
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        sizes = DenseConfig.read(keys, n_vocab)
        n_buckets = n_buckets_of(keys, sizes)
        self.config = config = T5Config(
            **vars(sizes),
            n_decoder_layer=keys.integer("decoder_block_count", sizes.n_layer, low=1, high=MAX_LAYERS),
            start=keys.integer("decoder_start_token_id", low=0, high=n_vocab - 1),
        )
        self.embedding = weights.embedding("token_embd", config.n_vocab, config.dim)
        self.encoder = encoder_blocks(config, weights, n_buckets)
        self.encoder_norm = weights.norm("enc.output_norm", config.dim, config.eps)
        layers = [weights.scope(f"dec.blk.{i}") for i in range(config.n_decoder_layer)]
        biases = enumerate(with_biases(config, layers, n_buckets, before))
        self.decoder = [DecoderBlock(config, block, i, bias) for i, (block, bias) in biases]
        self.norm = weights.norm("dec.output_norm", config.dim, config.eps)
        self.head = head(weights, config, self.embedding)
        # Version 1.0 (ungated) ties embedding and output and scales the logits; later versions do neither.
        is_first = not (weights.has("output.weight") and weights.has("dec.blk.0.ffn_gate.weight"))
        self.scale = keys.number("logit_scale", config.dim**-0.5 if is_first else 1.0)
        if not 0 < self.scale < 1e6:
            raise LoadError(f"[t5] logit_scale {self.scale} is out of range: expected more than 0, below 1e6")

    def cache(self) -> list[CacheSpec]:
        return self.config.cache()

    def encode(self, step: Step) -> Vectors:
        x = self.encoder_norm(step.run_layers(self.encoder, self.embedding(step.tokens)))
        for block in self.decoder:
            block.write_source(x, step)
        return Vectors(select_rows(x, step.logit_rows))

    def __call__(self, step: Step) -> Tensor:
        x = step.run_layers(self.decoder, self.embedding(step.tokens))
        logits = self.head(self.norm(select_rows(x, step.logit_rows)))
        return logits if self.scale == 1.0 else logits * self.scale


MODEL = T5

# --- checkpoint ---


def _n_decoder_layer(default: int) -> Key:
    """Return the key of the decoder's layers, by default as many as the encoder's; ``default`` is the encoder's."""

    def read(config: Fields) -> int:
        if config.value("num_decoder_layers") is not None:
            return config.integer("num_decoder_layers", low=1)
        return config.integer("num_layers", default, low=1)

    return computed("u32", read)


def _logit_scale(config: Fields) -> float:
    """Return the scale of the logits.

    Newer versions of transformers always tie the output matrix, and have a separate field for the scale.
    """
    is_scaled = config.flag("scale_decoder_outputs", config.flag("tie_word_embeddings", True))
    return float(config.integer("d_model", 512)) ** -0.5 if is_scaled else 1.0


class T5Checkpoint(Checkpoint):
    """If there is no output matrix, the embedding is used, even if the configuration does not tie them."""

    def is_tied(self, whole: Fields) -> bool:
        super().is_tied(whole)
        return True


_BLOCK = "decoder.block.{i}"
_T5 = T5Checkpoint(
    "t5",
    {
        **KEYS,
        "decoder_block_count": _n_decoder_layer(6),
        "decoder_start_token_id": u32("decoder_start_token_id", "pad_token_id", default=0),
        "logit_scale": computed("f32", _logit_scale),
    },
    {
        **TENSORS,
        "output": "lm_head",
        "dec.output_norm": "decoder.final_layer_norm",
        "dec.blk.{i}.attn_norm": f"{_BLOCK}.layer.0.layer_norm",
        **attention_tensors("dec.blk.{i}.attn", f"{_BLOCK}.layer.0.SelfAttention"),
        "dec.blk.{i}.attn_rel_b": f"{_BLOCK}.layer.0.SelfAttention.relative_attention_bias",
        "dec.blk.{i}.cross_attn_norm": f"{_BLOCK}.layer.1.layer_norm",
        **attention_tensors("dec.blk.{i}.cross_attn", f"{_BLOCK}.layer.1.EncDecAttention"),
        **mlp_tensors("dec.blk.{i}", f"{_BLOCK}.layer.2"),
    },
    fixed={
        "is_decoder": (False,),
        "is_encoder_decoder": (True,),
        "relative_attention_max_distance": (MAX_DISTANCE,),
    },
    checks=(activation_is_known,),
    rope=None,
    tied=True,
    unused=("dropout_rate", "output_past", "classifier_dropout"),
    # The first two duplicate "shared"; transformers does not use the third one either.
    ignored=("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "*.EncDecAttention.relative_*"),
    base="",
)
_UMT5 = replace(
    _T5,
    keys={
        **_T5.keys,
        **MULTILINGUAL_KEYS,
        "decoder_block_count": _n_decoder_layer(8),
        "decoder_start_token_id": u32("decoder_start_token_id", default=0),
    },
    checks=(is_gated_unless_said,),
)
HF = {
    "T5ForConditionalGeneration": _T5,
    "UMT5ForConditionalGeneration": _UMT5,
    # UMT5's logits are never scaled, even if the output matrix is tied.
    "MT5ForConditionalGeneration": replace(
        _UMT5,
        keys={**_UMT5.keys, "logit_scale": computed("f32", lambda config: 1.0)},
        unused=(*_UMT5.unused, "scale_decoder_outputs"),
    ),
}
