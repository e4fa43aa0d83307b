"""Phi-3.5-MoE (Abdin et al. 2024): layer norms, biases everywhere, two experts by SparseMixer, LongRoPE."""

from __future__ import annotations

from collections.abc import Iterator

from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    SILU,
    Checkpoint,
    Fields,
    computed,
    f32,
    rope_keys,
    tensor,
    u32,
    window,
)
from ..checkpoints.mapping.rope import LONGROPE, Entry, kind_of, longrope_keys, rope_of
from ..errors import UnsupportedError
from ..nn import CacheSpec, ExpertConfig, Keys, LongRope, MoE, MoeSpec, Step, Tensor, Weights, rope
from . import classic
from .base import DenseConfig
from .classic import Block, LayerNormDecoder, unless_unbiased

ARCHES = ("phimoe",)


class Attention(classic.Attention):
    def __init__(self, config: DenseConfig, weights: Weights, layer: int, rotation: LongRope) -> None:
        super().__init__(config, weights, layer)
        self.long_rope = rotation

    def placed(self, x: Tensor, step: Step) -> Tensor:
        return rope(x, step.positions, self.long_rope.of(step.n_ctx))


class PhiMoe(LayerNormDecoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        self.window = keys.integer("attention.sliding_window", 0)
        experts = ExpertConfig.read(keys, config.n_layer, normalize=False, ffn_dim=config.ffn_dim)
        rotation = LongRope(keys, weights, config.n_rot)
        spec = MoeSpec(n_used=experts.n_used, gating="sparse_mixer", normalize=False)
        blocks = [
            Block(
                config,
                block,
                Attention(config, block, i, rotation),
                MoE(block, config.dim, experts.ffn_dim, experts.n, spec),
            )
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)

    def cache(self) -> list[CacheSpec]:
        return self.config.cache([self.window] * self.config.n_layer)


MODEL = PhiMoe

# --- checkpoint ---

THETA = 1e6
N_USED = 2  # experts per token; transformers ignores other values


def _rope(config: Fields) -> Iterator[Entry]:
    """Yield the RoPE keys; files have a single factor of queries and keys for short and long contexts."""
    rope = rope_of(config)
    if (kind := kind_of(rope)) == "default":
        yield from rope_keys(config, THETA)
        return
    if kind not in LONGROPE:
        raise UnsupportedError(f"[convert] unsupported rope scaling '{kind}': expected default or longrope")
    short, long = (rope.number(f"{one}_mscale") for one in ("short", "long"))
    if short != long:
        raise UnsupportedError(
            f"[convert] 'short_mscale' {short} and 'long_mscale' {long} differ, which is unsupported"
        )
    n_ctx_orig = rope.integer("original_max_position_embeddings", low=1)
    for key, type_, value in longrope_keys(config, n_ctx_orig, THETA):
        yield key, type_, short if key == "rope.scaling.attn_factor" else value


_LAYER = "model.layers.{i}"
_MOE = f"{_LAYER}.block_sparse_moe"
_CHECKPOINT = Checkpoint(
    "phimoe",
    {
        **DECODER_KEYS,
        "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-5),
        "attention.sliding_window": window(None, none=0),
        "expert_count": u32("num_local_experts", default=16),
        "expert_used_count": computed("u32", lambda config: N_USED),
    },
    {
        **DECODER_TENSORS,
        "output": tensor("lm_head", change=unless_unbiased("lm_head_bias", default=False)),
        **{
            f"blk.{{i}}.attn_{ours}": tensor(
                f"{_LAYER}.self_attn.{theirs}_proj", change=unless_unbiased("attention_bias", default=False)
            )
            for ours, theirs in (("q", "q"), ("k", "k"), ("v", "v"), ("output", "o"))
        },
        "blk.{i}.ffn_gate_inp": f"{_MOE}.gate",
        "blk.{i}.ffn_gate_exps": f"{_MOE}.experts.{{e}}.w1",
        "blk.{i}.ffn_up_exps": f"{_MOE}.experts.{{e}}.w3",
        "blk.{i}.ffn_down_exps": f"{_MOE}.experts.{{e}}.w2",
    },
    fixed={"hidden_act": SILU, "router_jitter_noise": (0.01,), "num_experts_per_tok": (N_USED,)},
    rope=_rope,
    unused=("attention_bias", "lm_head_bias", "input_jitter_noise", "original_max_position_embeddings"),
)
# Published checkpoints name the first.
HF = {"PhiMoEForCausalLM": _CHECKPOINT, "PhimoeForCausalLM": _CHECKPOINT}
