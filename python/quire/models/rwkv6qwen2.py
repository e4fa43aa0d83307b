"""QRWKV 6 (Recursal 2024): Qwen2 with RWKV-6's time mixing, without its bonus and head norms, in place of attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .._native import graph
from ..checkpoints.mapping import DECODER_TENSORS, SILU, Array, Checkpoint, Fields, computed, f32, tensor, u32
from ..errors import LoadError
from ..nn import CacheSpec, GatedMLP, Keys, Step, Tensor, Weights, select_rows
from .base import MAX_DIM, MAX_HEADS, Config
from .rwkv6 import MIXED, vector
from .rwkv7 import HeadSizes, flat, lerps

ARCHES = ("rwkv6qwen2",)


@dataclass(frozen=True)
class Sizes(HeadSizes):
    n_kv_head: int
    mix_rank: int
    decay_rank: int

    @classmethod
    def read_file(cls, keys: Keys, n_vocab: int) -> Sizes:
        base = Config.read(keys, n_vocab)
        keys.only("attention.head_count", 0)
        keys.only("token_shift_count", 1)
        keys.only("rescale_every_n_layers", 0)
        keys.only("attention.causal", True)
        size, eps = keys.integer("wkv.head_size", low=1, high=256), keys.number("attention.layer_norm_rms_epsilon")
        n_kv_head = keys.integer("attention.head_count_kv", base.dim // size, low=1, high=MAX_HEADS)
        if base.dim % size or base.dim // size % n_kv_head or not 0 < eps < 1:
            raise LoadError(
                f"[{keys.arch}] embedding_length {base.dim} does not split into heads of {size} for {n_kv_head}, "
                f"or norm epsilon {eps} is out of range"
            )
        ranks = [keys.integer(f"time_{one}_extra_dim", low=1, high=MAX_DIM) for one in ("mix", "decay")]
        ffn_dim = keys.same("feed_forward_length", base.n_layer, low=1, high=MAX_DIM)
        return cls(
            **vars(base),
            size=size,
            ffn_dim=ffn_dim,
            eps=eps,
            n_kv_head=n_kv_head,
            mix_rank=ranks[0],
            decay_rank=ranks[1],
        )


class TimeMix:
    def __init__(self, config: Sizes, weights: Weights, layer: int) -> None:
        self.config, self.layer, n = config, layer, len(MIXED)
        self.start = vector(weights, "time_mix_lerp_x", config.dim)
        self.down = weights.linear("time_mix_w1", config.dim, n * config.mix_rank)
        self.up = weights.tensor("time_mix_w2.weight", (n, config.dim, config.mix_rank))
        lerp = weights.numbers("time_mix_lerp_fused.weight", (n, 1, 1, config.dim)).reshape(n, config.dim)
        self.lerps = {one: weights.computed(f"time_mix_lerp_{one}", lerp[i]) for i, one in enumerate(MIXED)}
        kv_dim = config.n_kv_head * config.size
        self.r = weights.linear("time_mix_receptance", config.dim, config.dim, bias=None)
        self.k = weights.linear("time_mix_key", config.dim, kv_dim, bias=None)
        self.v = weights.linear("time_mix_value", config.dim, kv_dim, bias=None)
        self.g = weights.linear("time_mix_gate", config.dim, config.dim)
        self.o = weights.linear("time_mix_output", config.dim, config.dim)
        self.decay = vector(weights, "time_mix_decay", config.dim)
        self.decay_down = weights.linear("time_mix_decay_w1", config.dim, config.decay_rank)
        self.decay_up = weights.linear("time_mix_decay_w2", config.decay_rank, config.dim)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        config = self.config
        change = graph.token_shift(x, layer=self.layer, state=0) + x * -1.0
        low = graph.tanh(self.down(x + graph.multiply_weight(change, self.start))).heads(len(MIXED))
        shares = graph.head_linear(low, self.up)
        mixed = {
            one: x + change * graph.add_weight(graph.slice(shares, 1, i, i + 1).merge_heads(), self.lerps[one])
            for i, one in enumerate(MIXED)
        }
        k, v = (
            graph.repeat_heads(y.heads(config.n_kv_head), config.n_head // config.n_kv_head)
            for y in (self.k(mixed["k"]), self.v(mixed["v"]))
        )
        decay = graph.add_weight(self.decay_up(graph.tanh(self.decay_down(mixed["w"]))), self.decay)
        decay = (graph.exp(decay) * -1.0).heads(config.n_head)
        k = k + k * graph.exp(decay) * -1.0
        none = k * 0.0  # RWKV-7's rule without its second term reads the state after the token's own row
        y = graph.wkv7(
            self.r(mixed["r"]).heads(config.n_head), decay, k, v, none, none, layer=self.layer, state=1
        )  # fmt: skip
        return self.o(y.merge_heads() * config.size**-0.5 * graph.sigmoid(self.g(mixed["g"])))


class Block:
    def __init__(self, config: Sizes, weights: Weights, layer: int) -> None:
        self.norms = [weights.norm(name, config.dim, config.eps) for name in ("attn_norm", "ffn_norm")]
        self.time, self.mlp = TimeMix(config, weights, layer), GatedMLP(weights, config.dim, config.ffn_dim)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.time(self.norms[0](x), step)
        return x + self.mlp(self.norms[1](x))


class Rwkv6Qwen2:
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        self.config = config = Sizes.read_file(keys, n_vocab)
        self.blocks = [Block(config, block, i) for i, block in enumerate(weights.blocks(config.n_layer))]
        self.embedding = weights.embedding("token_embd", n_vocab, config.dim)
        self.norm = weights.norm("output_norm", config.dim, config.eps)
        self.head = weights.linear("output", config.dim, n_vocab)

    def cache(self) -> Sequence[CacheSpec]:
        config = self.config
        return [CacheSpec(states=[("time_shift", config.dim), ("wkv", config.dim * config.size)])] * config.n_layer

    def __call__(self, step: Step) -> Tensor:
        x = step.run_layers(self.blocks, self.embedding(step.tokens))
        return self.head(self.norm(select_rows(x, step.logit_rows)))


MODEL = Rwkv6Qwen2

# --- checkpoint ---

_ORDER = [3, 1, 2, 0, 4]  # from r, k, v, w, g, as in checkpoints, to MIXED


def _down(x: Array, config: Fields) -> Array:
    """Return ``[5 * rank, dim]`` in the order of ``MIXED``."""
    parts: Array = x.T.reshape(len(MIXED), -1, x.shape[0])[_ORDER].reshape(-1, x.shape[0])
    return parts


def _up(x: Array, config: Fields) -> Array:
    parts: Array = x[_ORDER].swapaxes(1, 2).copy()
    return parts


def _turned(x: Array, config: Fields) -> Array:
    turned: Array = x.T.copy()
    return turned


_LINEARS = {"receptance": "q_proj", "key": "k_proj", "value": "v_proj", "gate": "gate", "output": "o_proj"}
_MIX = "model.layers.{i}.self_attn"
HF = {
    "RWKV6Qwen2ForCausalLM": Checkpoint(
        "rwkv6qwen2",
        {
            "context_length": computed("u32", lambda config: 2**20),
            "embedding_length": u32("hidden_size"),
            "block_count": u32("num_hidden_layers"),
            "feed_forward_length": u32("intermediate_size"),
            "attention.head_count": computed("u32", lambda config: 0),
            "attention.head_count_kv": u32("num_key_value_heads", "num_attention_heads", low=1),
            "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-6),
            "wkv.head_size": computed(
                "u32", lambda config: config.integer("hidden_size") // config.integer("num_attention_heads", low=1)
            ),
            "time_mix_extra_dim": u32(
                "lora_rank_tokenshift", default=lambda config: 64 if config.integer("hidden_size") >= 4096 else 32
            ),
            "time_decay_extra_dim": u32(
                "lora_rank_decay", default=lambda config: 128 if config.integer("hidden_size") >= 4096 else 64
            ),
            "token_shift_count": computed("u32", lambda config: 1),
        },
        {
            **{ours: theirs for ours, theirs in DECODER_TENSORS.items() if ".attn_" not in ours or "norm" in ours},
            "blk.{i}.time_mix_w1.weight": tensor(f"{_MIX}.time_maa_w1", change=_down),
            "blk.{i}.time_mix_w2.weight": tensor(f"{_MIX}.time_maa_w2", change=_up),
            "blk.{i}.time_mix_lerp_x.weight": tensor(f"{_MIX}.time_maa_x", change=flat),
            "blk.{i}.time_mix_lerp_fused.weight": tensor(*(f"{_MIX}.time_maa_{x}" for x in MIXED), change=lerps),
            "blk.{i}.time_mix_decay.weight": tensor(f"{_MIX}.time_decay", change=flat),
            **{
                f"blk.{{i}}.time_mix_decay_w{n}.weight": tensor(f"{_MIX}.time_decay_w{n}", change=_turned)
                for n in (1, 2)
            },
            **{f"blk.{{i}}.time_mix_{ours}": f"{_MIX}.{theirs}" for ours, theirs in _LINEARS.items()},
        },
        fixed={"hidden_act": SILU, "use_rope": (False, None)},
        rope=None,
        unused=(
            "attention_bias",
            "rope_*",
            "max_position_embeddings",
            "sliding_window",
            "use_sliding_window",
            "max_window_layers",
        ),
    )
}
