"""Nemotron-H (NVIDIA 2025), Nemotron 3: each layer is one of Mamba 2, attention, an MLP or (latent) experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from .._native import graph
from ..checkpoints.mapping import (
    DECODER_KEYS,
    SILU,
    Checkpoint,
    Fields,
    Key,
    computed,
    f32,
    factor,
    flag,
    only_with,
    tensor,
    u32,
)
from ..errors import UnsupportedError
from ..nn import MLP, CacheSpec, Keys, MoeSpec, Step, Tensor, Weights
from .base import MAX_DIM, MAX_HEADS, Decoder, DenseConfig, Layer, Mixer, by_layer, layers_left_out
from .mamba2 import Attention, Mamba2Mixer, StateSpace, mixer_tensors

ARCHES = ("nemotron_h", "nemotron_h_moe")


@dataclass(frozen=True)
class ExpertSizes:
    """Sizes of the experts by layer; 0 in layers without any."""

    n: int
    n_used: list[int]
    ffn_dims: list[int]
    shared_dim: int
    latent: int  # the width of the experts' inputs and outputs; 0: the model's
    normalize: bool
    scale: float
    n_group: int
    n_group_used: int

    @classmethod
    def read(cls, keys: Keys, n_layer: int) -> ExpertSizes:
        n = keys.integer("expert_count", 0, high=4096)
        if n == 0:
            keys.only("expert_group_count", 0, 1)
        return cls(
            n=n,
            n_used=keys.integers("expert_used_count", n_layer, 0, high=n),
            ffn_dims=keys.integers("expert_feed_forward_length", n_layer, 0, high=MAX_DIM),
            shared_dim=keys.integer("expert_shared_feed_forward_length", 0, high=MAX_DIM),
            latent=keys.integer("moe_latent_size", 0, high=MAX_DIM),
            normalize=keys.flag("expert_weights_norm", False),
            scale=keys.number("expert_weights_scale", 0.0) or 1.0,  # 0: not set
            n_group=keys.integer("expert_group_count", 0, high=max(n, 1)) or 1,
            n_group_used=keys.integer("expert_group_used_count", 0, high=max(n, 1)) or 1,
        )

    def spec(self, layer: int) -> MoeSpec:
        return MoeSpec(
            n_used=self.n_used[layer],
            gating="sigmoid",
            normalize=self.normalize,
            scale=self.scale,
            n_group=self.n_group,
            n_group_used=self.n_group_used,
            activation="relu",
            unit="ungated",
            is_squared=True,
        )


class Experts:
    """Experts with squared ReLU, and a shared one."""

    def __init__(self, weights: Weights, dim: int, experts: ExpertSizes, layer: int) -> None:
        width, ffn_dim = experts.latent or dim, experts.ffn_dims[layer]
        self.router = weights.linear("ffn_gate_inp", dim, experts.n)
        self.selection_bias = weights.tensor("exp_probs_b.bias", (experts.n,), vector=True)
        self.down_latent = weights.linear("ffn_latent_down", dim, width, bias=None) if experts.latent else None
        self.up_latent = weights.linear("ffn_latent_up", width, dim, bias=None) if experts.latent else None
        self.up = weights.tensor("ffn_up_exps.weight", (experts.n, ffn_dim, width))
        self.down = weights.tensor("ffn_down_exps.weight", (experts.n, width, ffn_dim))
        self.shared_up = weights.linear("ffn_up_shexp", dim, experts.shared_dim, bias=None)
        self.shared_down = weights.linear("ffn_down_shexp", experts.shared_dim, dim, bias=None)
        self.spec = experts.spec(layer)

    def __call__(self, x: Tensor) -> Tensor:
        y = self.down_latent(x) if self.down_latent else x
        y = graph.moe(y, self.router(x), None, self.up, self.down, self.spec, selection_bias=self.selection_bias)
        y = self.up_latent(y) if self.up_latent else y
        return y + self.shared_down(graph.relu_squared(self.shared_up(x)))


class Block:
    def __init__(
        self, config: DenseConfig, weights: Weights, mixer: Callable[..., Tensor], *, sees_others: bool
    ) -> None:
        self.norm, self.mixer, self.sees_others = weights.norm("attn_norm", config.dim, config.eps), mixer, sees_others

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        y = self.norm(x)
        return x + (self.mixer(y, step) if self.sees_others else self.mixer(y))


class NemotronH(Decoder):
    """A layer with an MLP width is an MLP or experts, one with k and v heads is attention, others are Mamba 2."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        heads, n_kv_head = by_layer(keys, "attention.head_count_kv", high=MAX_HEADS)
        ffn_dims = keys.integers("feed_forward_length", len(heads), high=MAX_DIM)
        rms, plain = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
        eps = rms if keys.has(rms) else plain
        config = DenseConfig.read(keys, n_vocab, eps=eps, n_kv_head=n_kv_head, ffn_dim=max(*ffn_dims, 1))
        config = replace(config, n_layer=config.n_layer - layers_left_out(keys, weights, config.n_layer))
        keys.without_effect(plain, "rope.freq_base", "expert_shared_count")
        keys.only("rope.scaling.finetuned", False)  # llama.cpp's key for RoPE in this architecture
        self.sizes, experts = StateSpace.read(keys), ExpertSizes.read(keys, len(heads))
        self.attends = [heads[i] and not ffn_dims[i] for i in range(config.n_layer)]

        def make_block(i: int, block: Weights) -> Block:
            if not ffn_dims[i]:
                mixer: Mixer = (
                    Attention(config, block, i)
                    if heads[i]
                    else Mamba2Mixer(block, config.dim, i, self.sizes, config.eps)
                )
                return Block(config, block, mixer, sees_others=True)
            routes = block.has("ffn_gate_inp.weight")
            mlp: Layer = (
                Experts(block, config.dim, experts, i)
                if routes
                else MLP(block, config.dim, ffn_dims[i], graph.relu_squared)
            )
            return Block(config, block, mlp, sees_others=False)

        self.has_mlp = [n > 0 for n in ffn_dims]
        blocks = [make_block(i, block) for i, block in enumerate(weights.blocks(config.n_layer))]
        super().__init__(config, weights, blocks)

    def cache(self) -> list[CacheSpec]:
        attention, state, nothing = self.config.cache()[0], self.sizes.cache(), CacheSpec()
        kinds = zip(self.attends, self.has_mlp, strict=False)
        return [attention if attends else nothing if has_mlp else state for attends, has_mlp in kinds]


