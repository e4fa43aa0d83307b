"""Granite Switch (IBM 2026): Granite with low-rank adapters inside, which a token of each one's own turns on.

A head of attention finds the adapter: keys of such tokens stand out, and values are the adapters' numbers.
"""

from __future__ import annotations

import numpy as np

from .._native import graph
from ..checkpoints.mapping import (
    DECODER_KEYS,
    SILU,
    Array,
    Change,
    Checkpoint,
    Fields,
    Key,
    Source,
    computed,
    f32,
    half,
    tensor,
    u32,
)
from ..errors import LoadError, UnsupportedError
from ..nn import CacheSpec, Keys, RopeSpec, Step, Tensor, Weights, frequency_factors, rope, rope_spec
from ..nn.layers import Linear
from . import granite
from .base import Decoder, DenseConfig
from .granite import MULTIPLIERS, Multipliers, ScaledBlock, no_zeros

ARCHES = ("graniteswitch",)
MAX_ADAPTERS, MAX_RANK = 127, 4096
# Scores of neighbouring adapters are so far apart that their softmax is 1 for one adapter, and 0 for the others, even
# where a mean lies halfway between two, which HALF_UP decides.
SHARPNESS, HALF_UP = 2e4, 4e-3


class Switch:
    """Which adapter each row of the step uses, as ones in ``mask [tokens, n * rank]``."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int, layer: int) -> None:
        self.n = n = keys.integer("adapters.count", low=1, high=MAX_ADAPTERS)
        self.rank, self.layer = keys.integer("adapters.lora_rank", low=1, high=MAX_RANK), layer
        gain = keys.number("adapters.router_gain", 15.0)
        self.tokens, self.stand_ins = (
            self._ids(keys, f"adapters.token_ids_{name}", n_vocab) for name in ("activate", "substitute")
        )
        if len(set(self.tokens)) != n:
            raise LoadError(f"[{keys.arch}] invalid adapters.token_ids_activate: a token is there twice")
        self.width = width = (n + 32) // 32 * 32
        kinds = np.zeros((n_vocab, width), np.float32)  # 0: other tokens; i: the token of adapter i
        kinds[:, 0] = 1
        for i, token in enumerate(self.tokens, 1):
            kinds[token, 0], kinds[token, i] = 0, 1
        self.kinds = weights.computed("adapters.kinds", kinds)
        queries, gains = np.zeros((2, width, width), np.float32)
        queries[0], gains[0] = 1, [-gain, *[gain] * (width - 1)]
        self.queries = Linear(weights.computed("adapters.queries", queries))
        self.keys = Linear(weights.computed("adapters.keys", gains))
        # A mean number m is nearest to the j with the largest 2 m j - j^2; halves are rounded up, as in llama.cpp.
        number = np.arange(n + 1, dtype=np.float32)
        means = np.pad(2 * SHARPNESS * np.outer(number, number), ((0, 0), (0, width - n - 1)))
        offsets = weights.computed("adapters.offsets", SHARPNESS * (2 * HALF_UP * number - number**2))
        self.nearest = Linear(weights.computed("adapters.numbers", means.astype(np.float32)), offsets)
        ranks = np.repeat(np.eye(n, n + 1, 1, dtype=np.float32), self.rank, axis=0)
        self.ranks = Linear(weights.computed("adapters.ranks", ranks))
        self.mask: Tensor | None = None

    def _ids(self, keys: Keys, name: str, n_vocab: int) -> list[int]:
        found = keys.some_integers(name, high=n_vocab - 1)
        if len(found) != self.n:
            raise LoadError(f"[{keys.arch}] {name} has {len(found)} tokens: expected {self.n}, one for each adapter")
        return found

    def embeds(self, weights: Weights, dim: int) -> None:
        """Take the rows that replace those of the adapters' tokens."""
        rows = np.zeros((dim, self.width), np.float32)
        rows[:, 1 : self.n + 1] = weights.values("token_embd.weight")[self.stand_ins].T
        self.rows = Linear(weights.computed("adapters.rows", rows))

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """Find the adapters of the step's rows; return their embeddings ``x`` without those of adapters' tokens."""
        kinds = graph.embed(step.tokens, self.kinds)
        q, k, v = (y.heads(1) for y in (self.queries(kinds), self.keys(kinds), kinds * 1.0))
        mean = step.attend(self.layer, q, k, v, scale=1.0)
        self.mask = self.ranks(graph.softmax(self.nearest(mean)))
        return graph.multiply_broadcast(x, graph.slice(kinds, 0, 0, 1)) + self.rows(kinds)

    def cache(self) -> CacheSpec:
        return CacheSpec(n_kv_head=1, head_dim=self.width)


