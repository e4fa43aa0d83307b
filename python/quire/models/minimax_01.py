"""MiniMax 01 and M1 (MiniMax 2025): decaying linear attention in most layers, experts, residuals of normalized rows."""

from __future__ import annotations

from collections.abc import Sequence

from .._native import graph
from ..checkpoints.mapping import DECODER_KEYS, DECODER_TENSORS, SILU, Checkpoint, Fields, computed, f32, rope_keys, u32
from ..errors import LoadError, UnsupportedError
from ..nn import CacheSpec, ExpertConfig, Keys, MoE, Step, Tensor, Weights, rope_spec
from .base import Decoder, DenseConfig, Mixer
from .classic import Attention
from .llama import head_dim_of

ARCHES = ("minimax-01",)
PERIOD = 8  # every eighth layer has full attention
LINEAR_EPS = 1e-6  # the epsilon of linear attention's norms, a constant


class LinearAttention:
    """Linear attention with a decay for each head, faster in the first layers.  One tensor holds q, k, v by head."""

    def __init__(self, config: DenseConfig, weights: Weights, layer: int) -> None:
        import numpy as np

        self.layer, self.n_head, self.head_dim = layer, config.n_head, config.head_dim
        width = config.n_head * config.head_dim
        self.qkv = weights.linear("attn_qkv", config.dim, 3 * width)
        self.gate = weights.linear("attn_gate", config.dim, width)
        self.norm = weights.norm("attn_norm_2", width, LINEAR_EPS)
        self.o = weights.linear("attn_output", width, config.dim)
        slopes = 2.0 ** (-8.0 / config.n_head * np.arange(1, config.n_head + 1))
        of_layer = 1 - layer / (config.n_layer - 1 + 1e-5) + 1e-5
        self.decay = weights.computed("decay", -(slopes * of_layer).astype(np.float32))

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        n, qkv = self.head_dim, graph.activate(self.qkv(x), "silu").heads(self.n_head)
        q, k, v = (graph.slice(qkv, 0, i * n, (i + 1) * n) for i in range(3))
        y = graph.retention(q, k, v, self.decay, layer=self.layer, state=0).merge_heads()
        return self.o(graph.sigmoid(self.gate(x)) * self.norm(y))


class Block:
    """A block whose residual stream is the normalized, scaled input of each part."""

    def __init__(self, config: DenseConfig, weights: Weights, attention: Mixer, experts: MoE, scale: float) -> None:
        self.attn_norm, self.attention = weights.norm("attn_norm", config.dim, config.eps), attention
        self.ffn_norm, self.experts, self.scale = weights.norm("ffn_norm", config.dim, config.eps), experts, scale

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = self.attn_norm(x)
        x = self.ffn_norm(x * self.scale + self.attention(x, step))
        return x * self.scale + self.experts(x)


