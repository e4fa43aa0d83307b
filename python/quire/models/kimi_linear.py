"""Kimi Linear (Moonshot AI 2025): a delta rule with a decay for every key, and latent attention without RoPE."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .._native import graph
from ..checkpoints.mapping import (
    DECODER_TENSORS,
    Array,
    Checkpoint,
    Fields,
    computed,
    f32,
    factor,
    layers_of_type,
    n_dense,
    tensor,
    u32,
)
from ..errors import LoadError, UnsupportedError
from ..nn import (
    CacheSpec,
    ExpertConfig,
    Keys,
    LatentAttention,
    LatentSizes,
    RopeSpec,
    Step,
    Tensor,
    Weight,
    Weights,
)
from .base import MAX_HEAD_DIM, MAX_LAYERS, Block, Decoder, DenseConfig, Layer, Mixer, dense_then_experts
from .deepseek2 import FIXED, LATENT_KEYS, LATENT_TENSORS, UNUSED, all_heads, latent_eps
from .qwen35 import unit

ARCHES = ("kimi-linear",)
READS: tuple[str, ...] = ("expert_gating_func", "expert_weights_scale")


class DeltaAttention:
    """The delta rule on convolved queries, keys and values; the output is normalized by head and gated."""

    def __init__(self, config: DenseConfig, weights: Weights, layer: int, *, size: int, kernel: int) -> None:
        self.layer, self.n_head, self.size = layer, config.n_head, size
        inner = config.n_head * size
        self.qkv = [weights.linear(f"attn_{one}", config.dim, inner) for one in "qkv"]
        self.convs = [
            _squeezed(weights, f"ssm_conv1d_{one}.weight", (inner, kernel), (inner, 1, kernel)) for one in "qkv"
        ]
        self.f = self.product_of_two("ssm_f", config.dim, weights)
        self.g = self.product_of_two("ssm_g", config.dim, weights)
        self.beta = weights.linear("ssm_beta", config.dim, config.n_head)
        self.dt_bias = weights.tensor("ssm_dt.bias", (inner,), vector=True)
        self.a = self.rates(weights)
        self.norm, self.o = weights.norm("ssm_norm", size, config.eps), weights.linear("attn_output", inner, config.dim)

    def rates(self, weights: Weights) -> Weight:
        return _squeezed(weights, "ssm_a", (self.n_head, 1), (self.n_head, 1))

    def product_of_two(self, name: str, dim: int, weights: Weights) -> Layer:
        a = weights.linear(f"{name}_a", dim, self.size)
        b = weights.linear(f"{name}_b", self.size, self.n_head * self.size)
        return lambda x: b(a(x))

    def decay(self, x: Tensor) -> Tensor:
        """Return the logarithm of the decays ``[tokens, n_head, size]``."""
        rate = graph.softplus(graph.add_weight(self.f(x), self.dt_bias)).heads(self.n_head)
        return graph.multiply_weight(rate, self.a)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q, k, v = (
            graph.conv_state(linear(x), conv, None, layer=self.layer, state=i, silu=True).heads(self.n_head)
            for i, (linear, conv) in enumerate(zip(self.qkv, self.convs, strict=True))
        )
        g, beta = self.decay(x), graph.sigmoid(self.beta(x))
        q, k = unit(q, self.size) * self.size**-0.5, unit(k, self.size)
        y = self.norm(graph.gated_delta(q, k, v, g, beta, layer=self.layer, state=3)).merge_heads()
        return self.o(y * graph.sigmoid(self.g(x)))


class BoundedDeltaAttention(DeltaAttention):
    """With a (negative) bound, decays are ``exp(bound * sigmoid(a * x))``; files store one dimension of ``a``."""

    bound = 0.0

    def rates(self, weights: Weights) -> Weight:
        return weights.tensor("ssm_a", (self.n_head, 1), vector=True, stored=(self.n_head,))

    def decay(self, x: Tensor) -> Tensor:
        if not self.bound:
            return super().decay(x)
        rate = graph.add_weight(self.f(x), self.dt_bias).heads(self.n_head)
        return graph.sigmoid(graph.negate(graph.multiply_weight(rate, self.a))) * self.bound


def read_bound(keys: Keys) -> float:
    """Read the bound of decays; 0: none."""
    if (bound := keys.number("kda.gate_lower_bound", 0.0)) > 0:
        raise LoadError(f"[{keys.arch}] kda.gate_lower_bound {bound} is out of range: expected less than 0")
    return bound


def _squeezed(weights: Weights, name: str, shape: tuple[int, int], stored: tuple[int, ...]) -> Weight:
    """Take a vector that files store with dimensions of size 1, of which some files have one more in front."""
    has_more = weights.n_rows(name) == 1 and stored[0] != 1
    before = (1,) * (4 - len(stored)) if has_more else ()
    return weights.tensor(name, shape, vector=True, stored=(*before, *stored))


class KimiLinear(Decoder):
    """Layers without heads of k and v use the delta rule."""

    delta: type[DeltaAttention] = DeltaAttention
    latent: type[LatentAttention] = LatentAttention
    block: type[Block] = Block
    reads: tuple[str, ...] = READS

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        n_layer = keys.integer("block_count", low=1, high=MAX_LAYERS)
        n_layer -= self.n_left_out(keys, weights, n_layer)
        self.has_attention = [n > 0 for n in keys.integers("attention.head_count_kv", n_layer, high=1)]
        config = replace(DenseConfig.read(keys, n_vocab, n_kv_head=1), n_layer=n_layer)
        head_dim, v_dim = (
            keys.integer(f"attention.{one}_length_mla", low=1, high=MAX_HEAD_DIM) for one in ("key", "value")
        )
        self.sizes = sizes = LatentSizes.read(keys, config.n_head, head_dim, v_dim)
        self.kernel = keys.integer("ssm.conv_kernel", low=2, high=32)
        self.size = keys.integer("kda.head_dim", low=1, high=256)
        if config.head_dim != sizes.rank + sizes.n_rot:
            raise LoadError(f"[{config.arch}] key_length is {config.head_dim}: expected {sizes.rank + sizes.n_rot}")
        rotation, sharper = self.rotation(keys, sizes.n_rot)
        experts = ExpertConfig.read(keys, n_layer, gating="sigmoid", grouped=True, reads=self.reads)
        n_dense_layers = keys.integer("leading_dense_block_count", 0)
        n_shared = keys.integer("expert_shared_count", high=64)

        def mixer(i: int, block: Weights) -> Mixer:
            if self.has_attention[i]:
                scale = sharper * sizes.head_dim**-0.5
                return self.latent(block, config.dim, sizes, i, eps=config.eps, rotation=rotation, scale=scale)
            return self.delta(config, block, i, size=self.size, kernel=self.kernel)

        mlp = self.mlps(keys, config, experts, n_shared * experts.ffn_dim, n_dense_layers)
        blocks = [
            self.block(config, block, mixer(i, block), mlp(i, block)) for i, block in enumerate(weights.blocks(n_layer))
        ]
        super().__init__(config, weights, blocks)

    def mlps(
        self, keys: Keys, config: DenseConfig, experts: ExpertConfig, shared_dim: int, n_dense: int
    ) -> Callable[[int, Weights], Layer]:
        """Return a function that makes layer i's MLP."""
        return dense_then_experts(config, experts, shared_dim, n_dense)

    def n_left_out(self, keys: Keys, weights: Weights, n_layer: int) -> int:
        """Return how many of the file's last layers predict later tokens."""
        return 0

    def rotation(self, keys: Keys, n_rot: int) -> tuple[RopeSpec | None, float]:
        """Return the rotation of the attention layers, and the factor of their scores beside ``head_dim ** -0.5``."""
        keys.without_effect("rope.freq_base")
        return None, 1.0

    def cache(self) -> list[CacheSpec]:
        inner = self.config.n_head * self.size
        convs = [(f"conv_{one}", (self.kernel - 1) * inner) for one in "qkv"]
        delta = CacheSpec(states=[*convs, ("delta", inner * self.size)])
        return [self.sizes.cache(1)[0] if one else delta for one in self.has_attention]