class Switched:
    """A product with the low-rank matrices of the row's adapter."""

    def __init__(self, weights: Weights, name: str, linear: Linear, sizes: tuple[int, int], switch: Switch) -> None:
        self.linear, self.switch = linear, switch
        (n_in, n_out), n, rank = sizes, switch.n, switch.rank
        # Those of adapter 0, none, are zeros.
        a = weights.dequantized(f"{name}.lora_a", (n + 1, rank, n_in))[1:].reshape(n * rank, n_in)
        b = weights.dequantized(f"{name}.lora_b", (n + 1, n_out, rank))[1:].swapaxes(0, 1).reshape(n_out, n * rank)
        self.a, self.b = (Linear(weights.computed(f"{name}.lora_{x}", y)) for x, y in (("a", a), ("b", b)))

    def __call__(self, x: Tensor) -> Tensor:
        assert self.switch.mask is not None
        return self.linear(x) + self.b(self.a(x) * self.switch.mask)


class Attention:
    def __init__(
        self, config: DenseConfig, weights: Weights, layer: int, rotation: RopeSpec, *, scale: float, switch: Switch
    ) -> None:
        self.layer, self.n_head, self.n_kv_head = layer, config.n_head, config.n_kv_head
        self.scale, self.rotation = scale or config.head_dim**-0.5, rotation
        n_q, n_kv = config.n_head * config.head_dim, config.n_kv_head * config.head_dim
        whole = weights.linears("attn_qkv", config.dim, [n_q, n_kv, n_kv])
        self.q, self.k, self.v = (
            Switched(weights, f"attn_{x}", linear, (config.dim, n), switch)
            for x, linear, n in zip("qkv", whole, (n_q, n_kv, n_kv), strict=True)
        )
        o = weights.linear("attn_output", n_q, config.dim)
        self.o = Switched(weights, "attn_output", o, (n_q, config.dim), switch)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q = rope(self.q(x).heads(self.n_head), step.positions, self.rotation)
        k = rope(self.k(x).heads(self.n_kv_head), step.positions, self.rotation)
        return self.o(step.attend(self.layer, q, k, self.v(x).heads(self.n_kv_head), scale=self.scale))


class MLP:
    def __init__(self, config: DenseConfig, weights: Weights, switch: Switch) -> None:
        def switched(name: str, n_in: int, n_out: int) -> Switched:
            return Switched(weights, name, weights.linear(name, n_in, n_out), (n_in, n_out), switch)

        self.gate, self.up = (switched(f"ffn_{x}", config.dim, config.ffn_dim) for x in ("gate", "up"))
        self.down = switched("ffn_down", config.ffn_dim, config.dim)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(graph.glu(self.gate(x), self.up(x), "silu"))


class GraniteSwitch(Decoder):
    """A multiplier of 0 means the default.  Files store q and k interleaved, as for Llama."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        keys.only("expert_count", 0)
        keys.without_effect("expert_used_count", "expert_shared_feed_forward_length")
        keys.only("rope.scaling.finetuned", True)
        self.scales: Multipliers = granite.Granite.multipliers(keys, config)
        if self.scales.logit == 0:
            raise LoadError(f"[{keys.arch}] invalid logit_scale: 0")
        rotation = rope_spec(
            keys, n_dims=config.n_rot, layout="interleaved", factors=frequency_factors(weights, config.n_rot)
        )
        self.switch = switch = Switch(keys, weights, n_vocab, config.n_layer)
        blocks = [
            ScaledBlock(
                config,
                block,
                Attention(config, block, i, rotation, scale=self.scales.attention, switch=switch),
                MLP(config, block, switch),
                self.scales.residual,
            )
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)
        switch.embeds(weights, config.dim)

    def cache(self) -> list[CacheSpec]:
        return [*super().cache(), self.switch.cache()]

    def __call__(self, step: Step) -> Tensor:
        x = self.switch(self.embedding(step.tokens), step)
        return self.logits(x * self.scales.embedding, step) * (1.0 / self.scales.logit)


MODEL = GraniteSwitch

# --- checkpoint ---


def head_dim(config: Fields) -> int:
    size = config.integer("hidden_size") // config.integer("num_attention_heads", low=1)
    return config.integer("projection_head_dim", config.integer("head_dim", size), low=1)


def _n_layer(config: Fields) -> int:
    """Return the number of layers; the configuration counts the switch as one more."""
    return config.integer("num_hidden_layers", low=2) - 1


def _paired(x: Array, n_head: int) -> Array:
    """Reorder the rows of each head from halves to pairs."""
    split = x.reshape(n_head, 2, -1, x.shape[-1])
    return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(x.shape)


def _n_heads(config: Fields) -> tuple[int, int]:
    n = config.integer("num_attention_heads", low=1)
    return n, config.integer("num_key_value_heads", n, low=1)


def _qkv(x: Array, config: Fields) -> Array:
    n, n_kv = _n_heads(config)
    size = len(x) // (n + 2 * n_kv)
    q, k, v = np.split(x, [n * size, (n + n_kv) * size])
    return np.concatenate([_paired(q, n), _paired(k, n_kv), v])


def _with_none(x: Array) -> Array:
    """Put the matrices of adapter 0 before the others' ``[n, 1, rows, columns]``."""
    x = x.reshape(x.shape[0], *x.shape[-2:])
    return np.concatenate([np.zeros_like(x[:1]), x])


