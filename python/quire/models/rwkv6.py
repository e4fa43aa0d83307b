"""RWKV-6 (Peng et al. 2024): a state for each head with data-dependent decay, token shift."""

from __future__ import annotations

from dataclasses import dataclass

from .._native import graph
from ..checkpoints.mapping import Array, Checkpoint, Fields, computed, f32, tensor, u32
from ..errors import UnsupportedError
from ..nn import Keys, Linear, Step, Tensor, Weight, Weights
from .base import MAX_DIM, MAX_LAYERS
from .rwkv7 import HEAD_EPS, HeadSizes, Rwkv, flat, lerps

ARCHES = ("rwkv6",)
MIXED = "wkvrg"  # the projections whose input is mixed with the previous token; the order of time_mix_lerp_fused


@dataclass(frozen=True)
class Sizes(HeadSizes):
    mix_rank: int
    decay_rank: int

    @classmethod
    def read_file(cls, keys: Keys, n_vocab: int) -> Sizes:
        mix_rank, decay_rank = (keys.integer(f"time_{one}_extra_dim", low=1, high=MAX_DIM) for one in ("mix", "decay"))
        return cls(**vars(cls.read_heads(keys, n_vocab)), mix_rank=mix_rank, decay_rank=decay_rank)


def vector(weights: Weights, name: str, dim: int) -> Weight:
    return weights.tensor(f"{name}.weight", (dim,), vector=True)


class TimeMix:
    def __init__(self, config: Sizes, weights: Weights, layer: int) -> None:
        self.config, self.layer, n = config, layer, len(MIXED)
        self.start = vector(weights, "time_mix_lerp_x", config.dim)
        self.down = weights.linear("time_mix_w1", config.dim, n * config.mix_rank)
        self.up = weights.tensor("time_mix_w2.weight", (n, config.dim, config.mix_rank))
        lerp = weights.numbers("time_mix_lerp_fused.weight", (n, 1, 1, config.dim)).reshape(n, config.dim)
        self.lerps = {one: weights.computed(f"time_mix_lerp_{one}", lerp[i]) for i, one in enumerate(MIXED)}
        names = {"k": "key", "v": "value", "r": "receptance", "g": "gate", "o": "output"}
        self.linears: dict[str, Linear] = {
            one: weights.linear(f"time_mix_{name}", config.dim, config.dim) for one, name in names.items()
        }
        self.decay = vector(weights, "time_mix_decay", config.dim)
        self.decay_down = weights.linear("time_mix_decay_w1", config.dim, config.decay_rank)
        self.decay_up = weights.linear("time_mix_decay_w2", config.decay_rank, config.dim)
        self.first = weights.tensor("time_mix_first.weight", (config.n_head, config.size), vector=True)
        self.ln = (
            vector(weights, "time_mix_ln", config.dim),
            weights.tensor("time_mix_ln.bias", (config.dim,), vector=True),
        )

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        config = self.config
        change = graph.token_shift(x, layer=self.layer, state=0) + x * -1.0
        low = graph.tanh(self.down(x + graph.multiply_weight(change, self.start))).heads(len(MIXED))
        shares = graph.head_linear(low, self.up)
        mixed = {}
        for i, one in enumerate(MIXED):
            share = graph.add_weight(graph.slice(shares, 1, i, i + 1).merge_heads(), self.lerps[one])
            mixed[one] = x + change * share
        r, k, v, g = (self.linears[one](mixed[one]) for one in "rkvg")
        decay = graph.add_weight(self.decay_up(graph.tanh(self.decay_down(mixed["w"]))), self.decay)
        r, decay, k, v = (y.heads(config.n_head) for y in (r, graph.exp(decay) * -1.0, k, v))
        y = graph.wkv6(r, decay, k, v, self.first, layer=self.layer, state=1)
        y = graph.layer_norm(y, None, None, HEAD_EPS).merge_heads()
        y = graph.add_weight(graph.multiply_weight(y, self.ln[0]), self.ln[1])
        return self.linears["o"](graph.glu(g, y, "silu"))


class ChannelMix:
    def __init__(self, config: Sizes, weights: Weights, layer: int) -> None:
        self.layer, name = layer, "channel_mix"
        self.lerp_k, self.lerp_r = (vector(weights, f"{name}_lerp_{one}", config.dim) for one in "kr")
        self.key = weights.linear(f"{name}_key", config.dim, config.ffn_dim)
        self.value = weights.linear(f"{name}_value", config.ffn_dim, config.dim)
        self.receptance = weights.linear(f"{name}_receptance", config.dim, config.dim)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        change = graph.token_shift(x, layer=self.layer, state=2) + x * -1.0
        k, r = (x + graph.multiply_weight(change, lerp) for lerp in (self.lerp_k, self.lerp_r))
        return graph.sigmoid(self.receptance(r)) * self.value(graph.relu_squared(self.key(k)))


