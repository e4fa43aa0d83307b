"""PLaMo 13B (Preferred Networks 2023): Llama with attention and MLP in parallel after one norm, RoPE on halves."""

from __future__ import annotations

from ..checkpoints.mapping import DECODER_KEYS, SILU, Array, Checkpoint, Fields, computed, tensor, u32
from ..errors import UnsupportedError
from ..nn import GatedMLP, Keys, Step, Tensor, Weights, rope_spec
from .base import Decoder, DenseConfig
from .classic import Attention

ARCHES = ("plamo",)


class Block:
    def __init__(self, config: DenseConfig, weights: Weights, attention: Attention) -> None:
        self.norm, self.attention = weights.norm("attn_norm", config.dim, config.eps), attention
        self.mlp = GatedMLP(weights, config.dim, config.ffn_dim)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        y = self.norm(x)
        return x + self.attention(y, step) + self.mlp(y)


class Plamo(Decoder):
    """Files store the q heads that share a k head side by side."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half")
        blocks = [
            Block(config, block, Attention(config, block, i, rotation))
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)


MODEL = Plamo

# --- checkpoint ---


def _n_kv_head(config: Fields) -> int:
    """Return the heads of k and v: ``num_key_value_heads`` is not used."""
    n_head, n_shared = config.integer("num_attention_heads", low=1), config.integer("n_shared_head", 8, low=1)
    if n_head % n_shared:
        raise UnsupportedError(
            f"[convert] 'num_attention_heads' {n_head} is not divisible by 'n_shared_head' {n_shared}"
        )
    return n_head // n_shared


def _side_by_side(x: Array, config: Fields) -> Array:
    """Reorder rows of q: in checkpoints, head h uses k head ``h % n_kv_head``."""
    import numpy as np

    heads = x.reshape(-1, _n_kv_head(config), x.shape[0] // config.integer("num_attention_heads"), *x.shape[1:])
    ordered: Array = np.ascontiguousarray(heads.swapaxes(0, 1)).reshape(x.shape)
    return ordered


def _columns(x: Array, config: Fields) -> Array:
    """Reorder columns of the output projection in the same way."""
    columns: Array = _side_by_side(x.T, config).T.copy()
    return columns


_LAYER = "model.layers.layers.{i}"
HF = {
    "PlamoForCausalLM": Checkpoint(
        "plamo",
        {
            **DECODER_KEYS,
            "context_length": u32("max_position_embeddings", default=4096, low=1),
            "attention.head_count_kv": computed("u32", _n_kv_head),
        },
        {
            "token_embd": "model.embed_tokens",
            "output_norm": "model.norm",
            "output": "lm_head",
            "blk.{i}.attn_norm": f"{_LAYER}.norm",
            "blk.{i}.attn_q": tensor(f"{_LAYER}.self_attn.q_proj", change=_side_by_side),
            "blk.{i}.attn_k": f"{_LAYER}.self_attn.k_proj",
            "blk.{i}.attn_v": f"{_LAYER}.self_attn.v_proj",
            "blk.{i}.attn_output": tensor(f"{_LAYER}.self_attn.o_proj", change=_columns),
            "blk.{i}.ffn_gate": f"{_LAYER}.mlp.gate_proj",
            "blk.{i}.ffn_up": f"{_LAYER}.mlp.up_proj",
            "blk.{i}.ffn_down": f"{_LAYER}.mlp.down_proj",
        },
        fixed={"hidden_act": SILU, "rope_scaling": (None,), "rope_parameters": (None,), "head_dim": (None,)},
        unused=("num_key_value_heads", "tokenizer_file"),
    )
}
