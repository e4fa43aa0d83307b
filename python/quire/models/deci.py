"""DeciLM and Llama Nemotron (Bercovich et al. 2024): Llama with different layers, some without attention or MLP."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..checkpoints.mapping import SILU, Array, Checkpoint, Fields, computed, interleaved, no_windows, tensor
from ..errors import LoadError, UnsupportedError
from ..nn import CacheSpec, GatedMLP, Keys, Linear, RopeSpec, Step, Tensor, Weights, frequency_factors, rope_spec
from . import llama
from .base import MAX_DIM, MAX_HEAD_DIM, MAX_HEADS, Config, Decoder, DenseConfig

ARCHES = ("deci",)


class Block:
    """Attention, a linear layer in its place, or neither; then an MLP or none."""

    def __init__(self, config: DenseConfig, weights: Weights, layer: int, rotation: RopeSpec, *, attends: bool) -> None:
        self.attention: llama.Attention | None = None
        self.product: Linear | None = None
        if attends:
            self.attention = llama.Attention(config, weights, layer, rotation)
        elif config.n_head:
            self.product = weights.linear("attn_output", config.dim, config.dim)
        self.attn_norm = weights.norm("attn_norm", config.dim, config.eps) if config.n_head else None
        self.mlp = GatedMLP(weights, config.dim, config.ffn_dim) if config.ffn_dim else None
        self.ffn_norm = weights.norm("ffn_norm", config.dim, config.eps) if config.ffn_dim else None

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        if self.attn_norm and self.attention:
            x = x + self.attention(self.attn_norm(x), step)
        elif self.attn_norm and self.product:
            x = x + self.product(self.attn_norm(x))
        return x + self.mlp(self.ffn_norm(x)) if self.ffn_norm and self.mlp else x


class Deci(Decoder):
    """Files store q and k interleaved, as for Llama."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        base = Config.read(keys, n_vocab)
        keys.only("attention.causal", True)
        n = base.n_layer
        n_heads = keys.integers("attention.head_count", n, high=MAX_HEADS)
        n_kv_heads = keys.integers("attention.head_count_kv", n, high=MAX_HEADS)
        ffn_dims = keys.integers("feed_forward_length", n, high=MAX_DIM)
        most = max(n_heads)
        head_dim = keys.integer("attention.key_length", base.dim // max(most, 1), low=1, high=MAX_HEAD_DIM)
        widest = DenseConfig(
            **vars(base),
            n_head=max(most, 1),
            n_kv_head=1,
            head_dim=head_dim,
            v_head_dim=keys.integer("attention.value_length", head_dim, low=1, high=MAX_HEAD_DIM),
            n_rot=keys.integer("rope.dimension_count", head_dim, low=2, high=head_dim),
            ffn_dim=max(ffn_dims),
            eps=keys.number("attention.layer_norm_rms_epsilon"),
        )
        widest.check()
        rotation = rope_spec(
            keys, n_dims=widest.n_rot, layout="interleaved", factors=frequency_factors(weights, widest.n_rot)
        )
        blocks: list[Block] = []
        self.specs: list[CacheSpec] = []
        for i, block in enumerate(weights.blocks(n)):
            attends = n_heads[i] > 0 and n_kv_heads[i] > 0
            config = replace(widest, n_head=n_heads[i], n_kv_head=max(n_kv_heads[i], 1), ffn_dim=ffn_dims[i])
            if n_kv_heads[i] > n_heads[i] or (attends and config.n_head % config.n_kv_head):
                raise LoadError(
                    f"[deci] head_count {n_heads[i]} of layer {i} is not divisible by head_count_kv {n_kv_heads[i]}"
                )
            blocks.append(Block(config, block, i, rotation, attends=attends))
            self.specs.append(replace(config, n_layer=1).cache()[0] if attends else CacheSpec())
        if all(spec.n_kv_head == 0 for spec in self.specs):
            raise LoadError("[deci] no layer has attention")
        super().__init__(widest, weights, blocks)

    def cache(self) -> list[CacheSpec]:
        return self.specs


MODEL = Deci

# --- checkpoint ---

STEP = 256  # MLP widths are rounded up to a multiple of this


def _parts(config: Fields, name: str) -> Iterator[Fields]:
    """Iterate over the layers' ``attention`` or ``ffn`` entries in ``block_configs``."""
    layers = config.items("block_configs")
    if len(layers) != config.integer("num_hidden_layers"):
        raise UnsupportedError(f"[convert] 'block_configs' has {len(layers)} entries: expected one for each layer")
    for i, layer in enumerate(layers):
        if not isinstance(layer, dict):
            raise UnsupportedError(f"[convert] entry {i} of 'block_configs' is not an object")
        part = Fields(f"'block_configs' of layer {i}", layer).inner(name)
        for other in (
            "sparsify",
            "window_length",
            "unshifted_sink",
            "num_sink_tokens",
            "use_prefill_window_in_sink_attention",
        ):
            if part.value(other) not in (None, False):
                raise UnsupportedError(f"[convert] unsupported '{other}' in 'block_configs': {part.value(other)}")
        yield part


def _n_heads(config: Fields) -> Sequence[int] | None:
    n = config.integer("num_attention_heads", low=1)
    if not config.has("block_configs"):
        return [n] * config.integer("num_hidden_layers")
    return [
        n if part.has("n_heads_in_group") or part.flag("replace_with_linear", False) else 0
        for part in _attentions(config)
    ]


def _attentions(config: Fields) -> Iterator[Fields]:
    for part in _parts(config, "attention"):
        is_off = part.flag("no_op", False) or part.flag("replace_with_linear", False)
        if is_off == part.has("n_heads_in_group"):
            raise UnsupportedError(
                "[convert] 'n_heads_in_group' in 'block_configs' contradicts 'no_op' and 'replace_with_linear'"
            )
        yield part


def _n_kv_heads(config: Fields) -> Sequence[int]:
    n, n_layer = config.integer("num_attention_heads", low=1), config.integer("num_hidden_layers")
    if config.has("block_configs"):
        config.read(("num_key_value_heads",))
        return [
            n // part.integer("n_heads_in_group", low=1) if part.has("n_heads_in_group") else 0
            for part in _attentions(config)
        ]
    if not config.has("num_key_value_heads_per_layer"):
        return [config.integer("num_key_value_heads", n, low=1)] * n_layer
    config.read(("num_key_value_heads",))
    return [value if isinstance(value, int) else 0 for value in config.items("num_key_value_heads_per_layer")]


def _ffn_dims(config: Fields) -> Sequence[int]:
    """Return the MLP widths: two thirds of ``ffn_mult`` times the model's width, rounded up."""
    if not config.has("block_configs"):
        return [config.integer("intermediate_size")] * config.integer("num_hidden_layers")
    config.read(("intermediate_size",))
    dims = []
    for part in _parts(config, "ffn"):
        if part.flag("replace_with_linear", False):
            raise UnsupportedError("[convert] unsupported 'replace_with_linear' for an MLP: true")
        if part.flag("no_op", False) == part.has("ffn_mult"):
            raise UnsupportedError("[convert] 'ffn_mult' in 'block_configs' contradicts 'no_op'")
        units = int(2 * part.number("ffn_mult", 0.0) * config.integer("hidden_size") / 3)
        dims.append(-(-units // STEP) * STEP)
    return dims


def _in_pairs(x: Array, config: Fields) -> Array:
    """Interleave rows: layers have different numbers of heads, but all heads have the same size."""
    n_head = x.shape[0] // llama.head_dim_of(config)
    return interleaved("n_head")(x, Fields("this tensor", {"n_head": n_head}))


_LAYER = "model.layers.{i}"
HF = {
    "DeciLMForCausalLM": Checkpoint(
        "deci",
        {
            **{
                name: key
                for name, key in llama.KEYS.items()
                if name not in ("attention.head_count", "attention.head_count_kv", "feed_forward_length")
            },
            "attention.head_count": computed("u32[]", _n_heads),
            "attention.head_count_kv": computed("u32[]", _n_kv_heads),
            "feed_forward_length": computed("u32[]", _ffn_dims),
        },
        {
            **llama.TENSORS,
            "blk.{i}.attn_q": tensor(f"{_LAYER}.self_attn.q_proj", change=_in_pairs),
            "blk.{i}.attn_k": tensor(f"{_LAYER}.self_attn.k_proj", change=_in_pairs),
            "blk.{i}.attn_output.weight": f"{_LAYER}.self_attn.linear_attn.weight",
        },
        fixed={"hidden_act": SILU},
        checks=(no_windows,),
        has_empty_layers=True,
        unused=("attention_bias", "mlp_bias", "num_key_value_heads_per_layer"),
    )
}
