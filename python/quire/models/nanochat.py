"""nanochat (Karpathy 2025): norms without weights, also of queries and keys; squared ReLU (So et al. 2021)."""

from __future__ import annotations

from .._native.graph import relu_squared
from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    Array,
    Change,
    Checkpoint,
    Fields,
    cap,
    no_windows,
    tensor,
    u32,
)
from ..errors import LoadError
from ..nn import MLP, Keys, RopeSpec, Step, Tensor, Weights, rope, rope_spec, soft_cap, unit_norm
from . import llama
from .base import Decoder, DenseConfig, head

ARCHES = ("nanochat",)


class Attention(llama.Attention):
    def __init__(self, config: DenseConfig, weights: Weights, layer: int, rotation: RopeSpec) -> None:
        super().__init__(config, weights, layer, rotation)
        self.eps = config.eps

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q, k = self.q(x).heads(self.n_head), self.k(x).heads(self.n_kv_head)
        q, k = (rope(unit_norm(one, self.eps), step.positions, self.rotation) for one in (q, k))
        return self.o(step.attend(self.layer, q, k, self.v(x).heads(self.n_kv_head), scale=self.scale))


class Block:
    def __init__(self, config: DenseConfig, weights: Weights, layer: int, rotation: RopeSpec) -> None:
        self.attention, self.eps = Attention(config, weights, layer, rotation), config.eps
        self.mlp = MLP(weights, config.dim, config.ffn_dim, relu_squared)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.attention(unit_norm(x, self.eps), step)
        return x + self.mlp(unit_norm(x, self.eps))


class NanoChat(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = self.config = DenseConfig.read(keys, n_vocab)
        if (limit := keys.number("final_logit_softcapping", 0.0)) < 0:
            raise LoadError(f"[nanochat] final_logit_softcapping {limit} is out of range: expected 0 or more")
        rotation, self.cap = rope_spec(keys, n_dims=config.n_rot, layout="half"), limit
        self.embedding = weights.embedding("token_embd", config.n_vocab, config.dim)
        self.blocks = [Block(config, block, i, rotation) for i, block in enumerate(weights.blocks(config.n_layer))]
        self.norm = lambda x: unit_norm(x, config.eps)
        self.head = head(weights, config, self.embedding)

    def __call__(self, step: Step) -> Tensor:
        logits = self.logits(self.norm(self.embedding(step.tokens)), step)
        return soft_cap(logits, self.cap) if self.cap else logits


MODEL = NanoChat

# --- checkpoint ---


def _swapped(n_heads: str) -> Change:
    """Swap the halves of each head: the model turns them the other way round."""

    def change(x: Array, config: Fields) -> Array:
        n = config.integer(n_heads, config.integer("num_attention_heads"))
        heads = x.reshape(n, 2, x.shape[0] // n // 2, *x.shape[1:])
        swapped: Array = heads[:, ::-1].reshape(x.shape)
        return swapped

    return change


_LAYER = "model.layers.{i}"
HF = {
    "NanoChatForCausalLM": Checkpoint(
        "nanochat",
        {
            **DECODER_KEYS,
            "attention.head_count_kv": u32("num_key_value_heads", "num_attention_heads", low=1),
            "final_logit_softcapping": cap("final_logit_softcapping", 15.0),
        },
        {
            **{name: source for name, source in DECODER_TENSORS.items() if "norm" not in name and ".ffn_" not in name},
            "blk.{i}.attn_q": tensor(f"{_LAYER}.self_attn.q_proj", change=_swapped("num_attention_heads")),
            "blk.{i}.attn_k": tensor(f"{_LAYER}.self_attn.k_proj", change=_swapped("num_key_value_heads")),
            "blk.{i}.ffn_up": f"{_LAYER}.mlp.fc1",
            "blk.{i}.ffn_down": f"{_LAYER}.mlp.fc2",
        },
        fixed={"hidden_act": ("relu2",), "attention_bias": (False,)},
        checks=(no_windows,),
    )
}
