"""Step 3.5 and 3.7 Flash, text (StepFun 2026): gated heads, more heads in windowed layers, clamped activations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from .._native import graph
from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    SILU,
    Array,
    Checkpoint,
    Fields,
    adding,
    computed,
    f32,
    factor,
    has_windows,
    n_dense,
    tensor,
    u32,
)
from ..checkpoints.mapping.pictures import with_pictures
from ..checkpoints.mapping.rope import Entry, kind_of, llama3_factors, rope_of
from ..errors import LoadError, UnsupportedError
from ..nn import (
    ROUTING,
    CacheSpec,
    ExpertConfig,
    Keys,
    MoE,
    MoeSpec,
    RopeSpec,
    Step,
    Tensor,
    Together,
    Weights,
    rope_spec,
)
from . import qwen3
from .base import MAX_DIM, MAX_HEADS, MAX_LAYERS, Block, Decoder, DenseConfig, Layer, layers_left_out
from .base import local_layers as locals_of

ARCHES = ("step35",)
THETA, LEAST = 10000.0, 1e-6  # limits of at most LEAST mean none


class LimitedMLP:
    """``down(min(silu(gate(x)), limit) * clamp(up(x), -limit, limit))``; ``ending``: suffix of the tensors' names."""

    def __init__(self, weights: Weights, dim: int, ffn_dim: int, limit: float, ending: str) -> None:
        self.gate, self.up = (weights.linear(f"ffn_{one}{ending}", dim, ffn_dim) for one in ("gate", "up"))
        self.down, self.limit = weights.linear(f"ffn_down{ending}", ffn_dim, dim), limit

    def __call__(self, x: Tensor) -> Tensor:
        if self.limit == math.inf:
            return self.down(graph.glu(self.gate(x), self.up(x), "silu"))
        gate = graph.clamp(graph.activate(self.gate(x), "silu"), -1.0, self.limit)  # silu is never below -0.3
        return self.down(gate * graph.clamp(self.up(x), -self.limit, self.limit))


class Attention(qwen3.Attention):
    """Multiplies each head's output by the sigmoid of a projection of the input."""

    def __init__(self, config: DenseConfig, weights: Weights, layer: int, rotation: RopeSpec) -> None:
        super().__init__(config, weights, layer, rotation)
        self.gate = weights.linear("attn_gate", config.dim, config.n_head)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        gate = graph.sigmoid(self.gate(x)).heads(self.n_head)
        return self.o(graph.multiply_broadcast(self.attended(x, step).heads(self.n_head), gate).merge_heads())


