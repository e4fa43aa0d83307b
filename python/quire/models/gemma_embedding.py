"""EmbeddingGemma (Vera et al. 2025): Gemma 3 with bidirectional attention, and two dense layers on the vectors."""

from __future__ import annotations

from ..checkpoints.mapping import DECODER_TENSORS, Checkpoint, Fields, Key, Source, computed, u32
from ..errors import LoadError, UnsupportedError
from ..nn import CacheSpec, GatedMLP, Keys, RopeSpec, Step, Tensor, Weights, frequency_factors, rope_spec, select_rows
from . import gemma3
from .base import DenseConfig, SandwichBlock, Vectors, local_layers
from .encoder_heads import DenseHeads
from .encoding import BothWaysConfig

ARCHES = ("gemma-embedding",)


class Attention(gemma3.Attention):
    """Bidirectional attention, to all tokens or to half of ``window`` on either side."""

    def __init__(self, config: DenseConfig, weights: Weights, rotation: RopeSpec, window: int) -> None:
        super().__init__(config, weights, 0, rotation)
        self.scale, self.window = config.head_dim**-0.5, window

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q, k, v = self.heads(x, step)
        return self.o(step.attend_both_ways(q, k, v, scale=self.scale, window=self.window))


class GemmaEmbedding:
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        self.config = config = BothWaysConfig.read(keys, n_vocab)
        window = keys.integer("attention.sliding_window", low=1)
        local = local_layers(keys, config.n_layer, gemma3.PERIOD)
        local_base = keys.number("rope.freq_base_swa", gemma3.LOCAL_BASE)
        if local_base <= 0:
            raise LoadError(f"[{keys.arch}] rope.freq_base_swa {local_base} is out of range: expected more than 0")
        keys.only("rope.dimension_count_swa", config.n_rot)
        everywhere = rope_spec(
            keys, n_dims=config.n_rot, layout="half", factors=frequency_factors(weights, config.n_rot)
        )
        nearby = rope_spec(keys, n_dims=config.n_rot, layout="half", freq_base=local_base)
        keys.without_effect("final_logit_softcapping")  # there are no logits
        weights.ignore("output.weight", "vectors need no head")
        self.embedding = weights.embedding("token_embd", n_vocab, config.dim)
        self.blocks = [
            SandwichBlock(
                config,
                block,
                Attention(config, block, nearby if local[i] else everywhere, window if local[i] else 0),
                GatedMLP(block, config.dim, config.ffn_dim, "gelu_tanh"),
            )
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        self.norm = weights.norm("output_norm", config.dim, config.eps)
        self.dense = DenseHeads(keys, weights, config.dim)

    def cache(self) -> list[CacheSpec]:
        return [CacheSpec()] * self.config.n_layer

    def __call__(self, step: Step) -> Vectors:
        x = self.embedding(step.tokens) * self.config.dim**0.5
        x = step.run_layers(self.blocks, x)
        return Vectors(self.dense(self.norm(select_rows(x, step.logit_rows))))


MODEL = GemmaEmbedding

# --- checkpoint ---


def _attends_both_ways(config: Fields) -> None:
    """Require bidirectional attention: without the field, attention is causal."""
    if not config.flag("use_bidirectional_attention", False):
        raise UnsupportedError("[convert] unsupported 'use_bidirectional_attention': false or missing (expected true)")


_KEYS: dict[str, Key] = {
    **{name: key for name, key in gemma3.KEYS.items() if name != "final_logit_softcapping"},
    "attention.head_count_kv": u32("num_key_value_heads", default=4, low=1),
    "attention.sliding_window": u32("sliding_window", default=4096, low=1),
    "attention.causal": computed("bool", lambda config: False),
}
_TENSORS: dict[str, str | Source] = {
    **{ours: theirs for ours, theirs in DECODER_TENSORS.items() if ours != "output"},
    **gemma3.one_added({**gemma3.NORMS, **gemma3.HEAD_NORMS}),
}


HF = {
    "Gemma3TextModel": Checkpoint(
        "gemma-embedding",
        _KEYS,
        _TENSORS,
        fixed={
            "hidden_activation": gemma3.GELU_TANH,
            "attn_logit_softcapping": (None,),
        },
        checks=(gemma3.scale_is_known, _attends_both_ways),
        rope=gemma3.rope_entries,
        tied=True,
        unused=("attention_bias", "hidden_act", "final_logit_softcapping"),
    )
}
