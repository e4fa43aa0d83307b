"""Gemma 4: different heads in windowed layers, later layers that share K and V, an embedding for every layer."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from .._native import graph
from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    Array,
    Checkpoint,
    Fields,
    Key,
    Source,
    Target,
    cap,
    computed,
    half,
    local_layers,
    tensor,
    u32,
    with_pictures,
)
from ..checkpoints.mapping.rope import Entry, kind_of, rope_of, theta_of
from ..errors import LoadError, UnsupportedError
from ..nn import (
    CacheSpec,
    GatedMLP,
    Keys,
    MoeSpec,
    RopeSpec,
    Step,
    Tensor,
    Weight,
    Weights,
    frequency_factors,
    rope,
    rope_spec,
    select_rows,
    soft_cap,
)
from .base import MAX_DIM, MAX_HEAD_DIM, MAX_HEADS, Config, head

ARCHES = ("gemma4",)
LOCAL_BASE, GLOBAL_BASE = 10000.0, 1e6
CAP = 30.0  # the default soft cap of logits


@dataclass(frozen=True)
class Kind:
    """Parameters that all layers of a kind share."""

    head_dim: int
    window: int  # 0: full attention
    rotation: RopeSpec


class Attention:
    """Attention to the K and V of layer ``source``.  If there is no matrix for V, V is K before RoPE."""

    def __init__(self, config: Gemma4Config, weights: Weights, layer: int, kind: Kind, source: int) -> None:
        self.layer, self.source, self.kind, self.eps = layer, source, kind, config.eps
        self.n_head, self.n_kv_head = config.n_head, config.n_kv_heads[layer]
        self.q = weights.linear("attn_q", config.dim, config.n_head * kind.head_dim, bias=None)
        self.q_norm = weights.norm("attn_q_norm", kind.head_dim, config.eps)
        self.o = weights.linear("attn_output", config.n_head * kind.head_dim, config.dim, bias=None)
        if source != layer:
            for name in ("attn_k.*", "attn_v.*", "attn_k_norm.*"):
                weights.ignore(name, "the layer attends to the K and V of another")
            return
        self.k = weights.linear("attn_k", config.dim, self.n_kv_head * kind.head_dim, bias=None)
        self.k_norm = weights.norm("attn_k_norm", kind.head_dim, config.eps)
        self.v = (
            weights.linear("attn_v", config.dim, self.n_kv_head * kind.head_dim, bias=None)
            if weights.has("attn_v.weight")
            else self.k
        )

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q = rope(self.q_norm(self.q(x).heads(self.n_head)), step.positions, self.kind.rotation)
        if self.source != self.layer:
            return self.o(step.attend_again(self.source, q, scale=1.0))
        k = rope(self.k_norm(self.k(x).heads(self.n_kv_head)), step.positions, self.kind.rotation)
        v = graph.rms_norm(self.v(x).heads(self.n_kv_head), None, self.eps)
        return self.o(step.attend(self.layer, q, k, v, scale=1.0))


class Experts:
    """Experts of rows before the norm: experts and router each have a norm; each expert's output has a scale."""

    def __init__(self, config: Gemma4Config, weights: Weights) -> None:
        n, ffn, self.config = config.n_expert, config.expert_dim, config
        self.router = weights.linear("ffn_gate_inp", config.dim, n)
        self.router_scale = weights.tensor("ffn_gate_inp.scale", (config.dim,), vector=True)
        self.norm = weights.norm("pre_ffw_norm_2", config.dim, config.eps)
        self.gate, self.up = weights.gates_and_ups(n, ffn, config.dim)
        self.down = weights.tensor("ffn_down_exps.weight", (n, config.dim, ffn))
        self.scale = weights.tensor("ffn_down_exps.scale", (n,), vector=True)
        self.spec = MoeSpec(n_used=config.n_expert_used, activation="gelu_tanh")

    def __call__(self, x: Tensor) -> Tensor:
        routed = (
            graph.multiply_weight(graph.rms_norm(x, None, self.config.eps), self.router_scale) * self.config.dim**-0.5
        )
        return graph.moe(
            self.norm(x), self.router(routed), self.gate, self.up, self.down, self.spec, expert_scale=self.scale
        )