MODEL = KimiLinear

# --- checkpoint ---


def _linear(config: Fields, name: str, old: str, default: int) -> int:
    """Read a size of the delta-rule layers, under its new or old name."""
    return config.inner("linear_attn_config").integer(old, config.integer(name, default), low=1)


def _full_layers(config: Fields) -> list[bool]:
    """Return the attention layers: by ``layer_types``, by layer numbers from 1, or every fourth except the first."""
    n_layer = config.integer("num_hidden_layers")
    old = config.inner("linear_attn_config")
    numbers, others = old.items("full_attn_layers"), old.items("kda_layers")
    if is_linear := layers_of_type(config, "linear_attention"):
        return [not one for one in is_linear]
    if not (old.has("full_attn_layers") and old.has("kda_layers")):
        return [i > 0 and i % 4 == 0 for i in range(n_layer)]
    if sorted(map(str, [*numbers, *others])) != sorted(str(i + 1) for i in range(n_layer)):
        raise UnsupportedError(
            f"[convert] invalid 'full_attn_layers' and 'kda_layers': expected each of {n_layer} layers once"
        )
    return [i + 1 in numbers for i in range(n_layer)]


def _heads_agree(config: Fields) -> None:
    n = config.integer("num_attention_heads", 32)
    if (found := _linear(config, "linear_num_heads", "num_heads", 32)) != n:
        raise UnsupportedError(f"[convert] unsupported 'num_heads' of the delta rule: {found} (expected {n})")
    all_heads(config)


