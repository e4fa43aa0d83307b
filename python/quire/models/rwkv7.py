"""RWKV-7 (Peng et al. 2025): a state for each head with a generalized delta rule, token shift."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .._native import graph
from ..checkpoints.mapping import Array, Checkpoint, Fields, f32, tensor, u32
from ..errors import LoadError, UnsupportedError
from ..nn import CacheSpec, Keys, Linear, Step, Tensor, Weight, Weights, select_rows
from .base import MAX_DIM, Config, Layer

ARCHES = ("rwkv7",)
MIXED = "rwkvag"  # the projections whose input is mixed with the previous token; the order of time_mix_lerp_fused
FASTEST = -0.6065306597126334  # the lowest logarithm of a decay: -exp(-1/2)
HEAD_EPS = 64e-5  # the epsilon of head norms
RANKS = {"w": "decay", "a": "iclr", "v": "value_residual_mix", "g": "gate"}


@dataclass(frozen=True)
class HeadSizes(Config):
    """Sizes that RWKV-6 shares."""

    size: int  # the size of a head
    ffn_dim: int
    eps: float

    @property
    def n_head(self) -> int:
        return self.dim // self.size

    @property
    def widest(self) -> int:
        return max(self.ffn_dim, self.dim)

    @classmethod
    def read_heads(cls, keys: Keys, n_vocab: int) -> HeadSizes:
        base = Config.read(keys, n_vocab)
        keys.only("attention.head_count", 0)
        keys.only("token_shift_count", 2)
        keys.only("attention.causal", True)
        size, eps = keys.integer("wkv.head_size", low=1, high=256), keys.number("attention.layer_norm_epsilon")
        if base.dim % size or not 0 < eps < 1:
            raise LoadError(
                f"[{keys.arch}] embedding_length {base.dim} does not split into heads of {size}, or norm epsilon {eps} "
                f"is out of range"
            )
        ffn_dim = keys.same("feed_forward_length", base.n_layer, low=1, high=MAX_DIM)
        return HeadSizes(**vars(base), size=size, ffn_dim=ffn_dim, eps=eps)


@dataclass(frozen=True)
class Sizes(HeadSizes):
    ranks: dict[str, int]

    @classmethod
    def read_file(cls, keys: Keys, n_vocab: int) -> Sizes:
        ranks = {one: keys.integer(f"attention.{name}_lora_rank", low=1, high=MAX_DIM) for one, name in RANKS.items()}
        return cls(**vars(cls.read_heads(keys, n_vocab)), ranks=ranks)


class LowRank:
    """A low-rank projection, ``w0 + w2 activation(w1 x)``; the gate's has no ``w0``."""

    def __init__(self, config: Sizes, weights: Weights, one: str) -> None:
        rank, names = config.ranks[one], [f"time_mix_{one}{i}" for i in range(3)]
        self.start = weights.tensor(f"{names[0]}.weight", (config.dim,), vector=True) if one != "g" else None
        self.down, self.up = weights.linear(names[1], config.dim, rank), weights.linear(names[2], rank, config.dim)
        activations: dict[str, Layer] = {"w": graph.tanh, "g": graph.sigmoid}
        self.activation = activations.get(one)

    def __call__(self, x: Tensor) -> Tensor:
        y = self.down(x)
        y = self.up(self.activation(y) if self.activation else y)
        return y if self.start is None else graph.add_weight(y, self.start)


@dataclass
class First:
    """The first layer's values, which later layers mix with their own."""

    values: list[Tensor] = field(default_factory=list)


