"""Granite 4 hybrid (IBM 2025): Mamba 2 in most layers, attention in some, routed and shared experts, four multipliers.

Bamba (IBM 2024) has neither experts nor multipliers, and applies RoPE to half of each head.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from .._native import graph
from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    SILU,
    Change,
    Checkpoint,
    Fields,
    Key,
    Target,
    computed,
    f32,
    factor,
    half,
    rope_keys,
    tensor,
    u32,
)
from ..checkpoints.mapping.keys import Value
from ..checkpoints.mapping.rope import Entry, partial_rotary, rope_of
from ..errors import LoadError, UnsupportedError
from ..nn import CacheSpec, GatedMLP, Keys, MoE, MoeSpec, Step, Tensor, Weights, frequency_factors, rope_spec
from .base import MAX_DIM, MAX_HEADS, Decoder, DenseConfig, Layer, Mixer, by_layer
from .mamba2 import UNLIMITED, Attention, Mamba2Mixer, StateSpace, mixer_tensors

if TYPE_CHECKING:
    from ..checkpoints.mapping import Array

ARCHES = ("granitehybrid",)


class Experts:
    """Routed experts, and a shared one."""

    def __init__(self, weights: Weights, config: DenseConfig, n_expert: int, spec: MoeSpec, shared_dim: int) -> None:
        self.chosen = MoE(weights, config.dim, config.ffn_dim, n_expert, spec)
        self.gate = weights.linear("ffn_gate_shexp", config.dim, shared_dim)
        self.up = weights.linear("ffn_up_shexp", config.dim, shared_dim)
        self.down = weights.linear("ffn_down_shexp", shared_dim, config.dim)

    def __call__(self, x: Tensor) -> Tensor:
        return self.chosen(x) + self.down(graph.glu(self.gate(x), self.up(x), "silu"))


class Block:
    def __init__(self, config: DenseConfig, weights: Weights, mixer: Mixer, mlp: Layer, residual: float) -> None:
        self.attn_norm, self.mixer = weights.norm("attn_norm", config.dim, config.eps), mixer
        self.ffn_norm, self.mlp = weights.norm("ffn_norm", config.dim, config.eps), mlp
        self.residual = residual

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.mixer(self.attn_norm(x), step) * self.residual
        return x + self.mlp(self.ffn_norm(x)) * self.residual


class GraniteHybrid(Decoder):
    """Layers with a recurrent state have 0 heads of k and v.  A multiplier of 0 means the default."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        self.attends, n_kv_head = by_layer(keys, "attention.head_count_kv", high=MAX_HEADS)
        config = DenseConfig.read(keys, n_vocab, n_kv_head=n_kv_head)
        self.sizes = StateSpace.read(keys)
        self.embedding_scale = keys.number("embedding_scale", 1.0) or 1.0
        self.logit_scale = keys.number("logit_scale", 1.0) or 1.0
        residual = keys.number("residual_scale", 1.0) or 1.0
        scale = keys.number("attention.scale", 0.0)
        rotation = None
        if keys.flag("rope.scaling.finetuned", True):  # llama.cpp's key for RoPE in this architecture
            rotation = rope_spec(
                keys, n_dims=config.n_rot, layout="interleaved", factors=frequency_factors(weights, config.n_rot)
            )
        else:
            keys.without_effect("rope.freq_base", "rope.scaling.type", "rope.scaling.factor")
        n_expert = keys.integer("expert_count", 0, high=4096)
        n_used = keys.integer("expert_used_count", 0, low=min(n_expert, 1), high=4096)
        shared_dim = keys.integer("expert_shared_feed_forward_length", 0, high=MAX_DIM)
        blocks = []
        for i, block in enumerate(weights.blocks(config.n_layer)):
            mixer = (
                Attention(config, block, i, scale, rotation=rotation)
                if self.attends[i]
                else Mamba2Mixer(block, config.dim, i, self.sizes, config.eps)
            )
            mlp: Layer = (
                Experts(block, config, n_expert, MoeSpec(n_used=n_used), shared_dim)
                if n_expert
                else GatedMLP(block, config.dim, config.ffn_dim)
            )
            blocks.append(Block(config, block, mixer, mlp, residual))
        super().__init__(config, weights, blocks)

    def cache(self) -> list[CacheSpec]:
        attention = self.config.cache()
        return [spec if attends else self.sizes.cache() for attends, spec in zip(self.attends, attention, strict=True)]

    def __call__(self, step: Step) -> Tensor:
        return self.logits(self.embedding(step.tokens) * self.embedding_scale, step) * (1 / self.logit_scale)


