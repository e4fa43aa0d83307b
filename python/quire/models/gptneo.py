"""GPT-Neo (Black et al. 2021) and TinyStories (Eldan and Li 2023): GPT-2 with windows in half the layers."""

from __future__ import annotations

from ..checkpoints.mapping import Checkpoint, Fields, computed, f32, u32
from ..errors import UnsupportedError
from ..nn import MLP, CacheSpec, Keys, Step, Tensor, Weights
from . import classic
from .base import DenseConfig
from .classic import EPS, GELU_TANH, Block, LayerNormDecoder, PositionTable

ARCHES = ("gptneo",)


class Attention(classic.Attention):
    def __init__(self, config: DenseConfig, weights: Weights, layer: int) -> None:
        super().__init__(config, weights, layer)
        self.scale = 1.0


class GPTNeo(LayerNormDecoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab, eps=EPS)
        window = keys.integer("attention.sliding_window", low=1)
        is_local = keys.integers("attention.sliding_window_pattern", config.n_layer, high=1)
        self.windows = [window if local else 0 for local in is_local]
        self.positions = PositionTable(config, weights)
        blocks = [
            Block(config, block, Attention(config, block, i), MLP(block, config.dim, config.ffn_dim, "gelu_tanh"))
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)

    def cache(self) -> list[CacheSpec]:
        return self.config.cache(self.windows)

    def __call__(self, step: Step) -> Tensor:
        return self.logits(self.embedding(step.tokens) + self.positions(step), step)


MODEL = GPTNeo

# --- checkpoint ---

DEFAULT_TYPES = [[["global", "local"], 12]]


def _local(config: Fields) -> list[bool]:
    """Return the layers with windows, by ``attention_layers`` or by kinds of layers and how often each list repeats."""
    kinds = config.items("attention_layers")
    for item in config.items("attention_types") or DEFAULT_TYPES:
        match item:
            case [list(names), int(n)] if not config.has("attention_layers"):
                kinds = [*kinds, *(names * min(n, 1024))]
    n_layer = config.integer("num_layers" if config.has("num_layers") else "num_hidden_layers", 24)
    if len(kinds) != n_layer or not all(kind in ("global", "local") for kind in kinds):
        raise UnsupportedError(
            f"[convert] unsupported 'attention_types': expected global or local for {n_layer} layers"
        )
    return [kind == "local" for kind in kinds]


_LAYER = "transformer.h.{i}"
HF = {
    "GPTNeoForCausalLM": Checkpoint(
        "gptneo",
        {
            "context_length": u32("max_position_embeddings", default=2048, low=1),
            "embedding_length": u32("hidden_size", default=2048),
            "block_count": u32("num_layers", "num_hidden_layers", default=24),
            "feed_forward_length": u32(
                "intermediate_size", default=lambda config: 4 * config.integer("hidden_size", 2048), low=1
            ),
            "attention.head_count": u32("num_heads", "num_attention_heads", default=16, low=1),
            "attention.layer_norm_epsilon": f32("layer_norm_epsilon", default=1e-5),
            "attention.sliding_window": u32("window_size", default=256, low=1),
            "attention.sliding_window_pattern": computed("bool[]", _local),
        },
        {
            "token_embd": "transformer.wte",
            "position_embd": "transformer.wpe",
            "output_norm": "transformer.ln_f",
            "output": "lm_head",
            "blk.{i}.attn_norm": f"{_LAYER}.ln_1",
            "blk.{i}.attn_q": f"{_LAYER}.attn.attention.q_proj",
            "blk.{i}.attn_k": f"{_LAYER}.attn.attention.k_proj",
            "blk.{i}.attn_v": f"{_LAYER}.attn.attention.v_proj",
            "blk.{i}.attn_output": f"{_LAYER}.attn.attention.out_proj",
            "blk.{i}.ffn_norm": f"{_LAYER}.ln_2",
            "blk.{i}.ffn_up": f"{_LAYER}.mlp.c_fc",
            "blk.{i}.ffn_down": f"{_LAYER}.mlp.c_proj",
        },
        fixed={"activation_function": GELU_TANH},
        rope=None,
        tied=True,
        unused=("summary_*",),
        ignored=("*.attn.attention.bias", "*.attn.attention.masked_bias"),  # causal masks, saved by older versions
        base="transformer.",
    )
}