class TimeMix:
    def __init__(self, config: Sizes, weights: Weights, layer: int, first: First) -> None:
        self.config, self.layer, self.first = config, layer, first
        n = len(config.ranks) + 2  # without a gate, nothing is mixed for it
        lerps = weights.numbers("time_mix_lerp_fused.weight", (n, 1, 1, config.dim)).reshape(n, config.dim)
        self.lerps = {one: weights.computed(f"time_mix_lerp_{one}", lerps[i]) for i, one in enumerate(MIXED[:n])}
        names = {"r": "receptance", "k": "key", "v": "value", "o": "output"}
        self.linears: dict[str, Linear] = {
            one: weights.linear(f"time_mix_{name}", config.dim, config.dim) for one, name in names.items()
        }
        self.lows = {one: LowRank(config, weights, one) for one in config.ranks if layer > 0 or one != "v"}
        if layer == 0:
            weights.ignore("time_mix_v[012].weight", "the first layer's values are not mixed with others")
        self.k_k, self.k_a = (
            weights.tensor(f"time_mix_{one}.weight", (config.dim,), vector=True) for one in ("k_k", "k_a")
        )
        r_k = weights.numbers("time_mix_r_k.weight", (config.dim,)).reshape(config.n_head, 1, config.size)
        self.r_k = weights.computed("time_mix_r_k_heads", r_k)
        self.ln = self.head_norm(weights, config.dim)

    def head_norm(self, weights: Weights, dim: int) -> tuple[Weight, Weight] | None:
        """Return weight and bias of the norm of heads."""
        weight, bias = (weights.tensor(f"time_mix_ln.{one}", (dim,), vector=True) for one in ("weight", "bias"))
        return weight, bias

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        config = self.config
        change = graph.token_shift(x, layer=self.layer, state=0) + x * -1.0
        mixed = {one: x + graph.multiply_weight(change, lerp) for one, lerp in self.lerps.items()}
        r, k, v = (self.linears[one](mixed[one]) for one in "rkv")
        low = {one: made(mixed[one]) for one, made in self.lows.items()}
        decay, rate = graph.sigmoid(low["w"]) * FASTEST, graph.sigmoid(low["a"])
        if self.layer == 0:
            self.first.values = [v]
        else:
            v = v + (self.first.values[0] + v * -1.0) * graph.sigmoid(low["v"])
        unit = graph.l2_norm(graph.multiply_weight(k, self.k_k).heads(config.n_head), 1e-12)
        part = graph.multiply_weight(k, self.k_a)
        k = k + rate * part + part * -1.0
        r, k, v, decay, rate = (y.heads(config.n_head) for y in (r, k, v, decay, rate))
        y = graph.wkv7(r, decay, k, v, unit * -1.0, unit * rate, layer=self.layer, state=1)
        if self.ln is None:
            y = y.merge_heads()
        else:
            y = graph.layer_norm(y, None, None, HEAD_EPS).merge_heads()
            y = graph.add_weight(graph.multiply_weight(y, self.ln[0]), self.ln[1])
        y = y + graph.multiply_broadcast(v, graph.head_linear(k * r, self.r_k)).merge_heads()
        return self.linears["o"](y * low["g"] if "g" in low else y)


class ChannelMix:
    def __init__(self, config: Sizes, weights: Weights, layer: int) -> None:
        self.layer, self.lerp = layer, weights.tensor("channel_mix_lerp_k.weight", (config.dim,), vector=True)
        self.key = weights.linear("channel_mix_key", config.dim, config.ffn_dim)
        self.value = weights.linear("channel_mix_value", config.ffn_dim, config.dim)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        change = graph.token_shift(x, layer=self.layer, state=2) + x * -1.0
        return self.value(graph.relu_squared(self.key(x + graph.multiply_weight(change, self.lerp))))


class Block:
    def __init__(self, config: Sizes, weights: Weights, layer: int, first: First) -> None:
        self.norms = [weights.layer_norm(name, config.dim, config.eps) for name in ("attn_norm", "attn_norm_2")]
        self.time, self.channel = TimeMix(config, weights, layer, first), ChannelMix(config, weights, layer)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.time(self.norms[0](x), step)
        return x + self.channel(self.norms[1](x), step)


class Rwkv:
    """The parts of RWKV-6 and RWKV-7 outside the blocks: embedding, norms, output, cache."""

    def __init__(
        self, config: HeadSizes, weights: Weights, n_vocab: int, blocks: Sequence[Callable[[Tensor, Step], Tensor]]
    ) -> None:
        self.config, self.blocks = config, blocks
        self.embedding = weights.embedding("token_embd", n_vocab, config.dim)
        self.first_norm, self.norm = (
            weights.layer_norm(name, config.dim, config.eps) for name in ("token_embd_norm", "output_norm")
        )
        self.head = weights.linear("output", config.dim, n_vocab)

    def cache(self) -> Sequence[CacheSpec]:
        config = self.config
        states = [("time_shift", config.dim), ("wkv", config.dim * config.size), ("channel_shift", config.dim)]
        return [CacheSpec(states=states)] * config.n_layer

    def __call__(self, step: Step) -> Tensor:
        x = step.run_layers(self.blocks, self.first_norm(self.embedding(step.tokens)))
        return self.head(self.norm(select_rows(x, step.logit_rows)))


