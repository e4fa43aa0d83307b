"""ARWKV 7 (Yueyu et al. 2025): Qwen2 with RWKV-7's time mixing, with or without its gate, in place of attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..checkpoints.mapping import (
    DECODER_TENSORS,
    SILU,
    Array,
    Checkpoint,
    Fields,
    Key,
    Source,
    computed,
    f32,
    only_with,
    tensor,
    u32,
)
from ..errors import LoadError
from ..nn import CacheSpec, GatedMLP, Keys, Step, Tensor, Weight, Weights, select_rows
from . import rwkv7
from .base import MAX_DIM, Config
from .rwkv7 import MIXED, RANKS, First, Sizes, flat, lerps

ARCHES = ("arwkv7",)
RANK_OF = {"w": 64, "a": 64, "v": 32, "g": 128}  # checkpoints have no fields for them


def sizes_of(keys: Keys, n_vocab: int) -> Sizes:
    base = Config.read(keys, n_vocab)
    keys.only("attention.head_count", 0)
    keys.only("token_shift_count", 1)
    keys.only("attention.causal", True)
    size, eps = keys.integer("wkv.head_size", low=1, high=256), keys.number("attention.layer_norm_rms_epsilon")
    if base.dim % size or not 0 < eps < 1:
        raise LoadError(
            f"[arwkv7] embedding_length {base.dim} does not split into heads of {size}, or norm epsilon {eps} is out "
            f"of range"
        )
    ranks = {one: keys.integer(f"attention.{RANKS[one]}_lora_rank", low=1, high=MAX_DIM) for one in "wav"}
    if n := keys.integer(f"attention.{RANKS['g']}_lora_rank", 0, high=MAX_DIM):
        ranks["g"] = n
    ffn_dim = keys.same("feed_forward_length", base.n_layer, low=1, high=MAX_DIM)
    return Sizes(**vars(base), size=size, ffn_dim=ffn_dim, eps=eps, ranks=ranks)


class TimeMix(rwkv7.TimeMix):
    def head_norm(self, weights: Weights, dim: int) -> tuple[Weight, Weight] | None:
        return super().head_norm(weights, dim) if weights.has("time_mix_ln.weight") else None


class Block:
    def __init__(self, config: Sizes, weights: Weights, layer: int, first: First) -> None:
        self.norms = [weights.norm(name, config.dim, config.eps) for name in ("attn_norm", "ffn_norm")]
        self.time, self.mlp = TimeMix(config, weights, layer, first), GatedMLP(weights, config.dim, config.ffn_dim)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.time(self.norms[0](x), step)
        return x + self.mlp(self.norms[1](x))


class Arwkv7:
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        self.config = config = sizes_of(keys, n_vocab)
        first = First()
        self.blocks = [Block(config, block, i, first) for i, block in enumerate(weights.blocks(config.n_layer))]
        self.embedding = weights.embedding("token_embd", n_vocab, config.dim)
        self.norm = weights.norm("output_norm", config.dim, config.eps)
        self.head = weights.linear("output", config.dim, n_vocab)

    def cache(self) -> Sequence[CacheSpec]:
        config = self.config
        return [CacheSpec(states=[("time_shift", config.dim), ("wkv", config.dim * config.size)])] * config.n_layer

    def __call__(self, step: Step) -> Tensor:
        x = step.run_layers(self.blocks, self.embedding(step.tokens))
        return self.head(self.norm(select_rows(x, step.logit_rows)))


MODEL = Arwkv7

# --- checkpoint ---


def _turned(x: Array, config: Fields) -> Array:
    turned: Array = x.reshape(-1, x.shape[-1]).T.copy()
    return turned


_MIX = "model.layers.{i}.self_attn.time_mixer"
_LINEARS = ("receptance", "key", "value", "output")


class Hybrid(Checkpoint):
    """With a gate, six inputs are mixed, otherwise five."""

    def chosen(self, whole: Fields) -> Checkpoint:
        n = len(MIXED) if whole.flag("wkv_has_gate", False) else len(MIXED) - 1
        source = tensor(*(f"{_MIX}.x_{one}" for one in MIXED[:n]), change=lerps)
        return replace(self, tensors={**self.tensors, "blk.{i}.time_mix_lerp_fused.weight": source})


def _low_rank(one: str, layer: str = "{i}", source: str = "") -> dict[str, str | Source]:
    """Return the tensors of a low-rank projection, without the gate's missing start."""
    mix = _MIX.replace("{i}", layer)
    return {
        f"blk.{layer}.time_mix_{one}{i}.weight": tensor(
            f"{mix}.{source or one}{i}",
            change=only_with("wkv_has_gate", default=False, change=change) if one == "g" else change,
        )
        for i, change in enumerate((flat, _turned, _turned))
        if (one, i) != ("g", 0)
    }


def _rank(one: str) -> Key:
    return computed("u32", lambda config: RANK_OF[one])


HF = {
    "RwkvHybridForCausalLM": Hybrid(
        "arwkv7",
        {
            "context_length": computed("u32", lambda config: 2**20),
            "embedding_length": u32("hidden_size"),
            "block_count": u32("num_hidden_layers"),
            "feed_forward_length": u32("intermediate_size"),
            "attention.head_count": computed("u32", lambda config: 0),
            "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-6),
            "wkv.head_size": u32("head_size", default=64, low=1),
            **{f"attention.{RANKS[one]}_lora_rank": _rank(one) for one in "wav"},
            "attention.gate_lora_rank": computed(
                "u32", lambda config: RANK_OF["g"] if config.flag("wkv_has_gate", False) else 0
            ),
            "token_shift_count": computed("u32", lambda config: 1),
        },
        {
            **{ours: theirs for ours, theirs in DECODER_TENSORS.items() if ".attn_" not in ours or "norm" in ours},
            **{f"blk.{{i}}.time_mix_{one}": f"{_MIX}.{one}" for one in _LINEARS},
            **{ours: theirs for one in "wavg" for ours, theirs in _low_rank(one).items()},
            # llama.cpp requires them in the first layer too, where they have no effect.
            **{name.replace("time_mix_a", "time_mix_v"): source for name, source in _low_rank("a", "0").items()},
            **{
                f"blk.{{i}}.time_mix_{one}.weight": tensor(f"{_MIX}.{one}", change=flat)
                for one in ("k_k", "k_a", "r_k")
            },
            **{
                f"blk.{{i}}.time_mix_ln.{one}": tensor(
                    f"{_MIX}.ln_x.{one}", change=only_with("wkv_has_group_norm", default=True)
                )
                for one in ("weight", "bias")
            },
        },
        fixed={"hidden_act": SILU, "wkv_version": (7,), "wkv_layers": ("full", None), "wkv_has_shift": (True, None)},
        rope=None,
        unused=(
            "attention_bias",
            "head_size_divisor",
            "num_attention_heads",
            "num_key_value_heads",
            "num_wkv_heads",
            "rope_*",
            "max_position_embeddings",
            "max_window_layers",
            "sliding_window",
            "use_sliding_window",
        ),
        ignored=("model.layers.0.self_attn.time_mixer.v[012]",),
    )
}