MODEL = GraniteHybrid

# --- checkpoint ---


def _kv_heads(config: Fields) -> list[int]:
    n_layer, kinds = config.integer("num_hidden_layers"), config.items("layer_types")
    attention, state = {"attention", "full_attention"}, {"mamba", "linear_attention"}
    if kinds and (len(kinds) != n_layer or not set(map(str, kinds)) <= attention | state):
        raise UnsupportedError("[convert] invalid 'layer_types': expected attention or mamba for each layer")
    n_kv_head = config.integer("num_key_value_heads", config.integer("num_attention_heads"), low=1)
    return [n_kv_head if kind in attention else 0 for kind in kinds] or [0] * n_layer


def _rotates(config: Fields) -> bool:
    return config.text("position_embedding_type", "nope") == "rope"


def _rope(config: Fields) -> Iterator[Entry]:
    if _rotates(config):
        yield from rope_keys(config)
    else:
        config.read(("rope_theta", "rope_scaling", "rope_parameters"))
        rope = rope_of(config)
        rope.read(rope.names())


def _of_experts(key: Key) -> Key:
    """Return a key that is omitted for models without routed experts; their shared expert is the MLP."""

    def read(config: Fields) -> Value | None:
        value = key.read(config)
        return value if config.integer("num_local_experts", 8) else None

    return Key(key.kind, read)


def _ffn_dim(config: Fields) -> int:
    of_experts, shared = config.integer("intermediate_size", 11008), config.integer("shared_intermediate_size", 1024)
    return of_experts if config.integer("num_local_experts", 8) else shared


