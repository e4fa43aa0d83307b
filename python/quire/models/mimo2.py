"""MiMo V2 (Xiaomi 2025): windows with sinks and twice as many k and v heads, smaller v heads, many experts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    EXPERT_TENSORS,
    SILU,
    Checkpoint,
    Fields,
    computed,
    f32,
    factor,
    flag,
    kinds_of_mlps,
    layers_of_type,
    only_with,
    tensor,
    u32,
)
from ..checkpoints.mapping.rope import Entry, kind_of
from ..errors import LoadError, UnsupportedError
from ..nn import CacheSpec, ExpertConfig, GatedMLP, Keys, MoE, RopeSpec, Step, Tensor, Weights, rope, rope_spec
from . import qwen2
from .base import MAX_HEADS, MAX_LAYERS, Block, Decoder, DenseConfig, Layer, layers_left_out

ARCHES = ("mimo2",)
READS = ("expert_weights_norm", "expert_weights_scale")
LOCAL_BASE, GLOBAL_BASE, PARTIAL = 10000.0, 5e6, 0.334


class Attention:
    """Attention with this layer's ``n_kv_head``, and with sinks if the file has them."""

    def __init__(
        self,
        config: DenseConfig,
        weights: Weights,
        layer: int,
        rotation: RopeSpec,
        *,
        n_kv_head: int,
        value_scale: float,
    ) -> None:
        self.layer, self.n_head, self.n_kv_head = layer, config.n_head, n_kv_head
        self.scale, self.value_scale, self.rotation = config.head_dim**-0.5, value_scale, rotation
        sizes = [config.n_head * config.head_dim, n_kv_head * config.head_dim, n_kv_head * config.v_head_dim]
        if weights.has("attn_qkv.weight"):
            self.q, self.k, self.v = weights.linears("attn_qkv", config.dim, sizes, bias=None)
        else:
            names = ("attn_q", "attn_k", "attn_v")
            self.q, self.k, self.v = (
                weights.linear(name, config.dim, n, bias=None) for name, n in zip(names, sizes, strict=True)
            )
        self.o = weights.linear("attn_output", config.n_head * config.v_head_dim, config.dim)
        sinks = "attn_sinks.weight"
        self.sinks = weights.tensor(sinks, (config.n_head,), vector=True) if weights.has(sinks) else None

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q = rope(self.q(x).heads(self.n_head), step.positions, self.rotation)
        k = rope(self.k(x).heads(self.n_kv_head), step.positions, self.rotation)
        v = self.v(x).heads(self.n_kv_head)
        y = self.o(step.attend(self.layer, q, k, v, scale=self.scale, sinks=self.sinks))
        return y * self.value_scale if self.value_scale != 1.0 else y


class Mimo2(Decoder):
    """A layer has experts if the file has its router."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        n_layer = keys.integer("block_count", low=1, high=MAX_LAYERS)
        self.n_kv_heads = keys.integers("attention.head_count_kv", n_layer, low=1, high=MAX_HEADS)
        config = DenseConfig.read(keys, n_vocab, n_kv_head=max(self.n_kv_heads))
        if any(config.n_head % n for n in self.n_kv_heads):
            raise LoadError(
                f"[mimo2] head_count {config.n_head} is not divisible by all of head_count_kv {self.n_kv_heads}"
            )
        n_next = layers_left_out(keys, weights, n_layer, n_used=1)
        config = replace(config, n_layer=n_layer - n_next)
        experts = ExpertConfig.read(keys, config.n_layer, gating="sigmoid", grouped=True, reads=READS)
        window = keys.integer("attention.sliding_window", low=1)
        local = keys.integers("attention.sliding_window_pattern", n_layer, high=1)
        self.windows = [window if local[i] else 0 for i in range(config.n_layer)]
        local_base = keys.number("rope.freq_base_swa", LOCAL_BASE)
        value_scale = keys.number("attention.value_scale", 1.0)
        if local_base <= 0:
            raise LoadError(f"[mimo2] rope.freq_base_swa {local_base} is out of range: expected more than 0")
        keys.only("rope.dimension_count_swa", config.n_rot)
        everywhere = rope_spec(keys, n_dims=config.n_rot, layout="half")
        nearby = rope_spec(keys, n_dims=config.n_rot, layout="half", freq_base=local_base)

        def make_block(i: int, block: Weights, layer: int) -> Block:
            routes = block.has("ffn_gate_inp.weight")
            mlp: Layer = (
                MoE(block, config.dim, experts.ffn_dim, experts.n, experts.spec())
                if routes
                else GatedMLP(block, config.dim, config.ffn_dim)
            )
            rotation = nearby if local[i] else everywhere
            scale = value_scale or 1.0  # 0: not set
            return Block(
                config,
                block,
                Attention(config, block, layer, rotation, n_kv_head=self.n_kv_heads[i], value_scale=scale),
                mlp,
            )

        blocks = [make_block(i, block, i) for i, block in enumerate(weights.blocks(config.n_layer))]
        super().__init__(config, weights, blocks)
        if n_next:
            kept = rows_of(config, self.n_kv_heads[config.n_layer], window if local[config.n_layer] else 0)
            self.add_predictor(weights, lambda block: make_block(config.n_layer, block, 0), kept, is_normed=False)

    def cache(self) -> list[CacheSpec]:
        config = self.config
        return [rows_of(config, n, window) for n, window in zip(self.n_kv_heads, self.windows, strict=False)]


def rows_of(config: DenseConfig, n_kv_head: int, window: int) -> CacheSpec:
    return CacheSpec(n_kv_head=n_kv_head, head_dim=config.head_dim, v_head_dim=config.v_head_dim, window=window)


MODEL = Mimo2

# --- checkpoint ---


def _locals(config: Fields) -> list[bool]:
    n_layer = config.integer("num_hidden_layers")
    return layers_of_type(config, "sliding_attention") or [i > 0 and (i + 1) % 6 != 0 for i in range(n_layer)]


def _kv_heads(config: Fields) -> list[int]:
    n = config.integer("num_key_value_heads", 4, low=1)
    return [2 * n if local else n for local in _locals(config)]


def _window(config: Fields) -> int:
    """Return the window; ``sliding_window`` counts the token itself, ``sliding_window_size`` does not."""
    own = config.integer("sliding_window", 129, low=1)
    return config.integer("sliding_window_size") + 1 if config.has("sliding_window_size") else own


def _value_scale(config: Fields) -> float:
    if (
        scale := 1.0 if config.is_null("attention_value_scale") else config.number("attention_value_scale", 0.707)
    ) == 0:
        raise UnsupportedError("[convert] unsupported 'attention_value_scale': 0")
    return scale


def _mlps(config: Fields) -> None:
    """Check the kinds of MLPs; the checkpoint's tensors show which layers are dense."""
    kinds_of_mlps(config)


