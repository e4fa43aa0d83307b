"""Gemma 3, text (Kamath et al. 2025): windows in five of six layers, two rotary bases, norms before and after."""

from __future__ import annotations

from ..errors import LoadError
from ..gguf import Metadata
from ..nn import CacheSpec, GatedMLP, RopeSpec, Step, Tensor, Weights, rope, rope_spec, select_rows, soft_cap
from .base import Config

ARCHES = ("gemma3",)
PERIOD = 6  # every sixth layer sees all of the past
LOCAL_BASE = 10000.0


class Attention:
    def __init__(self, c: Config, w: Weights, layer: int, rotation: RopeSpec) -> None:
        self.layer, self.n_head, self.n_kv_head = layer, c.n_head, c.n_kv_head
        # The 27-billion model scales by the width that a head would have if they shared the hidden size.
        self.scale = (c.dim / c.n_head) ** -0.5 if c.n_layer == 62 else c.head_dim**-0.5
        self.rotation = rotation
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
        self.attn_norm, self.attn_post = w.norm("attn_norm", c.dim, c.eps), w.norm("post_attention_norm", c.dim, c.eps)
        self.ffn_norm, self.ffn_post = w.norm("ffn_norm", c.dim, c.eps), w.norm("post_ffw_norm", c.dim, c.eps)
        self.attention = Attention(c, w, layer, rotation)
        self.mlp = GatedMLP(w, c.dim, c.ffn_dim, "gelu_tanh")

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.attn_post(self.attention(self.attn_norm(x), step))
        return x + self.ffn_post(self.mlp(self.ffn_norm(x)))


class Gemma3:
    """Norm weights are stored with the 1 added that checkpoints leave out."""

    def __init__(self, m: Metadata, w: Weights, n_vocab: int) -> None:
        arch = m.text("general.architecture")
        self.config = c = Config.read(m, arch, n_vocab)
        self.window = m.integer(f"{arch}.attention.sliding_window", low=1)
        self.cap = m.number(f"{arch}.final_logit_softcapping", 0.0)
        local_base = m.number(f"{arch}.rope.freq_base_swa", LOCAL_BASE)
        if local_base <= 0 or self.cap < 0:
            raise LoadError(f"[{arch}] rope.freq_base_swa and final_logit_softcapping must not be negative")
        everywhere = rope_spec(m, arch, w, n_dims=c.head_dim, layout="half")
        nearby = rope_spec(m, arch, w, n_dims=c.head_dim, layout="half", freq_base=local_base)
        self.embedding = w.embedding("token_embd", n_vocab, c.dim)
        rotations = [everywhere if self.is_global(i) else nearby for i in range(c.n_layer)]
        self.blocks = [Block(c, w.scope(f"blk.{i}"), i, rotations[i]) for i in range(c.n_layer)]
        self.norm = w.norm("output_norm", c.dim, c.eps)
        self.head = w.linear("output", c.dim, n_vocab) if w.has("output.weight") else self.embedding.as_head()

    def is_global(self, layer: int) -> bool:
        return (layer + 1) % PERIOD == 0

    def cache(self) -> list[CacheSpec]:
        c = self.config
        windows = [0 if self.is_global(i) else self.window for i in range(c.n_layer)]
        return [CacheSpec(n_kv_head=c.n_kv_head, head_dim=c.head_dim, window=window) for window in windows]

    def __call__(self, step: Step) -> Tensor:
        x = self.embedding(step.tokens) * self.config.dim**0.5
        for block in self.blocks:
            x = block(x, step)
        logits = self.head(self.norm(select_rows(x, step.logit_rows)))
        return soft_cap(logits, self.cap) if self.cap else logits


MODEL = Gemma3
