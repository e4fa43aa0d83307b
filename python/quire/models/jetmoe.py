"""JetMoE (Shen et al. 2024): experts in place of the MLP, and experts of queries and outputs that share k and v."""

from __future__ import annotations

from .._native import graph
from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    SILU,
    Array,
    Checkpoint,
    Fields,
    computed,
    half,
    tensor,
    u32,
)
from ..checkpoints.mapping import f32 as number
from ..nn import CacheSpec, ExpertConfig, Keys, MoE, MoeSpec, RopeSpec, Step, Tensor, Weights, rope, rope_spec
from .base import Decoder, DenseConfig

ARCHES = ("jetmoe",)
BLOCK_EPS = 1e-6  # layers have this one, whatever that of the last norm is
N_INNER = 32  # width of the experts that write the weights of attention's experts


class Choice:
    """The weights of all experts, zero except for the best: a mixture whose expert i writes 1 at place i."""

    def __init__(self, weights: Weights, name: str, dim: int, n: int, n_used: int) -> None:
        import numpy as np

        self.router = weights.linear(name, dim, n)
        first, places = np.zeros((n, N_INNER), np.float32), np.zeros((n, n, N_INNER), np.float32)
        first[:, 0] = 1
        places[np.arange(n), np.arange(n), 0] = 1
        self.up = weights.computed(f"{name}.up", np.zeros((n, N_INNER, n), np.float32))
        self.up_bias, self.down = weights.computed(f"{name}.ones", first), weights.computed(f"{name}.places", places)
        self.spec = MoeSpec(n_used=n_used, activation="relu", gating="softmax", unit="ungated")

    def __call__(self, x: Tensor) -> Tensor:
        scores = self.router(x)
        return graph.moe(scores, scores, None, self.up, self.down, self.spec, up_bias=self.up_bias)


class Attention:
    """Each head of k and v serves one query of every expert; the outputs of experts that are not chosen count 0."""

    def __init__(self, config: DenseConfig, weights: Weights, layer: int, rotation: RopeSpec, used: int) -> None:
        self.layer, self.n_head, self.n_kv_head = layer, config.n_head, config.n_kv_head
        self.scale, self.rotation, self.n_expert = config.head_dim**-0.5, rotation, config.n_head // config.n_kv_head
        width = config.n_head * config.head_dim
        self.q = weights.linear("attn_q", config.dim, width)
        self.k = weights.linear("attn_k", config.dim, config.n_kv_head * config.head_dim)
        self.v = weights.linear("attn_v", config.dim, config.n_kv_head * config.head_dim)
        self.o = weights.linear("attn_output", width, config.dim, bias=True)
        self.choice = Choice(weights, "attn_gate_inp", config.dim, self.n_expert, used)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q = rope(self.q(x).heads(self.n_head), step.positions, self.rotation)
        k = rope(self.k(x).heads(self.n_kv_head), step.positions, self.rotation)
        y = step.attend(self.layer, q, k, self.v(x).heads(self.n_kv_head), scale=self.scale)
        chosen = graph.repeat_heads(self.choice(x).heads(1), self.n_kv_head).merge_heads().heads(self.n_head)
        return self.o(graph.multiply_broadcast(y.heads(self.n_head), chosen).merge_heads())


class Block:
    def __init__(self, config: DenseConfig, weights: Weights, attention: Attention, experts: ExpertConfig) -> None:
        self.attn_norm = weights.norm("attn_norm", config.dim, BLOCK_EPS)
        self.ffn_norm = weights.norm("ffn_norm", config.dim, BLOCK_EPS)
        self.attention, self.mlp = attention, MoE(weights, config.dim, experts.ffn_dim, experts.n, experts.spec())
        self.bias = weights.tensor("ffn_output.bias", (config.dim,), vector=True)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.attention(self.attn_norm(x), step)
        return x + graph.add_weight(self.mlp(self.ffn_norm(x)), self.bias)


