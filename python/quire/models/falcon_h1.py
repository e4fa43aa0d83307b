"""Falcon-H1 (TII 2025): attention and Mamba 2 in parallel in every layer, then a gated MLP.

Files store weights already multiplied by the multipliers of the configuration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    SILU,
    Change,
    Checkpoint,
    Fields,
    computed,
    f32,
    only_with,
    tensor,
    u32,
)
from ..errors import LoadError, UnsupportedError
from ..nn import CacheSpec, GatedMLP, Keys, RMSNorm, RopeSpec, Step, Tensor, Weights, frequency_factors, rope_spec
from .base import Decoder, DenseConfig
from .llama import Attention
from .mamba2 import UNLIMITED, Mamba2Mixer, StateSpace, by_group, mixer_tensors

if TYPE_CHECKING:
    from ..checkpoints.mapping import Array

ARCHES = ("falcon-h1",)


class Block:
    def __init__(
        self, config: DenseConfig, weights: Weights, layer: int, sizes: StateSpace, rotation: RopeSpec
    ) -> None:
        self.attn_norm = weights.norm("attn_norm", config.dim, config.eps)
        self.attention = Attention(config, weights, layer, rotation)
        self.mixer = Mamba2Mixer(weights, config.dim, layer, sizes, config.eps)
        name = "ffn_norm" if weights.has("ffn_norm") else "ffn_norm.weight"  # llama.cpp omits .weight
        self.ffn_norm = RMSNorm(weights.tensor(name, (config.dim,), vector=True), config.eps)
        self.mlp = GatedMLP(weights, config.dim, config.ffn_dim)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        y = self.attn_norm(x)
        x = x + (self.mixer(y, step) + self.attention(y, step))
        return x + self.mlp(self.ffn_norm(x))


class FalconH1(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        if config.v_head_dim != config.head_dim:
            raise UnsupportedError(
                f"[{keys.arch}] attention.value_length {config.v_head_dim} differs from attention.key_length "
                f"{config.head_dim}"
            )
        self.sizes = StateSpace.read(keys)
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half", factors=frequency_factors(weights, config.n_rot))
        blocks = [
            Block(config, block, i, self.sizes, rotation) for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)

    def cache(self) -> list[CacheSpec]:
        config = self.config
        return [self.sizes.cache(n_kv_head=config.n_kv_head, head_dim=config.head_dim)] * config.n_layer


MODEL = FalconH1

# --- checkpoint ---


def _times(*names: str) -> Change:
    """Multiply by the product of fields."""

    def change(x: Array, config: Fields) -> Array:
        import numpy as np

        factor = np.prod([config.number(name, 1.0) for name in names])
        product: Array = (x * factor).astype(np.float32)
        return product

    return change


def _factors(config: Fields, name: str, n: int) -> list[float]:
    found = config.items(name) or [1.0] * n
    if len(found) != n or not all(isinstance(one, (int, float)) for one in found):
        raise UnsupportedError(f"[convert] unsupported '{name}': {found} (expected {n} numbers)")
    return [float(str(one)) for one in found]


def _mlp(i: int) -> Change:
    def change(x: Array, config: Fields) -> Array:
        import numpy as np

        product: Array = (x * _factors(config, "mlp_multipliers", 2)[i]).astype(np.float32)
        return product

    return change


def _inner(config: Fields) -> int:
    if config.is_null("mamba_d_ssm"):
        return config.integer("mamba_expand", 2) * config.integer("hidden_size")
    return config.integer("mamba_d_ssm", 1024)


def _in_proj(x: Array, config: Fields) -> Array:
    """Multiply the rows of z, x, b, c and the time step by their factors."""
    import numpy as np

    inner, heads = _inner(config), config.integer("mamba_n_heads", 128)
    n = config.integer("mamba_n_groups", 1) * config.integer("mamba_d_state", 256)
    if 2 * inner + 2 * n + heads != len(x):
        raise LoadError(f"[convert] in_proj has {len(x)} rows: expected {2 * inner + 2 * n + heads}")
    factors = np.repeat(_factors(config, "ssm_multipliers", 5), [inner, inner, n, n, heads])
    product: Array = (x * factors[:, None] * config.number("ssm_in_multiplier", 1.0)).astype(np.float32)
    return product


def _fits(config: Fields) -> None:
    config.read(("mamba_expand",))
    if config.flag("mamba_rms_norm", False) and config.flag("mamba_norm_before_gate", True):
        raise UnsupportedError("[convert] unsupported 'mamba_norm_before_gate': true, with 'mamba_rms_norm'")
    config.read(("mamba_norm_before_gate",))
    if config.value("mamba_d_head") not in (
        None,
        "auto",
        _inner(config) // config.integer("mamba_n_heads", 128, low=1),
    ):
        raise UnsupportedError(
            f"[convert] unsupported 'mamba_d_head': {config.value('mamba_d_head')} "
            f"(expected mamba_d_ssm / mamba_n_heads)"
        )
    for name in ("lm_head", "embedding", "key", "attention_in", "attention_out", "ssm_in", "ssm_out"):
        config.number(f"{name}_multiplier", 1.0)
    _factors(config, "mlp_multipliers", 2)
    _factors(config, "ssm_multipliers", 5)


_NORM = only_with("mamba_rms_norm", default=False, change=by_group("mamba_n_groups", 1))
_LAYER = "model.layers.{i}"
_ATTENTION, _MAMBA, _MLP = f"{_LAYER}.self_attn", f"{_LAYER}.mamba", f"{_LAYER}.feed_forward"
HF = {
    "FalconH1ForCausalLM": Checkpoint(
        "falcon-h1",
        {
            **DECODER_KEYS,
            "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-5),
            "ssm.conv_kernel": u32("mamba_d_conv", default=4),
            "ssm.inner_size": computed("u32", _inner),
            "ssm.state_size": u32("mamba_d_state", default=256),
            "ssm.time_step_rank": u32("mamba_n_heads", default=128),
            "ssm.group_count": u32("mamba_n_groups", default=1),
            "vocab_size": u32("vocab_size"),
        },
        {
            **{name: source for name, source in DECODER_TENSORS.items() if name != "blk.{i}.ffn_norm"},
            **mixer_tensors(_MAMBA, "mamba_n_groups", 1),
            "blk.{i}.ssm_norm": tensor(f"{_MAMBA}.norm", change=_NORM),
            "token_embd": tensor("model.embed_tokens", change=_times("embedding_multiplier")),
            "output_norm": "model.final_layernorm",
            "output": tensor("lm_head", change=_times("lm_head_multiplier")),
            "blk.{i}.ffn_norm": f"{_LAYER}.pre_ff_layernorm.weight",
            "blk.{i}.attn_q": tensor(f"{_ATTENTION}.q_proj", change=_times("attention_in_multiplier")),
            "blk.{i}.attn_k": tensor(
                f"{_ATTENTION}.k_proj", change=_times("attention_in_multiplier", "key_multiplier")
            ),
            "blk.{i}.attn_v": tensor(f"{_ATTENTION}.v_proj", change=_times("attention_in_multiplier")),
            "blk.{i}.attn_output": tensor(f"{_ATTENTION}.o_proj", change=_times("attention_out_multiplier")),
            "blk.{i}.ssm_in": tensor(f"{_MAMBA}.in_proj", change=_in_proj),
            "blk.{i}.ssm_out": tensor(f"{_MAMBA}.out_proj", change=_times("ssm_out_multiplier")),
            "blk.{i}.ffn_gate": tensor(f"{_MLP}.gate_proj", change=_mlp(0)),
            "blk.{i}.ffn_up": f"{_MLP}.up_proj",
            "blk.{i}.ffn_down": tensor(f"{_MLP}.down_proj", change=_mlp(1)),
        },
        fixed={
            "hidden_act": SILU,
            "time_step_limit": UNLIMITED,
            "tie_word_embeddings": (False, None),
            "attention_bias": (False, None),
            "mlp_bias": (False, None),
            "projectors_bias": (False, None),
            "mamba_proj_bias": (False, None),
        },
        checks=(_fits,),
        unused=("mamba_chunk_size", "mamba_conv_bias", "num_logits_to_keep", "mamba_use_mlp", "attn_layer_indices"),
    )
}
