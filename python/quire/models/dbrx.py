"""DBRX (Databricks 2024): layer norms without biases, clamped q, k and v, sixteen experts."""

from __future__ import annotations

from collections.abc import Iterator

from .._native.graph import clamp
from ..checkpoints.mapping import Checkpoint, Fields, Key, by_expert, computed, tensor, u32
from ..checkpoints.mapping.rope import Entry, rope_keys, theta_of
from ..errors import LoadError, UnsupportedError
from ..nn import ExpertConfig, Keys, MoE, Step, Tensor, Weights, rope_spec
from . import classic
from .base import DenseConfig
from .classic import EPS, LayerNormDecoder

ARCHES = ("dbrx",)


class Attention(classic.Attention):
    limit = 0.0  # clamp for q, k and v; 0: none

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q, k, v = (clamp(y, -self.limit, self.limit) if self.limit else y for y in (self.q(x), self.k(x), self.v(x)))
        q, k = self.placed(q.heads(self.n_head), step), self.placed(k.heads(self.n_kv_head), step)
        return self.o(step.attend(self.layer, q, k, v.heads(self.n_kv_head), scale=self.scale))


class Block:
    def __init__(self, config: DenseConfig, weights: Weights, attention: Attention, experts: MoE) -> None:
        self.attn_norm, self.attention = weights.layer_norm("attn_norm", config.dim, config.eps, bias=False), attention
        self.ffn_norm = weights.layer_norm("attn_output_norm", config.dim, config.eps, bias=False)
        self.experts = experts

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.attention(self.attn_norm(x), step)
        return x + self.experts(self.ffn_norm(x))


class Dbrx(LayerNormDecoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab, eps=EPS)
        experts = ExpertConfig.read(keys, config.n_layer, ffn_dim=config.ffn_dim, reads=("expert_weights_scale",))
        if (limit := keys.number("attention.clamp_kqv", 0.0)) < 0:
            raise LoadError(f"[dbrx] negative attention.clamp_kqv: {limit}")
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half")

        def make_block(i: int, block: Weights) -> Block:
            attention = Attention(config, block, i, rotation)
            attention.limit = limit
            return Block(config, block, attention, MoE(block, config.dim, experts.ffn_dim, experts.n, experts.spec()))

        blocks = [make_block(i, block) for i, block in enumerate(weights.blocks(config.n_layer))]
        super().__init__(config, weights, blocks)


MODEL = Dbrx

# --- checkpoint ---


def _attention(name: str, default: int) -> Key:
    return computed("u32", lambda config: config.inner("attn_config").integer(name, default, low=1))


def _ffn(name: str, default: int) -> Key:
    return computed("u32", lambda config: config.inner("ffn_config").integer(name, default, low=1))


def _head_dim(config: Fields) -> int:
    return config.integer("d_model", 2048) // config.integer("n_heads", 16, low=1)


def _limit(config: Fields) -> float | None:
    if not (fields := config.inner("attn_config")).has("clip_qkv"):
        fields.read(("clip_qkv",))
        return 0.0
    if (limit := fields.number("clip_qkv")) <= 0:
        raise UnsupportedError(f"[convert] 'clip_qkv' {limit} is out of range: expected more than 0")
    return limit


def _rope(config: Fields) -> Iterator[Entry]:
    """Yield the RoPE keys; the base is in ``attn_config``, or where transformers expects it."""
    base = config.inner("attn_config").number("rope_theta", 10000.0)
    if theta_of(config, base) != base:
        raise UnsupportedError(f"[convert] 'rope_theta' is {theta_of(config)}, but attn_config has {base}")
    yield from rope_keys(config, base)


def _experts(config: Fields) -> None:
    fields = config.inner("ffn_config")
    if (activation := fields.inner("ffn_act_fn").text("name", "silu")) != "silu":
        raise UnsupportedError(f"[convert] unsupported 'ffn_act_fn': '{activation:.40}' (expected silu)")
    if fields.is_null("moe_normalize_expert_weights") or fields.number("moe_normalize_expert_weights", 1.0) != 1:
        found = fields.value("moe_normalize_expert_weights")
        raise UnsupportedError(f"[convert] unsupported 'moe_normalize_expert_weights': {found} (expected 1)")
    fields.read(("hidden_size", "moe_jitter_eps", "moe_loss_weight"))


def _n_expert(config: Fields) -> int:
    return config.inner("ffn_config").integer("moe_num_experts", 4, low=1)


_LAYER = "transformer.blocks.{i}"
_EXPERTS = f"{_LAYER}.ffn.experts.mlp"
HF = {
    "DbrxForCausalLM": Checkpoint(
        "dbrx",
        {
            "context_length": u32("max_seq_len", default=2048, low=1),
            "embedding_length": u32("d_model", default=2048),
            "block_count": u32("n_layers", default=24),
            "feed_forward_length": _ffn("ffn_hidden_size", 3584),
            "attention.head_count": u32("n_heads", default=16, low=1),
            "rope.dimension_count": computed("u32", _head_dim),
            "attention.head_count_kv": _attention("kv_n_heads", 1),
            "attention.layer_norm_epsilon": computed("f32", lambda config: 1e-5),
            "attention.clamp_kqv": computed("f32", _limit),
            "expert_count": _ffn("moe_num_experts", 4),
            "expert_used_count": _ffn("moe_top_k", 1),
        },
        {
            "token_embd": "transformer.wte",
            "output_norm": "transformer.norm_f",
            "output": "lm_head",
            "blk.{i}.attn_norm": f"{_LAYER}.norm_attn_norm.norm_1",
            "blk.{i}.attn_qkv": f"{_LAYER}.norm_attn_norm.attn.Wqkv",
            "blk.{i}.attn_output": f"{_LAYER}.norm_attn_norm.attn.out_proj",
            "blk.{i}.attn_output_norm": f"{_LAYER}.norm_attn_norm.norm_2",
            "blk.{i}.ffn_gate_inp": f"{_LAYER}.ffn.router.layer",
            "blk.{i}.ffn_gate_exps.weight": tensor(f"{_EXPERTS}.w1", change=by_expert(_n_expert)),
            "blk.{i}.ffn_up_exps.weight": tensor(f"{_EXPERTS}.v1", change=by_expert(_n_expert)),
            "blk.{i}.ffn_down_exps.weight": tensor(f"{_EXPERTS}.w2", change=by_expert(_n_expert, transposes=True)),
        },
        fixed={"tie_word_embeddings": (False,)},
        checks=(_experts,),
        rope=_rope,
        base="transformer.",
    )
}