def _slots(x: Array, config: Fields) -> Array:
    return _with_none(x)


def _head_rows(which: int) -> Change:
    """Reorder the rows of q's (0) or k's (1) heads in the matrices of each adapter."""

    def change(x: Array, config: Fields) -> Array:
        found = _with_none(x)
        return np.stack([_paired(one, _n_heads(config)[which]) for one in found])

    return change


def _dense(config: Fields) -> None:
    if config.integer("num_local_experts", 0):
        raise UnsupportedError("[convert] unsupported 'num_local_experts': expected 0")
    if others := {*config.items("layer_types")} - {"attention", "full_attention"}:
        raise UnsupportedError(f"[convert] unsupported 'layer_types': {sorted(map(str, others))}")


_LAYER = "model.layers.{i}"
_QKV, _O = f"{_LAYER}.self_attn.qkv_proj", f"{_LAYER}.self_attn.o_proj"
_IN, _OUT = f"{_LAYER}.shared_mlp.input_linear", f"{_LAYER}.shared_mlp.output_linear"


def _low_rank(name: str, source: str, part: int | None, change: Change = _slots) -> dict[str, Source]:
    a_name, b_name = (f"{source}.lora_{x}{'' if part is None else f'_slices.{part}'}" for x in "AB")
    return {
        f"blk.{{i}}.{name}.lora_a": tensor(a_name, change=_slots),
        f"blk.{{i}}.{name}.lora_b": tensor(b_name, change=change),
    }


def _tokens(name: str) -> Key:
    def read(config: Fields) -> list[int]:
        return [int(str(token)) for token in config.items(name)]

    return computed("i32[]", read)


HF = {
    "GraniteSwitchForCausalLM": Checkpoint(
        "graniteswitch",
        {
            **DECODER_KEYS,
            **MULTIPLIERS,
            "block_count": computed("u32", _n_layer),
            "feed_forward_length": u32("shared_intermediate_size", default=1024),
            "attention.key_length": computed("u32", head_dim),
            "attention.value_length": computed("u32", head_dim),
            "rope.dimension_count": computed("u32", head_dim),
            "adapters.count": u32("num_adapters"),
            "adapters.lora_rank": u32("max_lora_rank", default=8),
            "adapters.token_ids_activate": _tokens("adapter_token_ids"),
            "adapters.token_ids_substitute": _tokens("adapter_substitute_token_ids"),
            "adapters.router_gain": f32("control_token_gain", default=15.0),
        },
        {
            "token_embd": "model.embed_tokens",
            "output_norm": "model.norm",
            "output": "lm_head",
            "blk.{i}.attn_norm": f"{_LAYER}.input_layernorm",
            "blk.{i}.ffn_norm": f"{_LAYER}.post_attention_layernorm",
            "blk.{i}.attn_qkv": tensor(f"{_QKV}.base_layer", change=_qkv),
            **_low_rank("attn_q", _QKV, 0, _head_rows(0)),
            **_low_rank("attn_k", _QKV, 1, _head_rows(1)),
            **_low_rank("attn_v", _QKV, 2),
            "blk.{i}.attn_output": f"{_O}.base_layer",
            **_low_rank("attn_output", _O, None),
            "blk.{i}.ffn_gate": tensor(f"{_IN}.base_layer", change=half(0)),
            "blk.{i}.ffn_up": tensor(f"{_IN}.base_layer", change=half(1)),
            **_low_rank("ffn_gate", _IN, 0),
            **_low_rank("ffn_up", _IN, 1),
            "blk.{i}.ffn_down": f"{_OUT}.base_layer",
            **_low_rank("ffn_down", _OUT, None),
        },
        fixed={"hidden_act": SILU, "attention_bias": (False,), "switch_type": ("single",), "asr_enabled": (False,)},
        checks=(_dense, no_zeros),
        ignored=("*.switch.*", "*adapter_token_ids", "*control_to_substitute_lut"),
        tied=True,
        unused=(
            "adapter_names",
            "adapter_ranks",
            "lora_target_modules",
            "switch_head_dim",
            "fused_add_norm",
            "mamba_*",
            "intermediate_size",
            "num_experts_per_tok",
            "adapter_third_party",
        ),
    ),
}
