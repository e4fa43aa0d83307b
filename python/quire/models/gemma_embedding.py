"""EmbeddingGemma (Vera et al. 2025): Gemma 3 whose tokens attend both ways, and two matrices on the vectors."""

from __future__ import annotations

from ..checkpoint import DECODER_TENSORS, Checkpoint, Key, Source, made, u32
from ..errors import LoadError
from ..nn import CacheSpec, GatedMLP, Keys, RopeSpec, Step, Tensor, Weights, frequency_factors, rope_spec, select_rows
from . import gemma3
from .base import DenseConfig, SandwichBlock, Vectors, local_layers
from .encoding import BothWaysConfig, DenseHeads

ARCHES = ("gemma-embedding",)


class Attention(gemma3.Attention):
    """Both ways, to all or to half of ``window`` on either side."""

    def __init__(self, c: DenseConfig, w: Weights, rotation: RopeSpec, window: int) -> None:
        super().__init__(c, w, 0, rotation)
        self.scale, self.window = c.head_dim**-0.5, window

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q, k, v = self.heads(x, step)
        return self.o(step.attend_both_ways(q, k, v, scale=self.scale, window=self.window))


class GemmaEmbedding:
    def __init__(self, m: Keys, w: Weights, n_vocab: int) -> None:
        self.config = c = BothWaysConfig.read(m, n_vocab)
        window = m.integer("attention.sliding_window", 0)  # 0: every layer sees everything
        local = [window > 0 and one for one in local_layers(m, c.n_layer, gemma3.PERIOD)]
        local_base = m.number("rope.freq_base_swa", gemma3.LOCAL_BASE)
        if local_base <= 0:
            raise LoadError(f"[{m.arch}] rope.freq_base_swa must be above 0 but is {local_base}")
        m.only("rope.dimension_count_swa", c.n_rot)
        everywhere = rope_spec(m, n_dims=c.n_rot, layout="half", factors=frequency_factors(w, c.n_rot))
        nearby = rope_spec(m, n_dims=c.n_rot, layout="half", freq_base=local_base)
        m.without_effect("final_logit_softcapping")  # there are no logits
        w.ignore("output.weight", "vectors need no head")
        self.embedding = w.embedding("token_embd", n_vocab, c.dim)
        self.blocks = [
            SandwichBlock(
                c,
                b,
                Attention(c, b, nearby if local[i] else everywhere, window if local[i] else 0),
                GatedMLP(b, c.dim, c.ffn_dim, "gelu_tanh"),
            )
            for i, b in enumerate(w.blocks(c.n_layer))
        ]
        self.norm, self.dense = w.norm("output_norm", c.dim, c.eps), DenseHeads(m, w, c.dim)

    def cache(self) -> list[CacheSpec]:
        return [CacheSpec()] * self.config.n_layer

    def __call__(self, step: Step) -> Vectors:
        x = self.embedding(step.tokens) * self.config.dim**0.5
        x = step.run_layers(self.blocks, x)
        return Vectors(self.dense(self.norm(select_rows(x, step.logit_rows))))


MODEL = GemmaEmbedding
_KEYS: dict[str, Key] = {
    **{name: key for name, key in gemma3.KEYS.items() if name != "final_logit_softcapping"},
    "attention.head_count_kv": u32("num_key_value_heads", default=4, low=1),
    "attention.causal": made("bool", lambda config: False),
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
            "use_bidirectional_attention": (True,),
            "attn_logit_softcapping": (None,),
        },
        checks=(gemma3.scale_is_known,),
        rope=gemma3.rope_entries,
        tied=True,
        unused=("attention_bias", "hidden_act", "final_logit_softcapping"),
    )
}
