"""Doge (SmallDoge 2025): Qwen3 whose scores add a learned number of each token's values; weighed residuals."""

from __future__ import annotations

from .._native import graph
from ..checkpoints.mapping import DECODER_KEYS, DECODER_TENSORS, SILU, Checkpoint, computed, u32, window
from ..errors import UnsupportedError
from ..nn import CacheSpec, GatedMLP, Keys, RopeSpec, Step, Tensor, Weights, frequency_factors, rope, rope_spec
from . import qwen3
from .base import Decoder, DenseConfig
from .llama import head_dim_of

ARCHES = ("doge",)
N_ADDED = 2  # dimensions of k that hold a token's number


class Attention(qwen3.Attention):
    """The number of a token is a part of k that q multiplies by 1."""

    def __init__(self, config: DenseConfig, weights: Weights, layer: int, rotation: RopeSpec) -> None:
        super().__init__(config, weights, layer, rotation)
        self.dt = weights.linear("attn_dt", config.n_kv_head * config.v_head_dim, config.n_kv_head, bias=None)
        self.a = weights.tensor("attn_dt_a", (config.n_kv_head,), vector=True)

    def attended(self, x: Tensor, step: Step) -> Tensor:
        q = rope(self.q_norm(self.q(x).heads(self.n_head)), step.positions, self.rotation)
        k = rope(self.k_norm(self.k(x).heads(self.n_kv_head)), step.positions, self.rotation)
        v = self.v(x)
        number = graph.exp(graph.multiply_weight(graph.softplus(self.dt(v)), self.a)) * (1 / self.scale / N_ADDED)
        number = number.heads(self.n_kv_head)
        one = graph.exp(graph.slice(q, 0, 0, 1) * 0.0)
        for _ in range(N_ADDED):
            q, k = graph.concat(q, one, 0), graph.concat(k, number, 0)
        return step.attend(self.layer, q, k, v.heads(self.n_kv_head), scale=self.scale)


class Block:
    """Attention and MLP, each after a norm, added to weighed residuals."""

    def __init__(self, config: DenseConfig, weights: Weights, layer: int, rotation: RopeSpec) -> None:
        self.attn_norm = weights.norm("attn_norm", config.dim, config.eps)
        self.ffn_norm = weights.norm("ffn_norm", config.dim, config.eps)
        self.attention = Attention(config, weights, layer, rotation)
        self.mlp = GatedMLP(weights, config.dim, config.ffn_dim)
        self.kept = [weights.tensor(f"{name}_residual", (config.dim,), vector=True) for name in ("attn", "ffn")]

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = graph.multiply_weight(x, self.kept[0]) + self.attention(self.attn_norm(x), step)
        return graph.multiply_weight(x, self.kept[1]) + self.mlp(self.ffn_norm(x))


class Doge(Decoder):
    """Attention that drops the smallest numbers beyond ``attention.keep_length`` tokens is unsupported."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        self.n_kept = keys.integer("attention.keep_length", low=1)
        self.window = keys.integer("attention.sliding_window", 0)
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half", factors=frequency_factors(weights, config.n_rot))
        blocks = [Block(config, block, i, rotation) for i, block in enumerate(weights.blocks(config.n_layer))]
        super().__init__(config, weights, blocks)

    def cache(self) -> list[CacheSpec]:
        config = self.config
        each = CacheSpec(
            n_kv_head=config.n_kv_head, head_dim=config.head_dim + N_ADDED, v_head_dim=config.v_head_dim,
            window=self.window,
        )  # fmt: skip
        return [each] * config.n_layer

    def __call__(self, step: Step) -> Tensor:
        if step.n_ctx > self.n_kept:
            raise UnsupportedError(
                f"[doge] n_ctx {step.n_ctx} is too large: attention that drops tokens beyond attention.keep_length is "
                f"unsupported, so contexts are limited to {self.n_kept} tokens (n_ctx={self.n_kept})"
            )
        return super().__call__(step)


MODEL = Doge

# --- checkpoint ---

_LAYER = "model.layers.{i}"
HF = {
    "DogeForCausalLM": Checkpoint(
        "doge",
        {
            **DECODER_KEYS,
            "attention.key_length": computed("u32", head_dim_of),
            "attention.value_length": computed("u32", head_dim_of),
            "attention.keep_length": u32("keep_window_size", default=2048, low=1),
            "attention.sliding_window": window(None),
        },
        {
            **DECODER_TENSORS,
            **qwen3.QK_NORMS,
            "blk.{i}.attn_dt": f"{_LAYER}.self_attn.dt_proj",
            "blk.{i}.attn_dt_a": f"{_LAYER}.self_attn.A",
            "blk.{i}.attn_residual": f"{_LAYER}.input_residual",
            "blk.{i}.ffn_residual": f"{_LAYER}.post_attention_residual",
        },
        fixed={"hidden_act": SILU, "is_moe": (False,)},
        unused=("attention_bias", "mlp_bias", "num_experts", "num_experts_per_tok", "norm_topk_prob", "hidden_dropout"),
    )
}