MODEL = NemotronH

# --- checkpoint ---

_LETTERS = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}
_OLD = {"linear_attention": "mamba", "full_attention": "attention"}


def _kinds(config: Fields) -> list[str]:
    """Return each layer's kind, from a list or, in older configurations, from letters."""
    named = next((name for name in ("layers_block_type", "layer_types") if config.has(name)), "layer_types")
    config.read(("hybrid_override_pattern",))
    if config.has(named):
        kinds = [_OLD.get(str(kind), str(kind)) for kind in config.items(named)]
    elif config.has("hybrid_override_pattern"):
        kinds = [_LETTERS.get(letter, letter) for letter in config.text("hybrid_override_pattern")]
    else:
        kinds = ["mamba", "moe", "attention", "mlp"]
    if not kinds or not set(kinds) <= set(_LETTERS.values()):
        raise UnsupportedError(f"[convert] invalid kinds of layers: expected {', '.join(_LETTERS.values())}")
    return kinds


def _ffn_dims(config: Fields) -> list[int]:
    dims = {
        "mlp": config.integer("intermediate_size", 21504),
        "moe": config.integer("moe_intermediate_size", 7688),
    }
    return [dims.get(kind, 0) for kind in _kinds(config)]


def _kv_heads(config: Fields) -> list[int]:
    n_kv_head = config.integer("num_key_value_heads", 8, low=1)
    return [n_kv_head if kind == "attention" else 0 for kind in _kinds(config)]


def _of_experts(key: Key) -> Key:
    """Return a key that is omitted if no layer has experts."""

    def read(config: Fields) -> object:
        value = key.read(config)
        return value if "moe" in _kinds(config) else None

    return Key(key.kind, read)  # type: ignore[arg-type]


class _Checkpoint(Checkpoint):
    def arch_of(self, config: Fields) -> str:
        return "nemotron_h_moe" if "moe" in _kinds(config) else "nemotron_h"


