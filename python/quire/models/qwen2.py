"""Qwen2 and Qwen2.5 (Yang et al. 2024): llama with biases on q, k and v, and heads rotated by halves."""

from __future__ import annotations

from ..gguf import Metadata
from ..nn import GatedMLP, RopeSpec, Step, Tensor, Weights, rope_spec, select_rows
from .base import Config
from .llama import Attention

ARCHES = ("qwen2",)


class Block:
    def __init__(self, c: Config, w: Weights, layer: int, rotation: RopeSpec) -> None:
        self.attn_norm, self.ffn_norm = w.norm("attn_norm", c.dim, c.eps), w.norm("ffn_norm", c.dim, c.eps)
        self.attention = Attention(c, w, layer, rotation, bias=True)
        self.mlp = GatedMLP(w, c.dim, c.ffn_dim)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.attention(self.attn_norm(x), step)
        return x + self.mlp(self.ffn_norm(x))


class Qwen2:
    def __init__(self, m: Metadata, w: Weights, n_vocab: int) -> None:
        arch = m.text("general.architecture")
        self.config = c = Config.read(m, arch, n_vocab)
        rotation = rope_spec(m, arch, w, n_dims=c.head_dim, layout="half")
        self.embedding = w.embedding("token_embd", n_vocab, c.dim)
        self.blocks = [Block(c, w.scope(f"blk.{i}"), i, rotation) for i in range(c.n_layer)]
        self.norm = w.norm("output_norm", c.dim, c.eps)
        self.head = w.linear("output", c.dim, n_vocab) if w.has("output.weight") else self.embedding.as_head()
        self.cache = c.cache

    def __call__(self, step: Step) -> Tensor:
        x = self.embedding(step.tokens)
        for block in self.blocks:
            x = block(x, step)
        return self.head(self.norm(select_rows(x, step.logit_rows)))


MODEL = Qwen2
