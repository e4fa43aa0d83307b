"""SmolLM3 (Hugging Face 2025): Llama without RoPE in every fourth layer (Yang et al. 2025)."""

from __future__ import annotations

from collections.abc import Iterator

from ..checkpoints.mapping import SILU, Checkpoint, Fields, computed, no_windows, rope_keys
from ..checkpoints.mapping.rope import Entry
from ..errors import UnsupportedError
from ..nn import GatedMLP, Keys, Step, Tensor, Weights, frequency_factors, rope_spec
from . import llama
from .base import Block, Decoder, DenseConfig

ARCHES = ("smollm3",)
PERIOD = 4


class WithoutPositions(llama.Attention):
    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q, k, v = self.q(x).heads(self.n_head), self.k(x).heads(self.n_kv_head), self.v(x).heads(self.n_kv_head)
        return self.o(step.attend(self.layer, q, k, v, scale=self.scale))


class SmolLM3(Decoder):
    """Files store q and k interleaved, as for Llama."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        rotation = rope_spec(
            keys, n_dims=config.n_rot, layout="interleaved", factors=frequency_factors(weights, config.n_rot)
        )
        kinds = [llama.Attention if (i + 1) % PERIOD else WithoutPositions for i in range(config.n_layer)]
        blocks = [
            Block(config, block, kinds[i](config, block, i, rotation), GatedMLP(block, config.dim, config.ffn_dim))
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)


MODEL = SmolLM3

# --- checkpoint ---


def _rotated_as_known(config: Fields) -> None:
    """Require RoPE in the usual layers: files have no key for it."""
    n_layer, period = config.integer("num_hidden_layers"), config.integer("no_rope_layer_interval", PERIOD)
    rotated = config.items("no_rope_layers") or [int((i + 1) % max(period, 1) != 0) for i in range(n_layer)]
    if rotated[:n_layer] != [int((i + 1) % PERIOD != 0) for i in range(n_layer)]:
        raise UnsupportedError("[convert] unsupported 'no_rope_layers': expected 0 for every fourth layer, else 1")


def _n_kv_head(config: Fields) -> int:
    if config.is_null("num_key_value_heads"):
        return config.integer("num_attention_heads", low=1)
    return config.integer("num_key_value_heads", 4, low=1)


def _rope(config: Fields) -> Iterator[Entry]:
    return rope_keys(config, 2e6)


HF = {
    "SmolLM3ForCausalLM": Checkpoint(
        "smollm3",
        {**llama.KEYS, "attention.head_count_kv": computed("u32", _n_kv_head)},
        llama.TENSORS,
        fixed={"hidden_act": SILU},
        checks=(no_windows, _rotated_as_known),
        rope=_rope,
        tied=True,
        unused=("attention_bias", "mlp_bias"),
    )
}