def _n_rot(config: Fields) -> int:
    return partial_rotary(config, config.integer("hidden_size") // config.integer("num_attention_heads", low=1), 0.5)


def _paired(n_heads: str, n_rot: Callable[[Fields], int] | None = None) -> Change:
    """Interleave the rotated rows of each head; ``n_rot`` None: all rows if the model uses RoPE, else none."""

    def change(x: Array, config: Fields) -> Array:
        import numpy as np

        if n_rot is None and not _rotates(config):
            return x
        n_head = config.integer(n_heads, config.integer("num_attention_heads"))
        n = x.shape[0] // n_head if n_rot is None else n_rot(config)
        if x.shape[0] % n_head or n > x.shape[0] // n_head or n % 2:
            raise LoadError(
                f"[convert] {x.shape[0]} rows of q or k do not split into '{n_heads}' {n_head} heads of at least {n}"
            )
        heads = x.reshape(n_head, x.shape[0] // n_head, -1)
        order = np.arange(n).reshape(2, n // 2).T.ravel()
        made: Array = np.concatenate([heads[:, order], heads[:, n:]], 1).reshape(x.shape)
        return made

    return change


class _Checkpoint(Checkpoint):
    """Without routed experts the shared one becomes the MLP; without recurrent layers the architecture differs."""

    def arch_of(self, config: Fields) -> str:
        if 0 in _kv_heads(config):
            return "granitehybrid"
        return "granitemoe" if config.integer("num_local_experts", 8) else "granite"

    def entries(self, config: Fields) -> Iterator[Entry]:
        has_state = self.arch_of(config) == "granitehybrid"
        for key, kind, value in super().entries(config):
            if has_state or not key.startswith("ssm."):
                yield key, kind, value

    def targets(self, config: Fields, entries: Iterable[Entry], there: Collection[str]) -> list[Target]:
        targets = super().targets(config, entries, there)
        if config.integer("num_local_experts", 8):
            return targets
        return [replace(target, name=target.name.replace("_shexp.", ".")) for target in targets]


def _bamba_kv_heads(config: Fields) -> list[int]:
    n_kv_head, there = config.integer("num_key_value_heads", 8, low=1), config.items("attn_layer_indices")
    return [n_kv_head if i in there else 0 for i in range(config.integer("num_hidden_layers"))]


def _inner(config: Fields) -> int:
    return config.integer("mamba_expand", 2) * config.integer("hidden_size")


def _sizes_agree(config: Fields) -> None:
    heads = config.integer("mamba_n_heads", 128, low=1)
    if config.value("mamba_d_head") not in (None, "auto", _inner(config) // heads):
        raise UnsupportedError(
            f"[convert] unsupported 'mamba_d_head': {config.value('mamba_d_head')} "
            f"(expected mamba_expand * hidden_size / mamba_n_heads)"
        )


_LAYER = "model.layers.{i}"
_MOE = f"{_LAYER}.block_sparse_moe"
_STATE_KEYS = {
    "ssm.conv_kernel": u32("mamba_d_conv", default=4),
    "ssm.inner_size": computed("u32", _inner),
    "ssm.state_size": u32("mamba_d_state", default=256),
    "ssm.time_step_rank": u32("mamba_n_heads", default=128),
    "ssm.group_count": u32("mamba_n_groups", default=1),
}
HF = {
    "GraniteMoeHybridForCausalLM": _Checkpoint(
        "granitehybrid",
        {
            **DECODER_KEYS,
            "attention.head_count_kv": computed("u32[]", _kv_heads),
            "feed_forward_length": computed("u32", _ffn_dim),
            "attention.scale": factor("attention_multiplier", default=1.0),
            "embedding_scale": factor("embedding_multiplier", default=1.0),
            "residual_scale": factor("residual_multiplier", default=1.0),
            "logit_scale": factor("logits_scaling", default=1.0),
            "expert_count": _of_experts(u32("num_local_experts", default=8)),
            "expert_used_count": _of_experts(u32("num_experts_per_tok", default=2)),
            "expert_shared_feed_forward_length": _of_experts(u32("shared_intermediate_size", default=1024)),
            "rope.scaling.finetuned": computed("bool", _rotates),
            **_STATE_KEYS,
        },
        {
            **DECODER_TENSORS,
            "blk.{i}.attn_q": tensor(f"{_LAYER}.self_attn.q_proj", change=_paired("num_attention_heads")),
            "blk.{i}.attn_k": tensor(f"{_LAYER}.self_attn.k_proj", change=_paired("num_key_value_heads")),
            **mixer_tensors(f"{_LAYER}.mamba", "mamba_n_groups", 1),
            "blk.{i}.ffn_gate_inp": f"{_MOE}.router.layer",
            "blk.{i}.ffn_gate_exps": tensor(f"{_MOE}.input_linear", change=half(0)),
            "blk.{i}.ffn_up_exps": tensor(f"{_MOE}.input_linear", change=half(1)),
            "blk.{i}.ffn_down_exps": f"{_MOE}.output_linear",
            "blk.{i}.ffn_gate_shexp": tensor(f"{_LAYER}.shared_mlp.input_linear", change=half(0)),
            "blk.{i}.ffn_up_shexp": tensor(f"{_LAYER}.shared_mlp.input_linear", change=half(1)),
            "blk.{i}.ffn_down_shexp": f"{_LAYER}.shared_mlp.output_linear",
        },
        fixed={"hidden_act": SILU, "time_step_limit": UNLIMITED, "position_embedding_type": ("nope", "rope", None)},
        checks=(_sizes_agree,),
        rope=_rope,
        unused=(
            "attention_bias", "mamba_chunk_size", "mamba_conv_bias", "mamba_proj_bias", "init_method",
            "normalization_function",
        ),
    ),
    "BambaForCausalLM": Checkpoint(
        "granitehybrid",
        {
            **DECODER_KEYS,
            "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-5),
            "attention.head_count_kv": computed("u32[]", _bamba_kv_heads),
            "rope.dimension_count": computed("u32", _n_rot),
            "rope.scaling.finetuned": computed("bool", lambda config: True),
            **_STATE_KEYS,
        },
        {
            **{name: source for name, source in DECODER_TENSORS.items() if not name.startswith("blk.{i}.ffn_")},
            **mixer_tensors(f"{_LAYER}.mamba", "mamba_n_groups", 1),
            "output_norm": "model.final_layernorm",
            "blk.{i}.attn_q": tensor(f"{_LAYER}.self_attn.q_proj", change=_paired("num_attention_heads", _n_rot)),
            "blk.{i}.attn_k": tensor(f"{_LAYER}.self_attn.k_proj", change=_paired("num_key_value_heads", _n_rot)),
            "blk.{i}.ffn_norm": f"{_LAYER}.pre_ff_layernorm",
            **{f"blk.{{i}}.ffn_{x}": f"{_LAYER}.feed_forward.{x}_proj" for x in ("gate", "up", "down")},
        },
        fixed={
            "hidden_act": SILU, "time_step_limit": UNLIMITED,
            "partial_rotary_factor": (0.5, None),  # rope_parameters takes precedence
        },
        checks=(_sizes_agree,),
        unused=(
            "attention_bias", "mlp_bias", "mamba_chunk_size", "mamba_conv_bias", "mamba_proj_bias",
            "num_logits_to_keep", "z_loss_coefficient", "attn_rotary_emb",
        ),
    ),
}  # fmt: skip
