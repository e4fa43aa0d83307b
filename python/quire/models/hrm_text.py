"""HRM-Text (Sapient Intelligence 2026): two stacks of gated layers that run in turns, a fast and a slow one.

Attention is causal, as in transformers without token types and in llama.cpp; ``prefix_lm`` has no effect.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from .._native.graph import add_weight, sigmoid
from ..checkpoints.mapping import (
    DECODER_KEYS,
    SILU,
    Checkpoint,
    Entry,
    Fields,
    Source,
    computed,
    half,
    rows,
    tensor,
    u32,
)
from ..checkpoints.mapping.tensors import Target
from ..errors import LoadError
from ..nn import CacheSpec, GatedMLP, Keys, RopeSpec, Step, Tensor, Weights, rope, rope_spec, select_rows, unit_norm
from .base import MAX_LAYERS, DenseConfig, head

ARCHES = ("hrm_text",)


class Block:
    """Attention, whose output is gated, and MLP, each after a norm without weights."""

    def __init__(self, config: DenseConfig, weights: Weights, rotation: RopeSpec) -> None:
        self.n_head, self.scale, self.rotation, self.eps = config.n_head, config.head_dim**-0.5, rotation, config.eps
        n = config.n_head * config.head_dim
        self.q, self.k, self.v, self.gate = (
            weights.linear(name, config.dim, n) for name in ("attn_q", "attn_k", "attn_v", "attn_gate")
        )
        self.o = weights.linear("attn_output", n, config.dim)
        self.mlp = GatedMLP(weights, config.dim, config.ffn_dim)

    def __call__(self, x: Tensor, step: Step, layer: int) -> Tensor:
        y = unit_norm(x, self.eps)
        q, k = (rope(one(y).heads(self.n_head), step.positions, self.rotation) for one in (self.q, self.k))
        attended = step.attend(layer, q, k, self.v(y).heads(self.n_head), scale=self.scale)
        x = x + self.o(attended * sigmoid(self.gate(y)))
        return x + self.mlp(unit_norm(x, self.eps))


class HrmText:
    """Files hold the fast stack's layers before the slow one's; each run of a layer has its own rows in the cache."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        self.config = config = DenseConfig.read(keys, n_vocab)
        n = keys.integer("hrm.layers_per_stack", low=1, high=MAX_LAYERS)
        self.n_slow, self.n_fast = (keys.integer(f"hrm.{x}_cycles", low=1, high=MAX_LAYERS) for x in "hl")
        if config.n_layer != (n_run := n * self.n_slow * (self.n_fast + 1)):
            raise LoadError(f"[hrm_text] block_count {config.n_layer} differs from the runs of layers: {n_run}")
        keys.without_effect("hrm.prefix_lm")
        self.embedding_scale = keys.number("embedding_scale", 0.0) or 1.0
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="half")
        blocks = [Block(config, block, rotation) for block in weights.blocks(2 * n)]
        self.fast, self.slow = blocks[:n], blocks[n:]
        self.start = weights.tensor("hrm.z_l_init", (config.dim,), vector=True)
        self.embedding = weights.embedding("token_embd", config.n_vocab, config.dim)
        self.head = head(weights, config, self.embedding)

    def cache(self) -> list[CacheSpec]:
        return self.config.cache()

    def __call__(self, step: Step) -> Tensor:
        layers = itertools.count()

        def run(stack: Sequence[Block], x: Tensor) -> Tensor:
            for block in stack:
                layer = next(layers)
                x = step.after_layer(layer, block(x, step, layer))
            return unit_norm(x, self.config.eps)

        slow = step.after_layer(-1, self.embedding(step.tokens) * self.embedding_scale)
        fast: Tensor | None = None
        for _ in range(self.n_slow):
            for _ in range(self.n_fast):
                fast = run(self.fast, add_weight(slow, self.start) if fast is None else slow + fast)
            assert fast is not None
            slow = run(self.slow, slow + fast)
        return self.head(select_rows(slow, step.logit_rows))


MODEL = HrmText

# --- checkpoint ---


def _n_stack(config: Fields) -> int:
    """Return the layers of a stack: ``num_hidden_layers`` in published files, those of all runs in saved ones."""
    n = config.integer("num_hidden_layers", 16, low=1)
    return n if config.is_null("num_layers_per_stack") else config.integer("num_layers_per_stack", n, low=1)


def _n_run(config: Fields) -> int:
    slow, fast = config.integer("H_cycles", 2, low=1), config.integer("L_cycles", 3, low=1)
    return _n_stack(config) * slow * (fast + 1)


def _embedding_scale(config: Fields) -> float:
    scale = None if config.is_null("embedding_scale") else config.value("embedding_scale")
    return 1.0 / config.number("initializer_range", 0.02) if scale is None else config.number("embedding_scale")


def _quarter(i: int) -> Source:
    def at(i: int, config: Fields) -> int:
        return i * config.integer("num_attention_heads") * config.integer("head_dim", 128)

    fused = rows(lambda config: at(i, config), lambda config: at(i + 1, config))
    return tensor("attn.gqkv_proj", change=fused)


_LAYER = {
    **{f"attn_{part}": _quarter(i) for i, part in enumerate(("gate", "q", "k", "v"))},
    "attn_output": tensor("attn.o_proj"),
    "ffn_gate": tensor("mlp.gate_up_proj", change=half(0)),
    "ffn_up": tensor("mlp.gate_up_proj", change=half(1)),
    "ffn_down": tensor("mlp.down_proj"),
}


class _Checkpoint(Checkpoint):
    def targets(self, config: Fields, entries: Iterable[Entry], there: Collection[str]) -> list[Target]:
        n = _n_stack(config)
        blocks = {
            f"blk.{i + k * n}.{name}": source.moved("", f"model.{stack}_module.layers.{i}.")
            for k, stack in enumerate("LH")
            for i in range(n)
            for name, source in _LAYER.items()
        }
        return Checkpoint.targets(replace(self, tensors={**self.tensors, **blocks}), config, entries, there)


HF = {
    "HrmTextForCausalLM": _Checkpoint(
        "hrm_text",
        {
            **DECODER_KEYS,
            "block_count": computed("u32", _n_run),
            "attention.head_count_kv": u32("num_attention_heads"),
            "attention.key_length": u32("head_dim", default=128),
            "attention.value_length": u32("head_dim", default=128),
            "rope.dimension_count": u32("head_dim", default=128),
            "embedding_scale": computed("f32", _embedding_scale),
            "hrm.layers_per_stack": computed("u32", _n_stack),
            "hrm.h_cycles": u32("H_cycles", default=2, low=1),
            "hrm.l_cycles": u32("L_cycles", default=3, low=1),
            "hrm.prefix_lm": computed("bool", lambda config: config.flag("prefix_lm", True)),
        },
        {"token_embd": "model.embed_tokens", "output": "lm_head", "hrm.z_l_init": "model.z_L_init"},
        fixed={"hidden_act": SILU, "attention_bias": (False,), "mlp_bias": (False,)},
        has_empty_layers=True,
        unused=("L_bp_cycles",),
    )
}