class MiniMax01(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        experts = ExpertConfig.read(keys, config.n_layer, ffn_dim=config.ffn_dim)
        scale, rotation = keys.number("residual_scale"), rope_spec(keys, n_dims=config.n_rot, layout="half")
        if scale == 0 or config.v_head_dim != config.head_dim:
            raise LoadError(f"[{keys.arch}] residual_scale is 0, or heads of k and v differ in size")
        period = keys.integer("full_attention_interval", PERIOD, low=1)
        names = "attention.recurrent_layers"
        is_linear = keys.integers(names, config.n_layer, high=1) if keys.has(names) else None
        self.is_linear = is_linear or [(i + 1) % period != 0 for i in range(config.n_layer)]

        def make_block(i: int, block: Weights) -> Block:
            attention: Mixer = (
                LinearAttention(config, block, i) if self.is_linear[i] else Attention(config, block, i, rotation)
            )
            return Block(
                config, block, attention, MoE(block, config.dim, experts.ffn_dim, experts.n, experts.spec()), scale
            )

        blocks = [make_block(i, block) for i, block in enumerate(weights.blocks(config.n_layer))]
        super().__init__(config, weights, blocks)

    def cache(self) -> list[CacheSpec]:
        config = self.config
        linear, full = CacheSpec(states=[("linear", config.n_head * config.head_dim**2)]), config.cache()[0]
        return [linear if one else full for one in self.is_linear]


MODEL = MiniMax01

# --- checkpoint ---


def _is_linear(config: Fields) -> Sequence[bool]:
    """Return the layers with linear attention: transformers lists kinds, the first checkpoints list 0 for linear."""
    n_layer, kinds = config.integer("num_hidden_layers"), config.items("layer_types")
    names = ("full_attention", "linear_attention")
    if not kinds and (numbers := config.items("attn_type_list")):
        if not set(numbers) <= {0, 1}:
            raise UnsupportedError("[convert] invalid 'attn_type_list': expected 0 or 1 for each layer")
        kinds = [names[1 - number] for number in numbers if isinstance(number, int)]
    kinds = kinds or [names[i % 2] for i in range(n_layer)]
    if len(kinds) != n_layer or not set(map(str, kinds)) <= set(names):
        raise UnsupportedError(f"[convert] invalid 'layer_types': expected {' or '.join(names)} for each layer")
    return [kind == names[1] for kind in kinds]


def _residual_scale(config: Fields) -> float:
    """Return the scale of residuals; files have one for all parts, and none for the parts' outputs."""
    found = {}
    for factor in ("alpha", "beta"):
        for new, old in (("full_attn", "full_attention"), ("linear_attn", "linear_attention"), ("mlp", "mlp")):
            name = f"{new}_{factor}_factor"
            found[name] = config.number(name, config.number(f"layernorm_{old}_{factor}", 1.0))
    scale = found["mlp_alpha_factor"]
    for name, value in found.items():
        wanted = scale if "alpha" in name else 1.0
        if value != wanted or value == 0:
            raise UnsupportedError(f"[convert] unsupported '{name}': {value} (expected {wanted}, other than 0)")
    return scale


_ATTENTION, _MOE = "model.layers.{i}.self_attn", "model.layers.{i}.block_sparse_moe"


def _of(**fixed: tuple[object, ...]) -> Checkpoint:
    return Checkpoint(
        "minimax-01",
        {
            **DECODER_KEYS,
            "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-5),
            "rope.dimension_count": u32("rotary_dim", default=head_dim_of),
            "attention.recurrent_layers": computed("bool[]", _is_linear),
            "residual_scale": computed("f32", _residual_scale),
            "expert_count": u32("num_local_experts", "num_experts", default=8),
            "expert_used_count": u32("num_experts_per_tok", default=2),
        },
        {
            **DECODER_TENSORS,
            "blk.{i}.attn_qkv": f"{_ATTENTION}.qkv_proj",
            "blk.{i}.attn_gate": f"{_ATTENTION}.output_gate",
            "blk.{i}.attn_norm_2": f"{_ATTENTION}.norm",
            "blk.{i}.attn_output.weight": f"{_ATTENTION}.out_proj.weight",
            "blk.{i}.ffn_gate_inp": f"{_MOE}.gate",
            "blk.{i}.ffn_gate_exps": f"{_MOE}.experts.{{e}}.w1",
            "blk.{i}.ffn_up_exps": f"{_MOE}.experts.{{e}}.w3",
            "blk.{i}.ffn_down_exps": f"{_MOE}.experts.{{e}}.w2",
        },
        fixed={"hidden_act": SILU, "sliding_window": (None,), **fixed},
        rope=lambda config: rope_keys(config, 1e6),
        unused=("block_size", "router_jitter_noise", "shared_moe_mode"),
        # These follow from the configuration.
        ignored=("*.self_attn.slope_rate", *(f"*.self_attn.{x}_decay" for x in ("query", "key", "diagonal"))),
    )


_PUBLISHED = _of(postnorm=(True,), shared_intermediate_size=(0,))
HF = {
    "MiniMaxForCausalLM": _of(),
    "MiniMaxText01ForCausalLM": _PUBLISHED,
    "MiniMaxM1ForCausalLM": _PUBLISHED,
}