class Rwkv7(Rwkv):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config, first = Sizes.read_file(keys, n_vocab), First()
        blocks = [Block(config, block, i, first) for i, block in enumerate(weights.blocks(config.n_layer))]
        super().__init__(config, weights, n_vocab, blocks)


def lerps(x: Array, config: Fields) -> Array:
    return x.reshape(1, 1, 1, -1)


MODEL = Rwkv7

# --- checkpoint ---


def _epsilons_agree(config: Fields) -> None:
    """Check the epsilon of the head norms, for which files have no key."""
    eps = config.integer("head_dim", 64, low=1) * config.number("norm_eps", 1e-5)
    if abs(eps - HEAD_EPS) > 1e-9:
        raise UnsupportedError(f"[convert] unsupported 'head_dim' * 'norm_eps': {eps} (expected {HEAD_EPS})")


def flat(x: Array, config: Fields) -> Array:
    return x.reshape(-1)


_LAYER = "model.layers.{i}"
_ATTENTION = f"{_LAYER}.attn"
_LOW = {
    f"blk.{{i}}.time_mix_{one}{i}.weight": f"{_ATTENTION}.{one}_lora.lora.{part}"
    for one in "wavg"
    for i, part in enumerate(("2.bias", "0.weight", "2.weight"))
    if (one, i) != ("g", 0)
}
HF = {
    "RWKV7ForCausalLM": Checkpoint(
        "rwkv7",
        {
            "context_length": u32("max_position_embeddings", default=2048),
            "embedding_length": u32("hidden_size"),
            "block_count": u32("num_hidden_layers"),
            "feed_forward_length": u32("intermediate_size"),
            "attention.layer_norm_epsilon": f32("norm_eps", default=1e-5),
            "wkv.head_size": u32("head_dim", default=64, low=1),
            **{
                f"attention.{RANKS[one]}_lora_rank": u32(f"{theirs}_low_rank_dim")
                for one, theirs in (("w", "decay"), ("a", "a"), ("v", "v"), ("g", "gate"))
            },
        },
        {
            "token_embd": "model.embeddings",
            "token_embd_norm": "model.layers.0.pre_norm",
            "output_norm": "model.norm",
            "output": "lm_head",
            "blk.{i}.attn_norm": f"{_LAYER}.attn_norm",
            "blk.{i}.attn_norm_2": f"{_LAYER}.ffn_norm",
            "blk.{i}.time_mix_lerp_fused.weight": tensor(*(f"{_ATTENTION}.x_{one}" for one in MIXED), change=lerps),
            **{
                f"blk.{{i}}.time_mix_{ours}": f"{_ATTENTION}.{theirs}_proj"
                for ours, theirs in (("receptance", "r"), ("key", "k"), ("value", "v"), ("output", "o"))
            },
            **_LOW,
            # llama.cpp requires them in the first layer too, where they have no effect.
            **{
                f"blk.0.time_mix_v{i}.weight": f"model.layers.0.attn.a_lora.lora.{part}"
                for i, part in enumerate(("2.bias", "0.weight", "2.weight"))
            },
            **{
                f"blk.{{i}}.time_mix_{one}.weight": tensor(f"{_ATTENTION}.{one}", change=flat)
                for one in ("k_k", "k_a", "r_k")
            },
            "blk.{i}.time_mix_ln": f"{_ATTENTION}.g_norm",
            "blk.{i}.channel_mix_lerp_k.weight": tensor(f"{_LAYER}.ffn.x_k", change=flat),
            "blk.{i}.channel_mix_key": f"{_LAYER}.ffn.key",
            "blk.{i}.channel_mix_value": f"{_LAYER}.ffn.value",
        },
        fixed={
            "hidden_act": ("sqrelu",),
            "tie_word_embeddings": (False,),
            "norm_bias": (True,),
            "norm_first": (True,),
            "attn": (None,),
        },
        checks=(_epsilons_agree,),
        rope=None,
        unused=("attn_mode", "hidden_ratio", "num_heads", "value_dim", "fuse_*", "use_l2warp"),
    )
}
