"""Qwen3 with experts (Yang et al. 2025): Qwen3's attention, a mixture in every block."""

from __future__ import annotations

from ..gguf import Metadata
from ..nn import MoE, MoeSpec, RopeSpec, Step, Tensor, Weights, rope_spec, select_rows
from .base import MAX_DIM, Config
from .qwen3 import Attention

ARCHES = ("qwen3moe",)


class Block:
    def __init__(
        self, c: Config, w: Weights, layer: int, rotation: RopeSpec, experts: tuple[int, int, MoeSpec]
    ) -> None:
        n_expert, ffn_dim, spec = experts
        self.attn_norm, self.ffn_norm = w.norm("attn_norm", c.dim, c.eps), w.norm("ffn_norm", c.dim, c.eps)
        self.attention = Attention(c, w, layer, rotation)
        self.experts = MoE(w, c.dim, ffn_dim, n_expert, spec)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.attention(self.attn_norm(x), step)
        return x + self.experts(self.ffn_norm(x))


class Qwen3Moe:
    def __init__(self, m: Metadata, w: Weights, n_vocab: int) -> None:
        arch = m.text("general.architecture")
        self.config = c = Config.read(m, arch, n_vocab)
        n_expert = m.integer(f"{arch}.expert_count", low=1, high=4096)
        n_used = m.integer(f"{arch}.expert_used_count", low=1, high=n_expert)
        ffn_dim = m.integer(f"{arch}.expert_feed_forward_length", low=1, high=MAX_DIM)
        # The probabilities of the chosen experts are divided by their sum; files say so only where they do not.
        experts = (n_expert, ffn_dim, MoeSpec(n_used=n_used, activation="silu", normalize=True))
        rotation = rope_spec(m, arch, w, n_dims=c.head_dim, layout="half")
        self.embedding = w.embedding("token_embd", n_vocab, c.dim)
        self.blocks = [Block(c, w.scope(f"blk.{i}"), i, rotation, experts) for i in range(c.n_layer)]
        self.norm = w.norm("output_norm", c.dim, c.eps)
        self.head = w.linear("output", c.dim, n_vocab) if w.has("output.weight") else self.embedding.as_head()
        self.cache = c.cache

    def __call__(self, step: Step) -> Tensor:
        x = self.embedding(step.tokens)
        for block in self.blocks:
            x = block(x, step)
        return self.head(self.norm(select_rows(x, step.logit_rows)))


MODEL = Qwen3Moe
