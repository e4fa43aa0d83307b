"""PLaMo 3 (Preferred Networks 2025): PLaMo 2's norms around attention, with windows in seven of eight layers."""

from __future__ import annotations

from collections.abc import Iterator

from ..checkpoints.mapping import (
    DECODER_KEYS,
    SILU,
    Checkpoint,
    Fields,
    adding,
    computed,
    layers_of_type,
    rope_keys,
    tensor,
    window,
)
from ..checkpoints.mapping.rope import Entry, rope_of
from ..errors import UnsupportedError
from ..nn import CacheSpec, FusedGatedMLP, Keys, RopeSpec, Step, Tensor, Weights, rope, rope_spec
from .base import Decoder, DenseConfig, local_layers
from .classic import projections
from .plamo2 import FRAME, LAYER, SandwichBlock

ARCHES = ("plamo3",)
PERIOD = 8  # every eighth layer has full attention


class Attention:
    def __init__(self, config: DenseConfig, weights: Weights, layer: int, rotation: RopeSpec) -> None:
        self.layer, self.n_head, self.n_kv_head = layer, config.n_head, config.n_kv_head
        self.scale, self.rotation = config.head_dim**-0.5, rotation
        self.q, self.k, self.v = projections(config, weights)
        self.q_norm, self.k_norm = (weights.norm(f"attn_{one}_norm", config.head_dim, config.eps) for one in "qk")
        self.o = weights.linear("attn_output", config.n_head * config.v_head_dim, config.dim)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q = rope(self.q_norm(self.q(x).heads(self.n_head)), step.positions, self.rotation)
        k = rope(self.k_norm(self.k(x).heads(self.n_kv_head)), step.positions, self.rotation)
        return self.o(step.attend(self.layer, q, k, self.v(x).heads(self.n_kv_head), scale=self.scale))


class Plamo3(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        self.window = keys.integer("attention.sliding_window", 0)
        local = local_layers(keys, config.n_layer, PERIOD)
        self.windows = [self.window if one else 0 for one in local]
        base = keys.number("rope.freq_base", 10000.0)
        whole = rope_spec(keys, n_dims=config.n_rot, layout="half")
        inside = rope_spec(keys, n_dims=config.n_rot, layout="half", freq_base=keys.number("rope.freq_base_swa", base))
        blocks = [
            SandwichBlock(
                config,
                block,
                Attention(config, block, i, inside if self.windows[i] else whole),
                FusedGatedMLP(block, config.dim, config.ffn_dim),
            )
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)

    def cache(self) -> list[CacheSpec]:
        return self.config.cache(self.windows)


MODEL = Plamo3

# --- checkpoint ---


def _period(config: Fields) -> int:
    """Return n, if every n-th layer has full attention; llama.cpp reads no other patterns."""
    n = config.integer("sliding_window_pattern", PERIOD, low=1)
    usual = [bool((i + 1) % n) for i in range(config.integer("num_hidden_layers"))]
    if (named := layers_of_type(config, "sliding_attention")) and named != usual:
        raise UnsupportedError(f"[convert] unsupported 'layer_types': expected full attention in every {n}th layer")
    return n


def _rope(config: Fields) -> Iterator[Entry]:
    local = rope_of(config, "sliding_attention")
    base = config.number("rope_local_theta", 10000.0)
    if config.inner("rope_parameters").has("sliding_attention"):
        if (kind := local.text("rope_type", "default")) != "default":
            raise UnsupportedError(f"[convert] unsupported rope scaling of windowed layers '{kind}': expected default")
        base = local.number("rope_theta", base)
    yield "rope.freq_base_swa", "f32", base
    yield from rope_keys(config, 1e6)


HF = {
    "Plamo3ForCausalLM": Checkpoint(
        "plamo3",
        {
            **DECODER_KEYS,
            "attention.sliding_window": window(2048, field="window_size"),
            "attention.sliding_window_pattern": computed("u32", _period),
        },
        {
            **FRAME,
            "blk.{i}.attn_q_norm": tensor(f"{LAYER}.mixer.q_norm", change=adding(1.0)),
            "blk.{i}.attn_k_norm": tensor(f"{LAYER}.mixer.k_norm", change=adding(1.0)),
        },
        fixed={"hidden_act": SILU},
        rope=_rope,
        unused=("interleaved_sliding_window", "sliding_window", "tokenizer_file"),
    )
}