class Block:
    def __init__(self, config: Gemma4Config, weights: Weights, layer: int, attention: Attention) -> None:
        self.attention, self.n_extra, self.layer = attention, config.n_extra, layer
        self.attn_norm = weights.norm("attn_norm", config.dim, config.eps)
        self.attn_post = weights.norm("post_attention_norm", config.dim, config.eps)
        self.ffn_norm = weights.norm("ffn_norm", config.dim, config.eps)
        self.ffn_post = weights.norm("post_ffw_norm", config.dim, config.eps)
        self.mlp = GatedMLP(weights, config.dim, config.ffn_dims[layer], "gelu_tanh")
        self.experts = Experts(config, weights) if config.n_expert else None
        if self.experts is not None:
            self.mlp_post, self.experts_post = (
                weights.norm(f"post_ffw_norm_{i}", config.dim, config.eps) for i in (1, 2)
            )
        if config.n_extra:
            self.extra_gate = weights.linear("inp_gate", config.dim, config.n_extra)
            self.extra_up = weights.linear("proj", config.n_extra, config.dim)
            self.extra_post = weights.norm("post_norm", config.dim, config.eps)
        name = "layer_output_scale.weight"
        self.scalar: Weight | None = weights.tensor(name, (1,), vector=True) if weights.has(name) else None

    def __call__(self, x: Tensor, extra: Tensor | None, step: Step) -> Tensor:
        x = x + self.attn_post(self.attention(self.attn_norm(x), step))
        y = self.mlp(self.ffn_norm(x))
        if self.experts is not None:
            y = self.mlp_post(y) + self.experts_post(self.experts(x))
        x = x + self.ffn_post(y)
        if extra is not None:
            mine = graph.slice(extra, 0, self.layer * self.n_extra, (self.layer + 1) * self.n_extra)
            x = x + self.extra_post(self.extra_up(graph.activate(self.extra_gate(x), "gelu_tanh") * mine))
        return graph.multiply_weight(x, self.scalar) if self.scalar is not None else x


@dataclass(frozen=True)
class Gemma4Config(Config):
    n_head: int
    n_kv_heads: list[int]
    ffn_dims: list[int]
    eps: float
    is_local: list[bool]
    n_shared: int  # the number of last layers that reuse the K and V of earlier ones
    n_extra: int  # the width of each layer's own embedding
    n_expert: int
    n_expert_used: int
    expert_dim: int

    @classmethod
    def read(cls, keys: Keys, n_vocab: int) -> Gemma4Config:
        base = Config.read(keys, n_vocab)
        n = base.n_layer
        n_head = keys.same("attention.head_count", n, low=1, high=MAX_HEADS)
        n_expert = keys.integer("expert_count", 0, high=4096)
        config = cls(
            **vars(base),
            n_head=n_head,
            n_kv_heads=keys.integers("attention.head_count_kv", n, n_head, low=1, high=MAX_HEADS),
            ffn_dims=keys.integers("feed_forward_length", n, low=1, high=MAX_DIM),
            eps=keys.number("attention.layer_norm_rms_epsilon"),
            is_local=[bool(local) for local in keys.integers("attention.sliding_window_pattern", n, high=1)],
            n_shared=keys.integer("attention.shared_kv_layers", 0, high=n - 1),
            n_extra=keys.integer("embedding_length_per_layer_input", 0, high=MAX_DIM),
            n_expert=n_expert,
            n_expert_used=keys.same("expert_used_count", n, 0, low=min(n_expert, 1), high=n_expert),
            expert_dim=keys.same("expert_feed_forward_length", n, 0, low=min(n_expert, 1), high=MAX_DIM),
        )
        for n_kv in config.n_kv_heads:
            if n_head % n_kv:
                raise LoadError(f"[gemma4] head_count {n_head} is not divisible by head_count_kv {n_kv}")
        if not 0 < config.eps < 1:
            raise LoadError(f"[gemma4] norm epsilon {config.eps} is out of range: expected between 0 and 1")
        keys.only("attention.causal", True)
        return config

    @property
    def widest(self) -> int:
        return max(self.dim, *self.ffn_dims, self.n_extra * self.n_layer)

    def source_of(self, layer: int) -> int:
        """Return the layer whose K and V a layer attends to: itself, or the last one of its kind that has them."""
        first_shared = self.n_layer - self.n_shared
        if layer < first_shared:
            return layer
        sources = [i for i in range(first_shared) if self.is_local[i] == self.is_local[layer]]
        if not sources:
            raise LoadError(f"[gemma4] no earlier layer of its kind has the K and V that layer {layer} shares")
        return sources[-1]