class Step35(Decoder):
    """Full-attention layers apply RoPE to half of each head, windowed layers to all of it."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        n_all = keys.integer("block_count", low=1, high=MAX_LAYERS)
        n_heads = keys.integers("attention.head_count", n_all, low=1, high=MAX_HEADS)
        config = DenseConfig.read(keys, n_vocab, n_head=max(n_heads))
        config = replace(config, n_layer=n_all - layers_left_out(keys, weights, n_all))
        if config.n_rot % 4 or config.head_dim != config.v_head_dim:
            raise LoadError(
                f"[step35] rope.dimension_count {config.n_rot} is not divisible by 4, or key_length {config.head_dim} "
                f"differs from value_length {config.v_head_dim}"
            )
        experts = ExpertConfig.read(keys, config.n_layer, gating="sigmoid", normalize=False, reads=ROUTING)
        shared_dim = keys.integer("expert_shared_feed_forward_length", low=1, high=MAX_DIM)
        n_dense_layers = keys.integer("leading_dense_block_count", 0)
        keys.only("moe_every_n_layers", 1)
        limits, shared_limits = (_limits(keys, f"swiglu_clamp_{one}", n_all) for one in ("exp", "shexp"))
        window = keys.integer("attention.sliding_window", low=1)
        local = locals_of(keys, config.n_layer, 1)
        self.windows = [window if one else 0 for one in local]
        if (base := keys.number("rope.freq_base_swa", keys.number("rope.freq_base", THETA))) <= 0:
            raise LoadError(f"[step35] rope.freq_base_swa {base} is out of range: expected more than 0")
        nearby = RopeSpec(n_dims=config.n_rot, layout="half", freq_base=base)
        factors = None
        if weights.has("rope_freqs.weight"):  # stored for whole heads; only the first half applies
            factors = weights.computed(
                "rope_freqs", weights.numbers("rope_freqs.weight", (config.n_rot // 2,))[: config.n_rot // 4]
            )
        rotations = [rope_spec(keys, n_dims=config.n_rot // 2, layout="half", factors=factors), nearby]

        def mlp(i: int, block: Weights) -> Layer:
            if i < n_dense_layers:
                return LimitedMLP(block, config.dim, config.ffn_dim, shared_limits[i], "")
            spec = experts.spec() if limits[i] == math.inf else _limited(experts, limits[i])
            shared = LimitedMLP(block, config.dim, shared_dim, shared_limits[i], "_shexp")
            return Together(MoE(block, config.dim, experts.ffn_dim, experts.n, spec), shared)

        def make_block(i: int, block: Weights) -> Block:
            own = replace(config, n_head=n_heads[i])
            own.check()
            return Block(config, block, Attention(own, block, i, rotations[local[i]]), mlp(i, block))

        blocks = [make_block(i, block) for i, block in enumerate(weights.blocks(config.n_layer))]
        super().__init__(config, weights, blocks)

    def cache(self) -> list[CacheSpec]:
        return self.config.cache(self.windows)


def _limits(keys: Keys, name: str, n_layer: int) -> list[float]:
    limits = keys.numbers(name, n_layer) if keys.has(name) else [0.0] * n_layer
    return [limit if limit > LEAST else math.inf for limit in limits]


def _limited(experts: ExpertConfig, limit: float) -> MoeSpec:
    return experts.spec(unit="clipped", limit=limit)


MODEL = Step35

# --- checkpoint ---


def _n_next(config: Fields) -> int:
    return config.integer("num_nextn_predict_layers", 0)


def _by_layer(config: Fields, name: str) -> list[object]:
    """Return a field's list without the layers that predict later tokens; empty if there is none."""
    n_layer, values = config.integer("num_hidden_layers"), config.items(name)
    if len(values) not in (0, n_layer, n_layer + _n_next(config)):
        raise UnsupportedError(
            f"[convert] '{name}' has {len(values)} entries: expected one for each of {n_layer} layers"
        )
    return values[:n_layer]


def _is_local(config: Fields) -> list[bool]:
    kinds = _by_layer(config, "layer_types") or ["full_attention"] * config.integer("num_hidden_layers")
    if not set(map(str, kinds)) <= {"full_attention", "sliding_attention"}:
        raise UnsupportedError(
            "[convert] invalid 'layer_types': expected sliding_attention or full_attention for each layer"
        )
    return [kind == "sliding_attention" for kind in kinds]


def _n_heads(config: Fields) -> list[int]:
    """Return each layer's number of heads; windowed layers may have more, in old configurations by a nested object."""
    n, other = config.integer("num_attention_heads", 64, low=1), config.inner("attention_other_setting")
    n_local = config.integer("num_sliding_attention_heads", other.integer("num_attention_heads", n, low=1), low=1)
    for name, wanted in (("num_attention_groups", _n_kv_head(config)), ("head_dim", config.integer("head_dim", 128))):
        if (found := other.integer(name, wanted)) != wanted:
            raise UnsupportedError(f"[convert] unsupported '{name}' of windowed layers: {found} (expected {wanted})")
    other.read(("attention_type", "true_head_dim"))
    heads = [n_local if local else n for local in _is_local(config)]
    layers = config.inner("per_layer_config")
    for i in layers.names():
        own = layers.inner(i)
        if not i.isdigit() or int(i) >= len(heads) or own.integer("num_attention_heads") != heads[int(i)]:
            raise UnsupportedError(f"[convert] 'per_layer_config' contradicts 'layer_types' for layer {i}")
    return heads


def _n_kv_head(config: Fields) -> int:
    name = "num_attention_groups" if config.has("num_attention_groups") else "num_key_value_heads"
    return config.integer(name, 8, low=1)


def _window(config: Fields) -> int:
    has_windows(config)
    return config.integer("sliding_window", low=1) if any(_is_local(config)) else 1


