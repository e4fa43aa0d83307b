"""OLMo 2 and 3 (OLMo team 2024, 2025): post-norms, norms of whole q and k rows; OLMo 3 has windows."""

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
    has_windows,
    local_layers,
    no_windows,
    rope_keys,
)
from ..checkpoints.mapping.rope import Entry, has_new_name, kind_of, rope_of
from ..errors import UnsupportedError
from ..nn import CacheSpec, GatedMLP, Keys, RopeSpec, Step, Tensor, Weights, rope, rope_spec
from .base import Decoder, DenseConfig, PostNormBlock
from .base import local_layers as locals_of

ARCHES = ("olmo2",)
PERIOD = 4  # every fourth layer has full attention


class Attention:
    def __init__(self, config: DenseConfig, weights: Weights, layer: int, rotation: RopeSpec) -> None:
        self.layer, self.n_head, self.n_kv_head = layer, config.n_head, config.n_kv_head
        self.scale, self.rotation = config.head_dim**-0.5, rotation
        self.q = weights.linear("attn_q", config.dim, config.n_head * config.head_dim, bias=None)
        self.k = weights.linear("attn_k", config.dim, config.n_kv_head * config.head_dim, bias=None)
        self.v = weights.linear("attn_v", config.dim, config.n_kv_head * config.v_head_dim, bias=None)
        self.o = weights.linear("attn_output", config.n_head * config.v_head_dim, config.dim, bias=None)
        self.q_norm = weights.norm("attn_q_norm", config.n_head * config.head_dim, config.eps)
        self.k_norm = weights.norm("attn_k_norm", config.n_kv_head * config.head_dim, config.eps)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q = rope(self.q_norm(self.q(x)).heads(self.n_head), step.positions, self.rotation)
        k = rope(self.k_norm(self.k(x)).heads(self.n_kv_head), step.positions, self.rotation)
        v = self.v(x).heads(self.n_kv_head)
        return self.o(step.attend(self.layer, q, k, v, scale=self.scale))


class Olmo2(Decoder):
    """RoPE scaling applies to the full-attention layers only."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        window = keys.integer("attention.sliding_window", 0)
        is_local = [window > 0 and local for local in locals_of(keys, config.n_layer, PERIOD)]
        self.windows = [window if local else 0 for local in is_local]
        everywhere = rope_spec(keys, n_dims=config.n_rot, layout="half")
        base = keys.number("rope.freq_base_swa", keys.number("rope.freq_base", 10000.0))
        nearby = RopeSpec(n_dims=config.n_rot, layout="half", freq_base=base)
        blocks = [
            PostNormBlock(
                config,
                block,
                Attention(config, block, i, nearby if is_local[i] else everywhere),
                GatedMLP(block, config.dim, config.ffn_dim),
            )
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)

    def cache(self) -> list[CacheSpec]:
        return self.config.cache(self.windows)


MODEL = Olmo2

# --- checkpoint ---


def _window(config: Fields) -> int:
    has_windows(config)
    return config.integer("sliding_window", 4096, low=1)


def _rope(config: Fields) -> Iterator[Entry]:
    """Yield OLMo 3's RoPE keys: parameters for each kind of layer, or a scaling for full-attention layers only."""
    if config.has("rope_parameters"):
        kinds = config.inner("rope_parameters")
        if config.has("rope_scaling") or not (kinds.has("full_attention") and kinds.has("sliding_attention")):
            raise UnsupportedError("[convert] unsupported 'rope_parameters': expected one entry for each kind of layer")
        local, base = rope_of(config, "sliding_attention"), config.number("rope_theta", 500000.0)
        if kind_of(local) != "default":
            raise UnsupportedError(
                f"[convert] unsupported rope scaling of sliding_attention: '{kind_of(local)}' (expected default)"
            )
        if local.number("rope_theta", base) != rope_of(config).number("rope_theta", base):
            raise UnsupportedError("[convert] unsupported 'rope_theta': it differs between layers")
    else:
        has_new_name(config)
    for entry in rope_keys(config, 500000.0):
        if kind_of(rope_of(config)) == "llama3":
            raise UnsupportedError("[convert] unsupported rope scaling 'llama3': expected default, linear or yarn")
        yield entry


def _no_llama3(config: Fields) -> Iterator[Entry]:
    if kind_of(rope_of(config)) == "llama3":
        raise UnsupportedError("[convert] unsupported rope scaling 'llama3': expected default, linear or yarn")
    return rope_keys(config)


_KEYS = {**DECODER_KEYS, "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-5)}
_LAYER = "model.layers.{i}"
_TENSORS = {
    **{ours: theirs for ours, theirs in DECODER_TENSORS.items() if not ours.endswith(("attn_norm", "ffn_norm"))},
    "blk.{i}.post_attention_norm": f"{_LAYER}.post_attention_layernorm",
    "blk.{i}.post_ffw_norm": f"{_LAYER}.post_feedforward_layernorm",
    "blk.{i}.attn_q_norm": f"{_LAYER}.self_attn.q_norm",
    "blk.{i}.attn_k_norm": f"{_LAYER}.self_attn.k_norm",
}
HF = {
    "Olmo2ForCausalLM": Checkpoint(
        "olmo2",
        _KEYS,
        _TENSORS,
        fixed={"hidden_act": SILU},
        checks=(no_windows,),
        rope=_no_llama3,
        unused=("attention_bias",),
    ),
    "Olmo3ForCausalLM": Checkpoint(
        "olmo2",
        {
            **_KEYS,
            "attention.sliding_window": computed("u32", _window),
            "attention.sliding_window_pattern": computed("bool[]", lambda config: local_layers(config, PERIOD)),
        },
        _TENSORS,
        fixed={"hidden_act": SILU},
        rope=_rope,
        unused=("attention_bias",),
    ),
}