def _rope(config: Fields) -> Iterator[Entry]:
    """Yield the RoPE keys; all layers rotate the same part of a head."""
    parts, kinds = set(), config.inner("rope_parameters")
    for layers, key, base in (
        ("full_attention", "rope.freq_base", GLOBAL_BASE),
        ("sliding_attention", "rope.freq_base_swa", LOCAL_BASE),
    ):
        rope = kinds.inner(layers)
        if kind_of(rope) != "default":
            raise UnsupportedError(
                f"[convert] unsupported rope scaling of {layers}: '{kind_of(rope)}' (expected default)"
            )
        default = None if config.has("rope_parameters") else base
        parts.add(rope.number("partial_rotary_factor", PARTIAL))
        yield key, "f32", rope.number("rope_theta", default)
    if len(parts) != 1:
        raise UnsupportedError("[convert] unsupported 'partial_rotary_factor': it differs between layers")
    yield "rope.dimension_count", "u32", int(config.integer("head_dim", 192) * parts.pop())


_BIAS = only_with("attention_bias", default=False, biases=True)
_ATTENTION = "model.layers.{i}.self_attn"
HF = {
    # The first MiMo is Qwen2 with layers that predict later tokens.
    "MiMoForCausalLM": replace(qwen2.HF["Qwen2ForCausalLM"], ignored=("model.mtp_layers.*",)),
    "MiMoV2FlashForCausalLM": Checkpoint(
        "mimo2",
        {
            **DECODER_KEYS,
            "attention.head_count_kv": computed("u32[]", _kv_heads),
            "attention.key_length": u32("head_dim", default=192),
            "attention.value_length": u32("v_head_dim", default=128),
            "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-5),
            "attention.sliding_window": computed("u32", _window),
            "attention.sliding_window_pattern": computed("bool[]", _locals),
            "attention.value_scale": computed("f32", _value_scale),
            "expert_count": u32("n_routed_experts", "num_local_experts", default=256),
            "expert_used_count": u32("num_experts_per_tok", default=8),
            "expert_feed_forward_length": u32("moe_intermediate_size", default=2048),
            "expert_group_count": u32("n_group", default=1, low=1),
            "expert_group_used_count": u32("topk_group", default=1, low=1),
            "expert_gating_func": computed("u32", lambda config: 2),
            "expert_weights_norm": flag("norm_topk_prob", default=True),
            "expert_weights_scale": factor("routed_scaling_factor", default=1.0),
        },
        {
            **DECODER_TENSORS,
            **EXPERT_TENSORS,
            **{f"blk.{{i}}.attn_{x}": tensor(f"{_ATTENTION}.{x}_proj", change=_BIAS) for x in "qkv"},
            "blk.{i}.attn_sinks.weight": f"{_ATTENTION}.attention_sink_bias",
            "blk.{i}.exp_probs_b.bias": "model.layers.{i}.mlp.gate.e_score_correction_bias",
        },
        fixed={"hidden_act": SILU},
        checks=(_mlps,),
        rope=_rope,
        ignored=("model.mtp.*",),
        unused=("attention_bias", "attention_chunk_size"),
    ),
}
