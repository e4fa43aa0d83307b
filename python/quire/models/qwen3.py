"""Qwen3 (Yang et al. 2025), dense: norms on the heads of q and k, no biases."""

from __future__ import annotations

from ..gguf import Metadata
from ..nn import GatedMLP, RopeSpec, Step, Tensor, Weights, rope, rope_spec, select_rows
from .base import Config

ARCHES = ("qwen3",)


class Attention:
    def __init__(self, c: Config, w: Weights, layer: int, rotation: RopeSpec) -> None:
        self.layer, self.n_head, self.n_kv_head = layer, c.n_head, c.n_kv_head
        self.scale, self.rotation = c.head_dim**-0.5, rotation
        self.q = w.linear("attn_q", c.dim, c.n_head * c.head_dim)
        self.k = w.linear("attn_k", c.dim, c.n_kv_head * c.head_dim)
        self.v = w.linear("attn_v", c.dim, c.n_kv_head * c.head_dim)
        self.o = w.linear("attn_output", c.n_head * c.head_dim, c.dim)
        self.q_norm = w.norm("attn_q_norm", c.head_dim, c.eps)
        self.k_norm = w.norm("attn_k_norm", c.head_dim, c.eps)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q = rope(self.q_norm(self.q(x).heads(self.n_head)), step.positions, self.rotation)
        k = rope(self.k_norm(self.k(x).heads(self.n_kv_head)), step.positions, self.rotation)
        v = self.v(x).heads(self.n_kv_head)
        return self.o(step.attend(self.layer, q, k, v, scale=self.scale))


class Block:
    def __init__(self, c: Config, w: Weights, layer: int, rotation: RopeSpec) -> None:
        self.attn_norm, self.ffn_norm = w.norm("attn_norm", c.dim, c.eps), w.norm("ffn_norm", c.dim, c.eps)
        self.attention = Attention(c, w, layer, rotation)
        self.mlp = GatedMLP(w, c.dim, c.ffn_dim)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.attention(self.attn_norm(x), step)
        return x + self.mlp(self.ffn_norm(x))


class Qwen3:
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


MODEL = Qwen3
