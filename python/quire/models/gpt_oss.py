"""gpt-oss (OpenAI 2025): windows in every other layer, attention sinks, experts with biases and clamped activations."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping

from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    Array,
    Change,
    Checkpoint,
    Fields,
    Key,
    Source,
    computed,
    has_windows,
    rope_keys,
    tensor,
    u32,
)
from ..checkpoints.mapping.packed import MXFP4
from ..checkpoints.mapping.rope import Entry
from ..checkpoints.mapping.windows import window_pattern
from ..errors import LoadError, UnsupportedError
from ..nn import CacheSpec, ExpertConfig, Keys, MoE, MoeSpec, RopeSpec, Step, Tensor, Weights, rope, rope_spec
from ..nn.rotary import Scaling
from .base import Decoder, DenseConfig, local_layers

ARCHES = ("gpt-oss",)
PERIOD = 2  # every second layer has full attention


def base_of(keys: Keys) -> float:
    base = keys.number("rope.freq_base", 10000.0)
    if base <= 1:
        raise LoadError(f"[gpt-oss] rope.freq_base {base} is out of range: expected more than 1")
    return base


def yarn_factors(keys: Keys, config: DenseConfig, base: float, factor: float) -> Array:
    """Return the divisors of the frequencies: YaRN (Peng et al. 2023) with a ramp whose ends are not rounded."""
    import numpy as np

    context = keys.integer("rope.scaling.original_context_length", config.n_ctx_train, low=1)

    def dimension(n_turns: float) -> float:
        """Return the dimension that turns ``n_turns`` times within the context."""
        if n_turns <= 0:
            raise LoadError(f"[gpt-oss] rope.scaling.yarn_beta_* {n_turns} is out of range: expected more than 0")
        return config.n_rot * math.log(context / (n_turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(dimension(keys.number("rope.scaling.yarn_beta_fast", 32.0)), 0)
    high = min(dimension(keys.number("rope.scaling.yarn_beta_slow", 1.0)), config.n_rot - 1)
    ramp = np.clip((np.arange(config.n_rot // 2) - low) / (high - low if high != low else 1e-3), 0, 1)
    factors: Array = (1 / (ramp / factor + 1 - ramp)).astype(np.float32)
    return factors


def rotation(keys: Keys, weights: Weights, config: DenseConfig) -> RopeSpec:
    scaling = Scaling.read(keys)
    if scaling.kind != "yarn":
        return rope_spec(keys, n_dims=config.n_rot, layout="half")
    keys.only("rope.scaling.yarn_log_multiplier", 0.0)
    keys.only("rope.scaling.yarn_ext_factor", -1.0, 1.0)
    base = base_of(keys)
    return RopeSpec(
        n_dims=config.n_rot,
        layout="half",
        freq_base=base,
        attn_factor=scaling.attention * (1.0 + 0.1 * math.log(scaling.factor)),
        factors=weights.computed("rope_factors", yarn_factors(keys, config, base, scaling.factor)),
    )


class Attention:
    def __init__(self, config: DenseConfig, weights: Weights, layer: int, rotation: RopeSpec) -> None:
        self.layer, self.n_head, self.n_kv_head = layer, config.n_head, config.n_kv_head
        self.scale, self.rotation = config.head_dim**-0.5, rotation
        self.q = weights.linear("attn_q", config.dim, config.n_head * config.head_dim, bias=None)
        self.k = weights.linear("attn_k", config.dim, config.n_kv_head * config.head_dim, bias=None)
        self.v = weights.linear("attn_v", config.dim, config.n_kv_head * config.v_head_dim, bias=None)
        self.o = weights.linear("attn_output", config.n_head * config.v_head_dim, config.dim, bias=None)
        self.sinks = weights.tensor("attn_sinks.weight", (config.n_head,), vector=True)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q = rope(self.q(x).heads(self.n_head), step.positions, self.rotation)
        k = rope(self.k(x).heads(self.n_kv_head), step.positions, self.rotation)
        v = self.v(x).heads(self.n_kv_head)
        return self.o(step.attend(self.layer, q, k, v, scale=self.scale, sinks=self.sinks))


class Block:
    def __init__(
        self, config: DenseConfig, weights: Weights, layer: int, rotation: RopeSpec, experts: ExpertConfig
    ) -> None:
        self.attn_norm = weights.norm("attn_norm", config.dim, config.eps)
        self.ffn_norm = weights.norm("post_attention_norm", config.dim, config.eps)
        self.attention = Attention(config, weights, layer, rotation)
        spec = MoeSpec(
            n_used=experts.n_used,
            gating=experts.gating,
            normalize=experts.normalize,
            scale=experts.scale,
            unit="clamped_swiglu",
        )
        self.mlp = MoE(weights, config.dim, experts.ffn_dim, experts.n, spec, biases=True)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.attention(self.attn_norm(x), step)
        return x + self.mlp(self.ffn_norm(x))


class GptOss(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        experts = ExpertConfig.read(keys, config.n_layer, gating="softmax_of_chosen", normalize=False)
        self.window = keys.integer("attention.sliding_window", low=1)
        self.is_local = local_layers(keys, config.n_layer, PERIOD)
        turn = rotation(keys, weights, config)
        keys.only("rope.freq_base_swa", base_of(keys))
        blocks = [Block(config, block, i, turn, experts) for i, block in enumerate(weights.blocks(config.n_layer))]
        super().__init__(config, weights, blocks)

    def cache(self) -> list[CacheSpec]:
        return self.config.cache([self.window if local else 0 for local in self.is_local])


MODEL = GptOss

# --- checkpoint ---


def _window(config: Fields) -> int:
    has_windows(config)
    return config.integer("sliding_window", 128, low=1)


def _rope(config: Fields) -> Iterator[Entry]:
    if not config.has("rope_parameters") and not config.has("rope_scaling"):
        raise UnsupportedError("[convert] 'rope_parameters' is missing from config.json")
    yield from rope_keys(config, 150000.0, truncate=False)


def _packed(name: str, packing: MXFP4) -> Source:
    module = f"model.layers.{{i}}.mlp.experts.{name}"
    return Source((f"{module}_blocks", f"{module}_scales"), packing=packing)


def _every_second(begin: int) -> Change:
    """Take every second row: gate and up alternate, and matrices are stored ``[in, out]``."""

    def change(x: Array, config: Fields) -> Array:
        half: Array = (x.swapaxes(1, 2) if x.ndim == 3 else x)[:, begin::2].copy()
        return half

    return change


def _turned(x: Array, config: Fields) -> Array:
    turned: Array = x.swapaxes(1, 2).copy()
    return turned


_KEYS: dict[str, Key] = {
    **DECODER_KEYS,
    "context_length": u32("max_position_embeddings", default=131072),
    "attention.key_length": u32("head_dim", default=64),
    "attention.value_length": u32("head_dim", default=64),
    "attention.sliding_window": computed("u32", _window),
    "attention.sliding_window_pattern": computed("bool[]", lambda config: window_pattern(config, PERIOD)),
    "expert_count": u32("num_local_experts", "num_experts", default=128),
    "expert_used_count": u32("num_experts_per_tok", default=4),
    "expert_feed_forward_length": u32("intermediate_size", default=2880),
}
_MLP = "model.layers.{i}.mlp"
_TENSORS = {
    **{name: source for name, source in DECODER_TENSORS.items() if ".ffn_" not in name},
    "blk.{i}.post_attention_norm": "model.layers.{i}.post_attention_layernorm",
    "blk.{i}.attn_sinks.weight": "model.layers.{i}.self_attn.sinks",
    "blk.{i}.ffn_gate_inp": f"{_MLP}.router",
    "blk.{i}.ffn_gate_exps.weight": tensor(f"{_MLP}.experts.gate_up_proj", change=_every_second(0)),
    "blk.{i}.ffn_up_exps.weight": tensor(f"{_MLP}.experts.gate_up_proj", change=_every_second(1)),
    "blk.{i}.ffn_down_exps.weight": tensor(f"{_MLP}.experts.down_proj", change=_turned),
    "blk.{i}.ffn_gate_exps.bias": tensor(f"{_MLP}.experts.gate_up_proj_bias", change=_every_second(0)),
    "blk.{i}.ffn_up_exps.bias": tensor(f"{_MLP}.experts.gate_up_proj_bias", change=_every_second(1)),
    "blk.{i}.ffn_down_exps.bias": f"{_MLP}.experts.down_proj_bias",
}
# Packed and plain forms need separate tables, because a table has one entry for each name.
_PACKED = {
    "blk.{i}.ffn_gate_exps.weight": _packed("gate_up_proj", MXFP4(0, 2)),
    "blk.{i}.ffn_up_exps.weight": _packed("gate_up_proj", MXFP4(1, 2)),
    "blk.{i}.ffn_down_exps.weight": _packed("down_proj", MXFP4()),
}


class _Checkpoint(Checkpoint):
    def _named_as(self, there: Collection[str]) -> Mapping[str, str | Source]:
        table = super()._named_as(there)
        if not any(name.endswith("_blocks") for name in there):
            return table
        has_base = table is self.tensors
        return {**table, **{name: entry if has_base else entry.without(self.base) for name, entry in _PACKED.items()}}


HF = {
    "GptOssForCausalLM": _Checkpoint(
        "gpt-oss",
        _KEYS,
        _TENSORS,
        fixed={"attention_bias": (True,), "swiglu_alpha": (1.702,), "swiglu_limit": (7.0,)},
        rope=_rope,
        unused=("experts_per_token", "initial_context_length"),
    )
}