class Block:
    """Time mixing and channel mixing.

    ``halves``: the output is halved, so that large models fit half precision; later layers' weights are scaled too.
    """

    def __init__(self, config: Sizes, weights: Weights, layer: int, *, halves: bool) -> None:
        self.norms = [weights.layer_norm(name, config.dim, config.eps) for name in ("attn_norm", "attn_norm_2")]
        self.time = TimeMix(config, weights, layer)
        self.channel = ChannelMix(config, weights, layer)
        self.halves = halves

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.time(self.norms[0](x), step)
        x = x + self.channel(self.norms[1](x), step)
        return x * 0.5 if self.halves else x


class Rwkv6(Rwkv):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config, period = Sizes.read_file(keys, n_vocab), keys.integer("rescale_every_n_layers", 0, high=MAX_LAYERS)
        blocks = [
            Block(config, block, i, halves=period > 0 and (i + 1) % period == 0)
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, n_vocab, blocks)


MODEL = Rwkv6

# --- checkpoint ---


def _size(config: Fields) -> int:
    """Return the size of a head, and check the epsilon of the head norms, for which files have no key."""
    size, divisor = config.integer("head_size", 64, low=1), config.integer("head_size_divisor", 8)
    eps = 1e-5 * divisor**2  # independent of the other norms
    if abs(eps - HEAD_EPS) > 1e-9:
        raise UnsupportedError(f"[convert] unsupported 'head_size_divisor': {divisor} (expected 8)")
    return size


def _mix_rank(config: Fields) -> int:
    return 64 if config.integer("hidden_size") == 4096 else 32


def _ffn_dim(config: Fields) -> int:
    return config.integer("intermediate_size", int(config.integer("hidden_size") * 3.5) // 32 * 32)


def _turned(x: Array, config: Fields) -> Array:
    import numpy as np

    return np.ascontiguousarray(x.swapaxes(-1, -2))


def _attention_size(config: Fields) -> None:
    n = config.integer("hidden_size")
    if (found := config.integer("attention_hidden_size", n)) != n:
        raise UnsupportedError(f"[convert] unsupported 'attention_hidden_size': {found} (expected {n})")


_BLOCK = "rwkv.blocks.{i}"
_ATTENTION, _FFN = f"{_BLOCK}.attention", f"{_BLOCK}.feed_forward"
HF = {
    "Rwkv6ForCausalLM": Checkpoint(
        "rwkv6",
        {
            "context_length": computed("u32", lambda config: 2**20),
            "embedding_length": u32("hidden_size"),
            "block_count": u32("num_hidden_layers"),
            "feed_forward_length": computed("u32", _ffn_dim),
            "attention.head_count": computed("u32", lambda config: 0),
            "attention.layer_norm_epsilon": f32("layer_norm_epsilon", default=1e-5),
            "wkv.head_size": computed("u32", _size),
            "time_mix_extra_dim": computed("u32", lambda config: 64 if config.integer("hidden_size") == 4096 else 32),
            "time_decay_extra_dim": computed(
                "u32", lambda config: 128 if config.integer("hidden_size") == 4096 else 64
            ),
        },
        {
            "token_embd": "rwkv.embeddings",
            "token_embd_norm": "rwkv.blocks.0.pre_ln",
            "output_norm": "rwkv.ln_out",
            "output": "head",
            "blk.{i}.attn_norm": f"{_BLOCK}.ln1",
            "blk.{i}.attn_norm_2": f"{_BLOCK}.ln2",
            "blk.{i}.time_mix_w1.weight": tensor(f"{_ATTENTION}.time_maa_w1", change=_turned),
            "blk.{i}.time_mix_w2.weight": tensor(f"{_ATTENTION}.time_maa_w2", change=_turned),
            "blk.{i}.time_mix_lerp_x.weight": tensor(f"{_ATTENTION}.time_maa_x", change=flat),
            "blk.{i}.time_mix_lerp_fused.weight": tensor(*(f"{_ATTENTION}.time_maa_{x}" for x in MIXED), change=lerps),
            "blk.{i}.time_mix_first.weight": f"{_ATTENTION}.time_faaaa",
            "blk.{i}.time_mix_decay.weight": tensor(f"{_ATTENTION}.time_decay", change=flat),
            **{
                f"blk.{{i}}.time_mix_decay_w{i}.weight": tensor(f"{_ATTENTION}.time_decay_w{i}", change=_turned)
                for i in (1, 2)
            },
            **{
                f"blk.{{i}}.time_mix_{name}": f"{_ATTENTION}.{name}"
                for name in ("key", "value", "receptance", "gate", "output")
            },
            "blk.{i}.time_mix_ln": f"{_ATTENTION}.ln_x",
            **{f"blk.{{i}}.channel_mix_lerp_{x}.weight": tensor(f"{_FFN}.time_maa_{x}", change=flat) for x in "kr"},
            **{f"blk.{{i}}.channel_mix_{name}": f"{_FFN}.{name}" for name in ("key", "value", "receptance")},
        },
        fixed={"tie_word_embeddings": (False,)},
        checks=(_attention_size,),
        rope=None,
        # Later layers are scaled down for half precision only; layer norms make the results equivalent.
        unused=("rescale_every", "num_attention_heads", "model_version"),
        base="rwkv.",
    )
}