class JetMoe(Decoder):
    """``attention.head_count`` counts the queries of all experts."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        experts = ExpertConfig.read(keys, config.n_layer, ffn_dim=config.ffn_dim)
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half")
        blocks = [
            Block(config, block, Attention(config, block, i, rotation, experts.n_used), experts)
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)

    def cache(self) -> list[CacheSpec]:
        return self.config.cache()


MODEL = JetMoe

# --- checkpoint ---


def _n_kv(config: Fields) -> int:
    return config.integer("num_key_value_heads", 16, low=1)


def _n_head(config: Fields) -> int:
    return _n_kv(config) * config.integer("num_local_experts", 8, low=1)


def _by_head(x: Array, config: Fields) -> Array:
    """Turn the experts' matrices into one, whose heads for one head of k are together."""
    n_expert, n_kv = x.shape[0], _n_kv(config)
    ordered: Array = x.reshape(n_expert, n_kv, -1, x.shape[-1]).swapaxes(0, 1).reshape(-1, x.shape[-1]).copy()
    return ordered


def _outputs(x: Array, config: Fields) -> Array:
    """Do the same for the columns of the outputs' matrices."""
    n_expert, dim, n_kv = x.shape[0], x.shape[1], _n_kv(config)
    ordered: Array = x.reshape(n_expert, dim, n_kv, -1).transpose(1, 2, 0, 3).reshape(dim, -1).copy()
    return ordered


_LAYER = "model.layers.{i}"
_HEADS = f"{_LAYER}.self_attention"
_HEAD_DIM = u32("kv_channels", "head_dim", default=128)
HF = {
    "JetMoeForCausalLM": Checkpoint(
        "jetmoe",
        {
            **DECODER_KEYS,
            "attention.head_count": computed("u32", _n_head),
            "attention.head_count_kv": computed("u32", _n_kv),
            "attention.key_length": _HEAD_DIM,
            "attention.value_length": _HEAD_DIM,
            "attention.layer_norm_rms_epsilon": number("rms_norm_eps", default=1e-6),
            "expert_count": u32("num_local_experts", default=8),
            "expert_used_count": u32("num_experts_per_tok", default=2),
        },
        {
            **{name: source for name, source in DECODER_TENSORS.items() if "attn_" not in name and "ffn_" not in name},
            "blk.{i}.attn_norm": f"{_LAYER}.input_layernorm",
            "blk.{i}.ffn_norm": f"{_LAYER}.post_attention_layernorm",
            "blk.{i}.attn_q.weight": tensor(f"{_HEADS}.experts.input_linear.weight", change=_by_head),
            "blk.{i}.attn_k": tensor(f"{_HEADS}.kv_proj", change=half(0)),
            "blk.{i}.attn_v": tensor(f"{_HEADS}.kv_proj", change=half(1)),
            "blk.{i}.attn_output.weight": tensor(f"{_HEADS}.experts.output_linear.weight", change=_outputs),
            "blk.{i}.attn_output.bias": f"{_HEADS}.experts.bias",
            "blk.{i}.attn_gate_inp": f"{_HEADS}.experts.router.layer",
            "blk.{i}.ffn_gate_inp": f"{_LAYER}.mlp.router.layer",
            "blk.{i}.ffn_gate_exps": tensor(f"{_LAYER}.mlp.input_linear", change=half(0)),
            "blk.{i}.ffn_up_exps": tensor(f"{_LAYER}.mlp.input_linear", change=half(1)),
            "blk.{i}.ffn_down_exps": f"{_LAYER}.mlp.output_linear",
            "blk.{i}.ffn_output.bias": f"{_LAYER}.mlp.bias",
        },
        fixed={"activation_function": SILU},
        tied=True,
        unused=("num_attention_heads", "aux_loss_coef", "glu", "length_penalty", "initializer_range"),
    )
}