def _head_dim(keys: Keys, suffix: str) -> int:
    """Read the size of heads, which is even and the same for K and V."""
    size = keys.integer(f"attention.key_length{suffix}", low=2, high=MAX_HEAD_DIM)
    keys.only(f"attention.value_length{suffix}", size)
    if size % 2:
        raise LoadError(f"[gemma4] odd head size {size} in key_length{suffix}")
    return size


class Gemma4:
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        self.config = config = Gemma4Config.read(keys, n_vocab)
        size, local_size = _head_dim(keys, ""), _head_dim(keys, "_swa")
        keys.only("rope.dimension_count", size)
        keys.only("rope.dimension_count_swa", local_size)
        self.cap = keys.number("final_logit_softcapping", CAP)
        local_base = keys.number("rope.freq_base_swa", LOCAL_BASE)
        if local_base <= 0 or self.cap < 0:
            raise LoadError(
                f"[gemma4] rope.freq_base_swa {local_base} or final_logit_softcapping {self.cap} is out of range"
            )
        everywhere = Kind(
            size, 0, rope_spec(keys, n_dims=size, layout="half", factors=frequency_factors(weights, size))
        )
        window = keys.integer("attention.sliding_window", low=1)
        nearby = Kind(local_size, window, rope_spec(keys, n_dims=local_size, layout="half", freq_base=local_base))
        self.kinds = [nearby if local else everywhere for local in config.is_local]
        # Files of llama.cpp do not say so: all models but the small ones, which have embeddings for every layer.
        self.bidirectional_media = keys.flag("attention.bidirectional_media", not config.n_extra)
        self.embedding = weights.embedding("token_embd", n_vocab, config.dim)
        if config.n_extra:
            self.extra_embedding = weights.embedding("per_layer_token_embd", n_vocab, config.n_extra * config.n_layer)
            self.extra_proj = weights.linear("per_layer_model_proj", config.dim, config.n_extra * config.n_layer)
            self.extra_norm = weights.norm("per_layer_proj_norm", config.n_extra, config.eps)
        self.blocks = [
            Block(config, block, i, Attention(config, block, i, self.kinds[i], config.source_of(i)))
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        self.norm = weights.norm("output_norm", config.dim, config.eps)
        self.head = head(weights, config, self.embedding)

    def cache(self) -> list[CacheSpec]:
        return [
            CacheSpec(
                n_kv_head=self.config.n_kv_heads[i], head_dim=kind.head_dim, window=kind.window,
                bidirectional_media=self.bidirectional_media and kind.window > 0,
            )
            if self.config.source_of(i) == i
            else CacheSpec()
            for i, kind in enumerate(self.kinds)
        ]  # fmt: skip

    def extras(self, x: Tensor, step: Step) -> Tensor:
        """Return the per-layer inputs from the tokens and their embeddings ``x``: ``[tokens, n_layer * n_extra]``."""
        config = self.config
        projected = self.extra_norm((self.extra_proj(x) * config.dim**-0.5).heads(config.n_layer)).merge_heads()
        return (projected + self.extra_embedding(step.tokens) * math.sqrt(config.n_extra)) * math.sqrt(0.5)

    def __call__(self, step: Step) -> Tensor:
        x = step.with_media(self.embedding(step.tokens) * self.config.dim**0.5)
        extra = self.extras(x, step) if self.config.n_extra else None
        for i, block in enumerate(self.blocks):
            x = step.after_layer(i, block(x, extra, step))
        logits = self.head(self.norm(select_rows(x, step.logit_rows)))
        return soft_cap(logits, self.cap) if self.cap else logits


MODEL = Gemma4

# --- checkpoint ---


def _locals(config: Fields) -> list[bool]:
    """Return the layers with windows; the last layer never has one."""
    return [*local_layers(config, 6)[:-1], False]


def _of_global(config: Fields, name: str, default: int) -> int:
    """Read a size of the full-attention layers from ``per_layer_config`` (transformers 5.20 and later)."""
    layers, own = config.inner("per_layer_config"), config.integer(name, default, low=1)
    if set(layers.names()) != {str(i) for i, local in enumerate(_locals(config)) if not local}:
        raise UnsupportedError("[convert] unsupported 'per_layer_config': its layers are not those of full_attention")
    found = {layers.inner(i).integer(name, own, low=1) for i in layers.names()}
    if len(found) != 1:
        raise UnsupportedError(f"[convert] unsupported 'per_layer_config': '{name}' differs between layers")
    return found.pop()


def _global_head_dim(config: Fields) -> int:
    if config.has("per_layer_config"):
        config.read(("global_head_dim",))
        return _of_global(config, "head_dim", 256)
    return config.integer("global_head_dim", 512)


def _kv_heads(config: Fields) -> list[int]:
    own = config.integer("num_key_value_heads", 4, low=1)
    everywhere = config.integer("num_global_key_value_heads", own, low=1)
    if not config.flag("attention_k_eq_v", False):
        everywhere = own
    if config.has("per_layer_config"):
        everywhere = _of_global(config, "num_key_value_heads", 4)
    return [own if local else everywhere for local in _locals(config)]


def _ffn_dims(config: Fields) -> list[int]:
    n_layer, ffn = config.integer("num_hidden_layers"), config.integer("intermediate_size", 9216)
    first_shared = n_layer - config.integer("num_kv_shared_layers", 0)
    wide = 2 if config.flag("use_double_wide_mlp", False) else 1
    return [ffn if i < first_shared else ffn * wide for i in range(n_layer)]


def _bidirectional_media(config: Fields) -> bool | None:
    """Return whether images are seen both ways, or None where that follows from the embeddings for every layer."""
    found = config.text("use_bidirectional_attention", "") == "vision"
    return None if found != bool(config.integer("hidden_size_per_layer_input", 256)) else found


def _of_experts(name: str) -> Key:
    def read(config: Fields) -> int | None:
        config.read((name,))
        return config.integer(name) if config.flag("enable_moe_block", False) else None

    return computed("u32", read)


def _rope(config: Fields) -> Iterator[Entry]:
    """Yield the RoPE keys: full-attention layers rotate a part of each head, windowed layers all of it."""
    if config.has("rope_parameters"):
        local, everywhere = rope_of(config, "sliding_attention"), rope_of(config)
        if kind_of(local) != "default" or kind_of(everywhere) != "proportional":
            raise UnsupportedError(
                f"[convert] unsupported rope scaling: '{kind_of(local)}' for sliding_attention (expected default), "
                f"'{kind_of(everywhere)}' for full_attention (expected proportional)"
            )
        yield "rope.freq_base_swa", "f32", local.number("rope_theta", LOCAL_BASE)
    yield "rope.freq_base", "f32", theta_of(config, GLOBAL_BASE)
    yield "rope.dimension_count", "u32", _global_head_dim(config)
    yield "rope.dimension_count_swa", "u32", config.integer("head_dim", 256)


class _Checkpoint(Checkpoint):
    def targets(self, config: Fields, entries: Iterable[Entry], there: Collection[str]) -> list[Target]:
        """Omit value weights in layers whose keys serve as values, even if the checkpoint has them."""
        found = super().targets(config, entries, there)
        if not config.flag("attention_k_eq_v", False):
            return found
        shared = {f"blk.{i}.attn_v.weight" for i, local in enumerate(_locals(config)) if not local}
        return [target for target in found if target.name not in shared]

    def _factors(self, config: Fields, entries: Iterable[Entry]) -> Iterator[tuple[str, Array]]:
        """Yield the frequency factors: huge ones for dimensions that are not rotated."""
        import numpy as np

        n = _global_head_dim(config)
        part = rope_of(config).number("partial_rotary_factor", 1.0) if config.has("rope_parameters") else 0.25
        yield "rope_freqs.weight", np.where(np.arange(n // 2) < int(part * n // 2), 1.0, 1e30).astype(np.float32)


_KEYS: dict[str, Key] = {
    **DECODER_KEYS,
    "context_length": u32("max_position_embeddings", default=131072),
    "feed_forward_length": computed("i32[]", _ffn_dims),
    "attention.head_count_kv": computed("i32[]", _kv_heads),
    "attention.key_length": computed("u32", _global_head_dim),
    "attention.value_length": computed("u32", _global_head_dim),
    "attention.key_length_swa": u32("head_dim", default=256),
    "attention.value_length_swa": u32("head_dim", default=256),
    "attention.sliding_window": u32("sliding_window", default=512, low=1),
    "attention.sliding_window_pattern": computed("bool[]", _locals),
    "attention.shared_kv_layers": u32("num_kv_shared_layers", default=0),
    "embedding_length_per_layer_input": u32("hidden_size_per_layer_input", default=256),
    "attention.bidirectional_media": computed("bool", _bidirectional_media),
    # Without the key llama.cpp uses 30; 0 means no cap.
    "final_logit_softcapping": cap("final_logit_softcapping", None),
    "expert_count": _of_experts("num_experts"),
    "expert_used_count": _of_experts("top_k_experts"),
    "expert_feed_forward_length": _of_experts("moe_intermediate_size"),
}
_LAYER = "model.layers.{i}"
_TENSORS: dict[str, str | Source] = {
    **DECODER_TENSORS,
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
    "blk.{i}.post_attention_norm": f"{_LAYER}.post_attention_layernorm",
    "blk.{i}.ffn_norm": f"{_LAYER}.pre_feedforward_layernorm",
    "blk.{i}.post_ffw_norm": f"{_LAYER}.post_feedforward_layernorm",
    "blk.{i}.attn_q_norm": f"{_LAYER}.self_attn.q_norm",
    "blk.{i}.attn_k_norm": f"{_LAYER}.self_attn.k_norm",
    "blk.{i}.inp_gate": f"{_LAYER}.per_layer_input_gate",
    "blk.{i}.proj": f"{_LAYER}.per_layer_projection",
    "blk.{i}.post_norm": f"{_LAYER}.post_per_layer_input_norm",
    "blk.{i}.layer_output_scale.weight": f"{_LAYER}.layer_scalar",
    "blk.{i}.ffn_gate_inp": f"{_LAYER}.router.proj",
    "blk.{i}.ffn_gate_inp.scale": f"{_LAYER}.router.scale",
    "blk.{i}.ffn_down_exps.scale": f"{_LAYER}.router.per_expert_scale",
    "blk.{i}.pre_ffw_norm_2": f"{_LAYER}.pre_feedforward_layernorm_2",
    "blk.{i}.post_ffw_norm_1": f"{_LAYER}.post_feedforward_layernorm_1",
    "blk.{i}.post_ffw_norm_2": f"{_LAYER}.post_feedforward_layernorm_2",
    "blk.{i}.ffn_gate_exps.weight": tensor(f"{_LAYER}.experts.gate_up_proj", change=half(0)),
    "blk.{i}.ffn_up_exps.weight": tensor(f"{_LAYER}.experts.gate_up_proj", change=half(1)),
    "blk.{i}.ffn_down_exps.weight": f"{_LAYER}.experts.down_proj",
}
_TEXT = _Checkpoint(
    "gemma4",
    _KEYS,
    _TENSORS,
    fixed={"hidden_activation": ("gelu_pytorch_tanh", "gelu_new"), "use_bidirectional_attention": (None, "vision")},
    rope=_rope,
    tied=True,
    # The table of the layers' embeddings has its own size; tensors show whether there are biases.
    unused=("attention_bias", "hidden_act", "vocab_size_per_layer_input"),
)
_UNIFIED = _Checkpoint(
    **{
        **vars(_TEXT),
        "keys": {
            **{name: key for name, key in _KEYS.items() if not name.startswith("expert")},
            "context_length": u32("max_position_embeddings", default=262144),
            "attention.sliding_window": u32("sliding_window", default=1024, low=1),
            "embedding_length_per_layer_input": computed("u32", lambda config: 0),
        },
    }
)
HF = {
    "Gemma4ForCausalLM": _TEXT,
    "Gemma4ForConditionalGeneration": with_pictures(_TEXT),
    "Gemma4UnifiedForCausalLM": _UNIFIED,
    "Gemma4UnifiedForConditionalGeneration": with_pictures(_UNIFIED),
}
