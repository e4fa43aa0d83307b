"""SmallThinker (SJTU 2025): ReLU experts chosen from the layer's input, before attention."""

from __future__ import annotations

from collections.abc import Iterator

from .._native import graph
from ..checkpoints.mapping import DECODER_KEYS, DECODER_TENSORS, Checkpoint, Fields, computed, rope_keys, u32
from ..checkpoints.mapping.rope import Entry
from ..errors import UnsupportedError
from ..nn import CacheSpec, ExpertConfig, Keys, MoE, Step, Tensor, Weights, rope_spec
from .base import Decoder, DenseConfig, local_layers
from .classic import Attention

ARCHES = ("smallthinker",)
PERIOD = 4  # every fourth layer, beginning with the first, has full attention without RoPE


class EarlyMoE(MoE):
    """Experts that are chosen from other rows (``routed``) than those they read."""

    def of(self, x: Tensor, routed: Tensor) -> Tensor:
        return graph.moe(x, self.router(routed), self.gate, self.up, self.down, self.spec)


class Block:
    def __init__(self, config: DenseConfig, weights: Weights, attention: Attention, experts: EarlyMoE) -> None:
        self.attn_norm, self.attention = weights.norm("attn_norm", config.dim, config.eps), attention
        self.ffn_norm, self.experts = weights.norm("ffn_norm", config.dim, config.eps), experts

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        y = x + self.attention(self.attn_norm(x), step)
        return y + self.experts.of(self.ffn_norm(y), x)


class SmallThinker(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        experts = ExpertConfig.read(keys, config.n_layer, ffn_dim=config.ffn_dim, reads=("expert_gating_func",))
        window = keys.integer("attention.sliding_window", 0)
        local = [window > 0 and one for one in local_layers(keys, config.n_layer, PERIOD, last=False)]
        self.windows = [window if one else 0 for one in local]
        keys.only("rope.freq_base_swa", keys.number("rope.freq_base", 10000.0))
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half")

        def make_block(i: int, block: Weights) -> Block:
            attention = Attention(config, block, i, rotation if local[i] or window == 0 else None)
            return Block(
                config, block, attention, EarlyMoE(block, config.dim, experts.ffn_dim, experts.n, experts.spec("relu"))
            )

        blocks = [make_block(i, block) for i, block in enumerate(weights.blocks(config.n_layer))]
        super().__init__(config, weights, blocks)

    def cache(self) -> list[CacheSpec]:
        return self.config.cache(self.windows)


MODEL = SmallThinker

# --- checkpoint ---


def _layout(config: Fields, name: str) -> list[object]:
    n_layer = config.integer("num_hidden_layers")
    layout = config.items(name) or [1 if name == "rope_layout" else 0] * n_layer
    if len(layout) != n_layer or not set(map(str, layout)) <= {"0", "1"}:
        raise UnsupportedError(f"[convert] invalid '{name}': expected 0 or 1 for each layer")
    return layout


def _window(config: Fields) -> int | None:
    """Return the window; files have no key for the layers with RoPE, which must be those with windows."""
    local, rotated = (_layout(config, f"{name}_layout") for name in ("sliding_window", "rope"))
    if any(local) and local != rotated:
        raise UnsupportedError("[convert] unsupported 'rope_layout': it differs from 'sliding_window_layout'")
    if not any(local):
        if not all(rotated):
            raise UnsupportedError("[convert] unsupported 'rope_layout': without windows, expected 1 for each layer")
        config.read(("sliding_window_size",))
        return None
    return config.integer("sliding_window_size", low=1)


def _pattern(config: Fields) -> list[bool] | None:
    local = [one == 1 for one in _layout(config, "sliding_window_layout")]
    usual = [i % PERIOD != 0 for i in range(len(local))]
    return local if any(local) and local != usual else None


def _gating(config: Fields) -> int:
    return 1 if config.flag("moe_primary_router_apply_softmax", False) else 2


def _rope(config: Fields) -> Iterator[Entry]:
    if not any(_layout(config, "rope_layout")):
        raise UnsupportedError("[convert] unsupported 'rope_layout': no layer has RoPE")
    if not config.has("rope_parameters"):
        config.number("rope_theta")  # required: there is no usual value
    return rope_keys(config)


_LAYER = "model.layers.{i}"
_MOE = f"{_LAYER}.block_sparse_moe"
HF = {
    "SmallThinkerForCausalLM": Checkpoint(
        "smallthinker",
        {
            **DECODER_KEYS,
            "feed_forward_length": u32("moe_ffn_hidden_size"),
            "attention.sliding_window": computed("u32", _window),
            "attention.sliding_window_pattern": computed("bool[]", _pattern),
            "expert_count": u32("moe_num_primary_experts"),
            "expert_used_count": u32("moe_num_active_primary_experts"),
            "expert_feed_forward_length": u32("moe_ffn_hidden_size"),
            "expert_gating_func": computed("u32", _gating),
        },
        {
            **DECODER_TENSORS,
            "blk.{i}.ffn_gate_inp": f"{_MOE}.primary_router",
            **{f"blk.{{i}}.ffn_{x}_exps": f"{_MOE}.experts.{{e}}.{x}" for x in ("gate", "up", "down")},
        },
        fixed={
            "moe_enable_early_router": (True,),
            "moe_enable_secondary_experts": (False,),
            "moe_secondary_expert_size": (0, None),
            "moe_num_secondary_experts": (0, None),
            "norm_topk_prob": (True,),
        },
        rope=_rope,
        unused=("moe_layer_layout",),
    )
}