def _normalized(config: Fields) -> None:
    for name in ("moe_renormalize", "norm_topk_prob"):
        if not config.flag(name, True):
            raise UnsupportedError(f"[convert] unsupported '{name}': false")


def rate_of_log(x: Array, config: Fields) -> Array:
    """Return ``a`` of ``BoundedDeltaAttention``; old checkpoints pad it."""
    import numpy as np

    return -np.exp(x).reshape(-1)[: config.integer("num_attention_heads")]


def _decay(x: Array, config: Fields) -> Array:
    import numpy as np

    return -np.exp(x).reshape(-1, 1)


_LAYER = "model.layers.{i}"
_ATTENTION, _MOE = f"{_LAYER}.self_attn", f"{_LAYER}.block_sparse_moe"
HF = {
    "KimiLinearForCausalLM": Checkpoint(
        "kimi-linear",
        {
            **LATENT_KEYS,
            "context_length": u32("model_max_length", "max_position_embeddings", default=1048576),
            "attention.head_count_kv": computed("u32[]", lambda config: [int(full) for full in _full_layers(config)]),
            "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-5),
            "attention.latent_norm_rms_epsilon": latent_eps(1e-5),
            "ssm.conv_kernel": computed(
                "u32", lambda config: _linear(config, "linear_conv_kernel_dim", "short_conv_kernel_size", 4)
            ),
            "kda.head_dim": computed("u32", lambda config: _linear(config, "linear_head_dim", "head_dim", 128)),
            "expert_count": u32("num_experts", "num_local_experts", default=256),
            "expert_used_count": u32("num_experts_per_token", "num_experts_per_tok", default=8),
            "expert_feed_forward_length": u32("moe_intermediate_size", default=1024),
            "expert_shared_count": u32("num_shared_experts", "n_shared_experts", default=1),
            "expert_group_count": u32("num_expert_group", "n_group", default=1, low=1),
            "expert_group_used_count": u32("topk_group", default=1, low=1),
            "expert_gating_func": computed("u32", lambda config: 2),
            "expert_weights_scale": factor("routed_scaling_factor", default=2.446),
            "leading_dense_block_count": computed(
                "u32", lambda config: n_dense(config, config.integer("first_k_dense_replace", 1))
            ),
        },
        {
            **LATENT_TENSORS,
            **DECODER_TENSORS,
            # Transformers saves the MLPs of dense layers under the experts' module.
            **{f"blk.{{i}}.ffn_{x}.weight": f"{_MOE}.{x}_proj.weight" for x in ("gate", "up", "down")},
            **{f"blk.{{i}}.ssm_conv1d_{one}": f"{_ATTENTION}.{one}_conv1d" for one in "qkv"},
            **{f"blk.{{i}}.ssm_{one}": f"{_ATTENTION}.{one}_proj" for one in ("f_a", "f_b", "g_a", "g_b")},
            "blk.{i}.ssm_beta": f"{_ATTENTION}.b_proj",
            "blk.{i}.ssm_dt.bias": f"{_ATTENTION}.dt_bias",
            "blk.{i}.ssm_a": tensor(f"{_ATTENTION}.A_log", change=_decay),
            "blk.{i}.ssm_norm": f"{_ATTENTION}.o_norm",
            "blk.{i}.ffn_gate_inp": f"{_MOE}.gate",
            "blk.{i}.exp_probs_b.bias": f"{_MOE}.gate.e_score_correction_bias",
            **{
                f"blk.{{i}}.ffn_{x}_exps": f"{_MOE}.experts.{{e}}.{y}"
                for x, y in (("gate", "w1"), ("up", "w3"), ("down", "w2"))
            },
            **{f"blk.{{i}}.ffn_{x}_shexp": f"{_MOE}.shared_experts.{x}_proj" for x in ("gate", "up", "down")},
        },
        fixed={
            **FIXED,
            "q_lora_rank": (None,),
            "tie_word_embeddings": (False,),
            "moe_router_activation_func": ("sigmoid",),
            "mla_use_nope": (True,),
            "use_grouped_topk": (True,),
        },
        checks=(_heads_agree, _normalized),
        rope=None,
        unused=(*UNUSED, "rope_theta", "rope_scaling", "rope_parameters"),
    )
}