_MIXER = "backbone.layers.{i}.mixer"
_WITH_BIAS = only_with("mlp_bias", default=False, biases=True)
_EXPERT_KEYS = {
    "expert_count": u32("n_routed_experts", "num_local_experts", default=8),
    "expert_used_count": u32("num_experts_per_tok", default=2),
    "expert_feed_forward_length": u32("moe_intermediate_size", default=7688),
    "expert_shared_feed_forward_length": u32("moe_shared_expert_intermediate_size", default=7688),
    "expert_shared_count": u32("n_shared_experts", default=1),
    "expert_weights_norm": flag("norm_topk_prob", default=True),
    "expert_weights_scale": factor("routed_scaling_factor", default=1.0),
    "expert_group_count": u32("n_group", default=1, low=1),
    "expert_group_used_count": u32("topk_group", default=1, low=1),
    "moe_latent_size": u32("moe_latent_size", default=None),
}
HF = {
    "NemotronHForCausalLM": _Checkpoint(
        "nemotron_h",
        {
            **{name: DECODER_KEYS[name] for name in ("embedding_length", "attention.head_count")},
            "context_length": u32("max_position_embeddings", default=4096),
            "block_count": computed("u32", lambda config: len(_kinds(config))),
            "feed_forward_length": computed("u32[]", _ffn_dims),
            "attention.head_count_kv": computed("u32[]", _kv_heads),
            "attention.key_length": u32("head_dim", "attention_head_dim", default=128),
            "attention.value_length": u32("head_dim", "attention_head_dim", default=128),
            "attention.layer_norm_rms_epsilon": f32("layer_norm_epsilon", default=1e-5),
            "attention.layer_norm_epsilon": f32("layer_norm_epsilon", default=1e-5),
            "rope.scaling.finetuned": computed("bool", lambda config: False),
            "ssm.conv_kernel": u32("conv_kernel", default=4),
            "ssm.inner_size": computed(
                "u32", lambda config: config.integer("mamba_num_heads", 128) * config.integer("mamba_head_dim", 64)
            ),
            "ssm.state_size": u32("ssm_state_size", default=128),
            "ssm.time_step_rank": u32("mamba_num_heads", default=128),
            "ssm.group_count": u32("n_groups", default=8),
            **{name: _of_experts(key) for name, key in _EXPERT_KEYS.items()},
        },
        {
            "token_embd": "backbone.embeddings",
            "output_norm": "backbone.norm_f",
            "output": "lm_head",
            "blk.{i}.attn_norm": "backbone.layers.{i}.norm",
            **mixer_tensors(_MIXER, "n_groups", 8, bias="use_bias", conv_bias="use_conv_bias"),
            **{f"blk.{{i}}.attn_{x}.weight": f"{_MIXER}.{x}_proj.weight" for x in "qkv"},
            "blk.{i}.attn_output.weight": f"{_MIXER}.o_proj.weight",
            "blk.{i}.ffn_gate_inp": f"{_MIXER}.gate",
            "blk.{i}.exp_probs_b.bias": f"{_MIXER}.gate.e_score_correction_bias",
            "blk.{i}.ffn_latent_down": tensor(f"{_MIXER}.fc1_latent_proj", change=_WITH_BIAS),
            "blk.{i}.ffn_latent_up": tensor(f"{_MIXER}.fc2_latent_proj", change=_WITH_BIAS),
            **{f"blk.{{i}}.ffn_{x}": tensor(f"{_MIXER}.{x}_proj", change=_WITH_BIAS) for x in ("up", "down")},
            **{f"blk.{{i}}.ffn_{x}_exps": f"{_MIXER}.experts.{{e}}.{x}_proj" for x in ("up", "down")},
            **{
                f"blk.{{i}}.ffn_{x}_shexp": tensor(f"{_MIXER}.shared_experts.{x}_proj", change=_WITH_BIAS)
                for x in ("up", "down")
            },
        },
        # Transformers uses time_step_min, an initialization parameter, as a limit; the paper's models have none.
        fixed={
            "mlp_hidden_act": ("relu2", None),
            "hidden_act": (*SILU, "relu2", None),
            "mamba_hidden_act": (*SILU, None),
            "time_step_min": (0.001, 0.0, None),
        },
        rope=None,
        ignored=("mtp.*",),
        unused=(
            "num_hidden_layers", "rms_norm_eps", "attention_bias", "mlp_bias", "use_bias", "use_conv_bias",
            "mamba_proj_bias", "sliding_window", "num_logits_to_keep", "use_mamba_kernels", "expand", "chunk_size",
            "time_step_*", "mamba_ssm_cache_dtype", "moe_shared_expert_overlap", "num_nextn_predict_layers", "mtp_*",
            "residual_in_fp32", "rescale_prenorm_residual", "rope_theta", "partial_rotary_factor",
        ),
        base="backbone.",
    )
}  # fmt: skip