def _n_dense(config: Fields) -> int:
    """Return how many layers are dense: those before the first listed one, or three without a list."""
    listed, n_layer = config.value("moe_layers_enum"), config.integer("num_hidden_layers")
    parts = listed.split(",") if isinstance(listed, str) else listed if isinstance(listed, list) else []
    routed = sorted(int(str(part)) for part in parts if str(part).strip().isdigit())
    first = routed[0] if routed else n_layer if listed is not None else 3
    if routed and [i for i in routed if i < n_layer] != list(range(first, n_layer)):
        raise UnsupportedError(
            "[convert] unsupported 'moe_layers_enum': expected all layers from the first listed one on"
        )
    return n_dense(config, min(first, n_layer))


def _clamps(name: str) -> Callable[[Fields], list[float] | None]:
    def read(config: Fields) -> list[float] | None:
        limits = [limit if isinstance(limit, (int, float)) else 0.0 for limit in _by_layer(config, name)]
        if any(isinstance(limit, bool) or limit < 0 for limit in limits):
            raise UnsupportedError(f"[convert] invalid '{name}': expected numbers of at least 0, or null")
        return [float(limit) if limit > LEAST else 0.0 for limit in limits] or None

    return read


def _parts(config: Fields) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the RoPE base and the rotated part of a head, for full-attention and for windowed layers."""
    local, kinds = _is_local(config), config.inner("rope_parameters")
    out = []
    for name, is_local in (("full_attention", False), ("sliding_attention", True)):
        of_kind = [i for i, one in enumerate(local) if one == is_local]
        if config.has("rope_parameters"):
            if of_kind and not kinds.has(name):
                raise UnsupportedError(f"[convert] 'rope_parameters' has no entry for {name}")
            rope = kinds.inner(name)
            out.append((rope.number("rope_theta", THETA), rope.number("partial_rotary_factor", 1.0)))
            continue
        bases = _by_layer(config, "rope_theta") if isinstance(config.value("rope_theta"), list) else []
        base = (
            float(str(bases[of_kind[0]])) if bases and of_kind else 0.0 if bases else config.number("rope_theta", THETA)
        )
        parts = _by_layer(config, "partial_rotary_factors")
        if any(x[i] != x[of_kind[0]] for x in (bases, parts) if x for i in of_kind):
            raise UnsupportedError(
                "[convert] unsupported 'rope_theta' or 'partial_rotary_factors': layers of one kind differ"
            )
        out.append((base or THETA, float(str(parts[of_kind[0]])) if parts and of_kind else 1.0))
    for (_, part), wanted, is_local in zip(out, (0.5, 1.0), (False, True), strict=True):
        if part != wanted and is_local in local:
            kind = "sliding_attention" if is_local else "full_attention"
            raise UnsupportedError(
                f"[convert] unsupported 'partial_rotary_factor' of {kind}: {part} (expected {wanted})"
            )
    return out[0], out[1]


def _rope(config: Fields) -> Iterator[Entry]:
    (base, _), (nearby, _) = _parts(config)
    if config.has("rope_parameters") and (kind := kind_of(rope_of(config, "sliding_attention"))) != "default":
        raise UnsupportedError(f"[convert] unsupported rope scaling of sliding_attention: '{kind}' (expected default)")
    if (kind := kind_of(rope_of(config))) not in ("default", "llama3"):
        raise UnsupportedError(f"[convert] unsupported rope scaling '{kind}': expected default or llama3")
    yield "rope.freq_base", "f32", base
    yield "rope.freq_base_swa", "f32", nearby
    scaling = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    rope_of(config).read(scaling if kind == "llama3" else scaling[3:])


class _Checkpoint(Checkpoint):
    """Llama 3's scaling applies to half of a head; files store factors for the whole head."""

    def _factors(self, config: Fields, entries: Iterable[Entry]) -> Iterator[tuple[str, Array]]:
        import numpy as np

        values = {key: value for key, _, value in entries}
        n_rot, base = values["rope.dimension_count"], values["rope.freq_base"]
        assert isinstance(n_rot, int)
        assert isinstance(base, float)
        if (factors := llama3_factors(rope_of(config), base, n_rot // 2)) is not None:
            yield "rope_freqs.weight", np.concatenate([factors, np.ones(n_rot // 2 - len(factors), np.float32)])


def _scale_of_scores(config: Fields) -> None:
    size = config.integer("head_dim", 128)
    if (found := config.number("query_pre_attn_scalar", size)) != size:
        raise UnsupportedError(f"[convert] unsupported 'query_pre_attn_scalar': {found} (expected {size})")


def _pattern(config: Fields) -> Sequence[bool]:
    return _is_local(config)


_LAYER = "model.layers.{i}"
_NORM = adding(1.0)
_TEXT = _Checkpoint(
    "step35",
    {
        **DECODER_KEYS,
        "feed_forward_length": u32("intermediate_size", default=11264),
        "attention.head_count": computed("u32[]", _n_heads),
        "attention.head_count_kv": computed("u32", _n_kv_head),
        "attention.key_length": u32("head_dim", default=128),
        "attention.value_length": u32("head_dim", default=128),
        "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-5),
        "attention.sliding_window": computed("u32", _window),
        "attention.sliding_window_pattern": computed("bool[]", _pattern),
        "rope.dimension_count": u32("head_dim", default=128),
        "expert_count": u32("n_routed_experts", "moe_num_experts", default=288),
        "expert_used_count": u32("num_experts_per_tok", "moe_top_k", default=8),
        "expert_feed_forward_length": u32("moe_intermediate_size", default=1280),
        "expert_shared_feed_forward_length": u32("share_expert_dim", "share_expert_dims", default=1280),
        "expert_gating_func": computed("u32", lambda config: 2),
        "expert_weights_norm": computed("bool", lambda config: True),
        "expert_weights_scale": factor("moe_router_scaling_factor", default=1.0),
        "leading_dense_block_count": computed("u32", _n_dense),
        "swiglu_clamp_exp": computed("f32[]", _clamps("swiglu_limits")),
        "swiglu_clamp_shexp": computed("f32[]", _clamps("swiglu_limits_shared")),
    },
    {
        **DECODER_TENSORS,
        "output_norm": tensor("model.norm", change=_NORM),
        "blk.{i}.attn_norm": tensor(f"{_LAYER}.input_layernorm", change=_NORM),
        "blk.{i}.ffn_norm": tensor(f"{_LAYER}.post_attention_layernorm", change=_NORM),
        **{ours: tensor(theirs, change=_NORM) for ours, theirs in qwen3.QK_NORMS.items()},
        "blk.{i}.attn_gate": f"{_LAYER}.self_attn.g_proj",
        "blk.{i}.ffn_gate_inp": f"{_LAYER}.moe.gate",
        "blk.{i}.exp_probs_b.bias": f"{_LAYER}.moe.router_bias",
        **{f"blk.{{i}}.ffn_{x}_exps": f"{_LAYER}.moe.{x}_proj" for x in ("gate", "up", "down")},
        **{f"blk.{{i}}.ffn_{x}_shexp": f"{_LAYER}.share_expert.{x}_proj" for x in ("gate", "up", "down")},
    },
    fixed={
        "hidden_act": SILU,
        "gating": (True, "per-head"),
        "use_head_wise_attn_gate": (True,),
        "use_bidirectional_attention": (False,),
        "use_moe_router_bias": (True,),
        "moe_router_activation": ("sigmoid",),
        "norm_expert_weight": (True,),
        "moe_every_n_layer": (1,),
        "moe_layer_offset": (0,),
        "mlp_bias": (False,),
        "zero_centered": (True,),
        "sink": (False,),
        "use_mfa": (False,),
    },
    checks=(_scale_of_scores,),
    rope=_rope,
    unused=(
        "attention_bias", "mtp_layer_types", "mtp_mlp_layer_types", "max_seq_len", "yarn_only_types", "need_fp32_gate",
        "use_moe", "att_impl_type", "use_rope_layers",
    ),
    # The vision tower, and layers that predict later tokens.
    ignored=("vit_large_projector.*", *(f"model.layers.{i}.*" for i in (45, 46, 47))),
)  # fmt: skip
HF = {
    "Step3p5ForCausalLM": _TEXT,
    "Step3p7ForConditionalGeneration": with_pictures(_TEXT),
}
