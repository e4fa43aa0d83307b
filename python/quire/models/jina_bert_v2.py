"""Jina embeddings v2 (Gunther et al. 2023): BERT with ALiBi and GeGLU."""

from __future__ import annotations

from ..checkpoints.mapping import Checkpoint, Fields, Source
from ..errors import UnsupportedError
from ..nn import MLP, FusedGatedMLP, Keys, LayerNorm, Step, Tensor, Weight, Weights
from . import encoding
from .base import Layer
from .classic import alibi_slopes
from .encoding import ENCODER_KEYS, TRAINING_HEADS, Embeddings, Encoder, EncoderConfig, below

ARCHES = ("jina-bert-v2",)


class LinearBiases:
    """Bidirectional ALiBi (Press, Smith and Lewis 2021): scores fall with the distance in both directions."""

    def __init__(self, weights: Weights, n_head: int) -> None:
        self.weights, self.slopes = weights, alibi_slopes(n_head, 8.0)
        self.made: dict[int, Weight] = {}  # by n_ctx

    def of(self, step: Step) -> Weight:
        import numpy as np

        if step.n_ctx not in self.made:
            distances = np.abs(np.arange(1 - step.n_ctx, step.n_ctx, dtype=np.float32))
            self.made[step.n_ctx] = self.weights.computed(
                "alibi", -np.array(self.slopes, np.float32)[:, None] * distances
            )
        return self.made[step.n_ctx]


class Attention(encoding.Attention):
    """Attention with ALiBi, and norms of whole q and k rows if the file has them."""

    def __init__(self, config: EncoderConfig, weights: Weights, biases: LinearBiases) -> None:
        super().__init__(config, weights)
        self.biases = biases
        names = ("attn_q_norm", "attn_k_norm")
        has_norms = weights.has("attn_q_norm.weight")
        self.norms: list[LayerNorm] = (
            [weights.layer_norm(name, config.dim, config.eps) for name in names] if has_norms else []
        )

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q, k, v = (linear(x) for linear in (self.q, self.k, self.v))
        if self.norms:
            q, k = (norm(y) for norm, y in zip(self.norms, (q, k), strict=True))
        q, k, v = (y.heads(self.n_head) for y in (q, k, v))
        return self.o(step.attend_both_ways(q, k, v, scale=self.scale, bias=self.biases.of(step)))


class JinaBertV2(Encoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = EncoderConfig.read_file(keys, weights, n_vocab)
        biases = LinearBiases(weights, config.n_head)

        def mlp(block: Weights) -> Layer:
            is_gated = block.n_rows("ffn_up.weight") == 2 * config.ffn_dim
            return (
                FusedGatedMLP(block, config.dim, config.ffn_dim, "gelu")
                if is_gated
                else MLP(block, config.dim, config.ffn_dim, "gelu")
            )

        blocks = [
            encoding.Block(config, block, Attention(config, block, biases), mlp(block))
            for block in weights.blocks(config.n_layer)
        ]
        super().__init__(config, keys, weights, Embeddings(config, weights), blocks)


MODEL = JinaBertV2

# --- checkpoint ---


def _no_classes(config: Fields) -> None:
    if (kind := config.value("emb_pooler")) not in ("mean", None):
        raise UnsupportedError(f"[convert] unsupported 'emb_pooler': {kind} (expected mean)")


_LAYER = "encoder.layer.{i}"
_TENSORS: dict[str, str | Source] = {
    "token_embd": "embeddings.word_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "token_embd_norm": "embeddings.LayerNorm",
    **{
        f"blk.{{i}}.attn_{ours}": f"{_LAYER}.attention.self.{theirs}"
        for ours, theirs in (("q", "query"), ("k", "key"), ("v", "value"))
    },
    "blk.{i}.attn_q_norm": f"{_LAYER}.attention.self.layer_norm_q",
    "blk.{i}.attn_k_norm": f"{_LAYER}.attention.self.layer_norm_k",
    "blk.{i}.attn_output": f"{_LAYER}.attention.output.dense",
    "blk.{i}.attn_output_norm": f"{_LAYER}.attention.output.LayerNorm",
    "blk.{i}.ffn_up": f"{_LAYER}.mlp.gated_layers",
    "blk.{i}.ffn_down": f"{_LAYER}.mlp.wo",
    "blk.{i}.layer_output_norm": f"{_LAYER}.mlp.layernorm",
}
_CHECKPOINT = Checkpoint(
    "jina-bert-v2",
    ENCODER_KEYS,
    below("bert.", _TENSORS),
    fixed={
        "hidden_act": ("gelu",),
        "position_embedding_type": ("alibi",),
        "feed_forward_type": ("geglu",),
        "is_decoder": (False,),
    },
    checks=(_no_classes,),
    rope=None,
    unused=(
        "type_vocab_size",
        "tie_word_embeddings",
        "classifier_dropout",
        "pooler_*",
        "model_max_length",
        "attn_implementation",
    ),
    ignored=TRAINING_HEADS,
    base="bert.",
)
HF = {"JinaBertModel": _CHECKPOINT, "JinaBertForMaskedLM": _CHECKPOINT}
