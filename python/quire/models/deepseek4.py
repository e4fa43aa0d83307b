"""DeepSeek V4 (DeepSeek-AI 2026): compressed attention, hyper-connections, experts that tokens choose by their ids.

Compressed attention runs on the CPU, beside a device for the rest of the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from .._native import graph
from .._native.graph import RopeSpec
from ..checkpoints.mapping import (
    DECODER_KEYS,
    SILU,
    Checkpoint,
    Entry,
    Fields,
    Source,
    Target,
    computed,
    f32,
    factor,
    u32,
)
from ..checkpoints.mapping.rope import kind_of, yarn_keys
from ..errors import LoadError, UnsupportedError
from ..nn import ROUTING, CacheSpec, ExpertConfig, Keys, MoE, Step, Tensor, Weight, Weights, select_rows
from ..nn.compressed import OVERLAPPING, CompressedAttention, CompressedSizes, Layers, Rotation
from ..nn.hyper import HyperConnection, HyperHead, HyperSizes
from ..nn.rotary import Scaling
from .base import MAX_HEAD_DIM, MAX_HEADS, PREDICTOR, Decoder, DenseConfig, Mixer, layers_left_out

ARCHES = ("deepseek4",)
MAX_RANK = 1 << 14
UNLIMITED = 3e38


@dataclass(frozen=True)
class V4Config(DenseConfig):
    n_stream: int = 1

    @property
    def widest(self) -> int:
        return max(self.n_head * self.head_dim, self.n_stream * self.dim)


class ClampedMLP:
    """A gated MLP with bounded numbers; ``limit`` 0: no bound.  ``end``: of its tensors' names."""

    def __init__(self, weights: Weights, dim: int, ffn_dim: int, limit: float, end: str = "_shexp") -> None:
        self.gate, self.up = (weights.linear(f"ffn_{one}{end}", dim, ffn_dim) for one in ("gate", "up"))
        self.down, self.limit = weights.linear(f"ffn_down{end}", ffn_dim, dim), limit

    def __call__(self, x: Tensor) -> Tensor:
        gate, up, limit = self.gate(x), self.up(x), self.limit
        if limit:
            gate, up = graph.clamp(gate, -UNLIMITED, limit), graph.clamp(up, -limit, limit)
        return self.down(graph.glu(gate, up, "silu"))


@dataclass(frozen=True)
class Experts:
    """The keys of all layers' experts, and one layer's MLP at a time."""

    config: ExpertConfig
    n_shared: int
    n_hash: int  # the first layers, whose experts are chosen by ids
    limits: list[float]  # by layer; 0: none
    shared_limits: list[float]

    @classmethod
    def read(cls, keys: Keys, n_layer: int) -> Experts:
        limits = keys.numbers("swiglu_clamp_exp", n_layer)
        shared_limits = keys.numbers("swiglu_clamp_shexp", n_layer) if keys.has("swiglu_clamp_shexp") else limits
        if min(*limits, *shared_limits) < 0:
            raise LoadError("[deepseek4] swiglu_clamp_exp or swiglu_clamp_shexp is out of range: expected 0 or more")
        return cls(
            config=ExpertConfig.read(keys, n_layer, gating="sqrt_softplus", reads=ROUTING),
            n_shared=keys.integer("expert_shared_count", low=1, high=64),
            n_hash=keys.integer("hash_layer_count", 0),
            limits=limits,
            shared_limits=shared_limits,
        )

    def mlp(self, layer: int, weights: Weights, config: DenseConfig) -> Mixer:
        own, limit = self.config, self.limits[layer]
        spec = graph.MoeSpec(
            n_used=own.n_used,
            gating=own.gating,
            normalize=own.normalize,
            scale=own.scale,
            unit="clamped" if limit else "gated",
            limit=limit or 1.0,
        )
        table = chosen_experts(weights, config.n_vocab, own) if layer < self.n_hash else None
        if table is not None:
            weights.ignore("exp_probs_b.bias", "the layer's experts are chosen by ids")
        routed = MoE(weights, config.dim, own.ffn_dim, own.n, spec, ranks=table is None)
        shared = ClampedMLP(weights, config.dim, self.n_shared * own.ffn_dim, self.shared_limits[layer])

        def mlp(x: Tensor, step: Step) -> Tensor:
            return routed(x, None if table is None else graph.embed(step.tokens, table)) + shared(x)

        return mlp


class Block:
    def __init__(self, config: DenseConfig, weights: Weights, hyper: HyperSizes, attention: Mixer, mlp: Mixer) -> None:
        self.attn_hyper = HyperConnection(weights, "hc_attn", hyper)
        self.ffn_hyper = HyperConnection(weights, "hc_ffn", hyper)
        self.attn_norm, self.attention = weights.norm("attn_norm", config.dim, config.eps), attention
        self.ffn_norm, self.mlp = weights.norm("ffn_norm", config.dim, config.eps), mlp

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = self.attn_hyper(x, lambda one: self.attention(self.attn_norm(one), step))
        return self.ffn_hyper(x, lambda one: self.mlp(self.ffn_norm(one), step))


class DeepSeek4(Decoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        dense = DenseConfig.read(keys, n_vocab)
        n_next = layers_left_out(keys, weights, dense.n_layer)
        n_layer = dense.n_layer - n_next
        if n_next and not weights.has(f"blk.{n_layer}.{PREDICTOR}.weight"):
            raise LoadError(f"[deepseek4] nextn_predict_layers {n_next}: the file has no such layers")
        hyper = HyperSizes.read(keys, dense.dim, dense.eps)
        config = V4Config(**{**vars(dense), "n_layer": n_layer, "n_stream": hyper.n})
        keys.only("embedding_length_out", config.dim * hyper.n)
        sizes, layers, experts = sizes_of(keys, config), Layers(n_layer), Experts.read(keys, n_layer)
        weights.ignore("blk.*.exp_probs_b_vl.bias", "it routes images")
        plain, compressed = rotations(keys, sizes.n_rot)
        blocks, attentions = [], []
        for i, (block, every) in enumerate(zip(weights.blocks(n_layer), ratios_of(keys, n_layer), strict=True)):
            rotation = compressed if every else plain
            attention = CompressedAttention(block, sizes, layers, layer=i, every=every, rotation=rotation)
            attentions.append(attention)
            blocks.append(Block(config, block, hyper, attention, experts.mlp(i, block, config)))
        super().__init__(config, weights, blocks)
        self.cached = [*(attention.cache() for attention in attentions), *layers.specs]
        self.n_stream, self.hyper_head = hyper.n, HyperHead(weights, "output_hc", hyper)

    def cache(self) -> list[CacheSpec]:
        return self.cached

    def __call__(self, step: Step) -> Tensor:
        streams = graph.repeat_heads(self.embedding(step.tokens).heads(1), self.n_stream).merge_heads()
        streams = step.run_layers(self.blocks, streams)
        return self.head(self.norm(self.hyper_head(select_rows(streams, step.logit_rows))))


def sizes_of(keys: Keys, config: DenseConfig) -> CompressedSizes:
    if config.n_kv_head != 1 or config.v_head_dim != config.head_dim:
        raise LoadError(
            f"[deepseek4] head_count_kv {config.n_kv_head} and value_length {config.v_head_dim} do not fit: expected 1 "
            f"and key_length, {config.head_dim}, as keys are values"
        )
    sizes = CompressedSizes(
        dim=config.dim,
        n_head=config.n_head,
        head_dim=config.head_dim,
        n_rot=config.n_rot,
        q_rank=keys.integer("attention.q_lora_rank", low=1, high=MAX_RANK),
        window=keys.integer("attention.sliding_window", low=1),
        n_group=keys.integer("attention.output_group_count", low=1, high=config.n_head),
        o_rank=keys.integer("attention.output_lora_rank", low=1, high=MAX_RANK),
        eps=config.eps,
        index_n_head=keys.integer("attention.indexer.head_count", low=1, high=MAX_HEADS),
        index_head_dim=keys.integer("attention.indexer.key_length", low=config.n_rot, high=MAX_HEAD_DIM),
        index_top_k=keys.integer("attention.indexer.top_k", low=1),
    )
    if sizes.n_head % sizes.n_group:
        raise LoadError(f"[deepseek4] head_count {sizes.n_head} is not divisible by output_group_count {sizes.n_group}")
    return sizes


def ratios_of(keys: Keys, n_layer: int) -> list[int]:
    """Read how many tokens share a row of each layer; 0: none."""
    ratios = keys.integers("attention.compress_ratios", n_layer, high=1 << 16)
    for ratio in ratios:
        if ratio == 1 or (ratio and 32 % ratio and ratio % 32):
            raise UnsupportedError(
                f"[deepseek4] unsupported attention.compress_ratios {ratio}: expected 0, or 2 or more that divide 32 "
                "or are a multiple of 32"
            )
    return ratios


def rotations(keys: Keys, n_rot: int) -> tuple[Rotation, Rotation]:
    """Return the rotations of layers without and with compressed rows, which alone are scaled."""
    scaling = Scaling.read(keys)
    keys.only("rope.scaling.yarn_ext_factor", -1.0, 1.0)
    keys.only("rope.scaling.yarn_log_multiplier", 0.0)
    bases = keys.number("rope.freq_base", 10000.0), keys.number("attention.compress_rope_freq_base")
    if min(bases) <= 0:
        raise LoadError(f"[deepseek4] the base of the frequencies {min(bases)} is out of range: expected more than 0")
    scaled: dict[str, Any] = {"freq_scale": 1.0 / scaling.factor, "attn_factor": scaling.attention}
    if scaling.kind == "yarn":
        scaled |= {
            "ext_factor": 1.0,
            "attn_factor": scaling.attention / (1.0 + 0.1 * math.log(scaling.factor)),
            "beta_fast": keys.number("rope.scaling.yarn_beta_fast", 32.0),
            "beta_slow": keys.number("rope.scaling.yarn_beta_slow", 1.0),
            "n_ctx_orig": keys.integer("rope.scaling.original_context_length", keys.integer("context_length"), low=1),
        }

    def rotation(base: float, more: Mapping[str, Any]) -> Rotation:
        return lambda **way: RopeSpec(n_dims=n_rot, layout="interleaved", freq_base=base, **more, **way)

    return rotation(bases[0], {}), rotation(bases[1], scaled)


def chosen_experts(weights: Weights, n_vocab: int, experts: ExpertConfig) -> Weight:
    """Return the numbers of the experts of each token."""
    name = "ffn_gate_tid2eid.weight"
    numbers = weights.whole_numbers(name, (n_vocab, experts.n_used))
    if numbers.min() < 0 or numbers.max() >= experts.n:
        raise LoadError(f"[deepseek4] tensor '{name}' names an expert beyond the {experts.n} there are")
    return weights.computed(f"{name}.f32", numbers.astype("f4"))


MODEL = DeepSeek4

# --- checkpoint ---

_CSA, _HCA = "compressed_sparse_attention", "heavily_compressed_attention"
_RATIOS = {"sliding_attention": 0, _CSA: OVERLAPPING, _HCA: 128}


def _rates(config: Fields) -> dict[str, int]:
    """Return how many tokens share a row in each kind of layers."""
    rates, inner = dict(_RATIOS), config.inner("compress_rates")
    for kind, old in ((_CSA, "compress_rate_csa"), (_HCA, "compress_rate_hca")):
        rates[kind] = config.integer(old, inner.integer(kind, rates[kind], low=2), low=2)
    if rates[_CSA] != OVERLAPPING or rates[_HCA] == OVERLAPPING:
        raise UnsupportedError(
            f"[convert] unsupported 'compress_rates': {rates[_CSA]} and {rates[_HCA]} (expected {OVERLAPPING} and "
            "another number)"
        )
    return rates


def _ratios(config: Fields) -> list[int]:
    n, rates, old = config.integer("num_hidden_layers"), _rates(config), config.items("compress_ratios")
    names = {ratio: name for name, ratio in _RATIOS.items()}
    kinds: list[object] = config.items("layer_types") or [names.get(ratio) for ratio in old if isinstance(ratio, int)]
    if not kinds and not old:
        kinds = [_HCA if i < 2 or i % 2 == 0 else _CSA for i in range(n)]
    found = [rates[kind] for kind in kinds[:n] if isinstance(kind, str) and kind in rates]
    if len(found) != n:
        raise UnsupportedError(
            "[convert] unsupported 'layer_types' or 'compress_ratios': expected a kind of each layer"
        )
    return found


def _n_hash(config: Fields) -> int:
    n, kinds = config.integer("num_hidden_layers"), config.items("mlp_layer_types")
    old = config.integer("num_hash_layers", 3)
    if not kinds:
        return min(n, old)
    n_hash = kinds.count("hash_moe")
    if list(kinds[:n]) != ["hash_moe"] * n_hash + ["moe"] * (n - n_hash):
        raise UnsupportedError("[convert] unsupported 'mlp_layer_types': expected hash_moe in the first layers only")
    return n_hash


def _n_rot(config: Fields) -> int:
    head_dim, part = config.integer("head_dim", 512), 64 / 512
    old = config.integer("qk_rope_head_dim", round(head_dim * part))
    return int(
        head_dim * (config.number("partial_rotary_factor") if config.has("partial_rotary_factor") else old / head_dim)
    )


def _rope(config: Fields) -> Iterator[Entry]:
    """Yield the bases of both kinds of layers, and the scaling of those with compressed rows."""
    parameters = config.inner("rope_parameters") if config.has("rope_parameters") else config.inner("rope_scaling")
    bases = config.number("rope_theta", 10000.0), config.number("compress_rope_theta", 160000.0)
    if parameters.has("main") and parameters.has("compress"):
        plain, parameters = parameters.inner("main"), parameters.inner("compress")
        bases = plain.number("rope_theta", bases[0]), parameters.number("rope_theta", bases[1])
        if (kind := kind_of(plain)) != "default":
            raise UnsupportedError(f"[convert] unsupported rope scaling '{kind}' of layers without compressed rows")
        part = _n_rot(config) / config.integer("head_dim", 512)
        for one in (plain, parameters):
            if (found := one.number("partial_rotary_factor", part)) != part:
                raise UnsupportedError(f"[convert] unsupported 'partial_rotary_factor': {found} (expected {part})")
    else:
        parameters.read(("rope_theta", "main", "compress"))
    yield "rope.freq_base", "f32", bases[0]
    yield "attention.compress_rope_freq_base", "f32", bases[1]
    if (kind := kind_of(parameters)) == "yarn":
        if bases[1] <= 1:
            raise UnsupportedError(
                f"[convert] unsupported 'compress_rope_theta' with YaRN: {bases[1]} (expected more than 1)"
            )
        attention = parameters.number("attention_factor", 1.0)
        yield from (entry for entry in yarn_keys(config, parameters) if entry[0] != "rope.scaling.attn_factor")
        if attention != 1.0:
            yield "rope.scaling.attn_factor", "f32", attention
    elif kind != "default":
        raise UnsupportedError(f"[convert] unsupported rope scaling '{kind}': expected default or yarn")


def _each(value: Callable[[Fields], float]) -> Callable[[Fields], list[float]]:
    return lambda config: [value(config)] * config.integer("num_hidden_layers")


def _limit(config: Fields) -> float:
    if (limit := config.number("swiglu_limit", 10.0)) <= 0:
        raise UnsupportedError(f"[convert] unsupported 'swiglu_limit': {limit} (expected more than 0)")
    return limit


_LAYER = "model.layers.{i}"
_ATTENTION, _MLP = f"{_LAYER}.attn", f"{_LAYER}.ffn"
# Names that transformers writes; those of the publisher, where they are others.
_PUBLISHED = {
    "model.embed_tokens": "embed",
    **{f"model.hc_head.hc_{part}": f"hc_head_{part}" for part in ("fn", "base", "scale")},
    f"{_ATTENTION}.norm": "layers.{i}.attn.kv_norm",
}


@dataclass(frozen=True)
class V4Checkpoint(Checkpoint):
    """A checkpoint with tables of the experts of each token."""

    def targets(self, config: Fields, entries: Iterable[Entry], there: Collection[str]) -> list[Target]:
        import numpy as np

        stored: Any = there
        targets = super().targets(config, entries, there)
        base = "" if "embed.weight" in there else "model."
        for i in range(_n_hash(config)):
            name = f"{base}layers.{i}.ffn.gate.tid2eid"
            if name in there:
                made = stored.whole_numbers(name).astype(np.int32)
                targets.append(Target(f"blk.{i}.ffn_gate_tid2eid.weight", (name,), made=made))
        return targets

    def _named_as(self, there: Collection[str]) -> Mapping[str, str | Source]:
        if "embed.weight" not in there:
            return self.tensors
        table = {target: Source.of(entry) for target, entry in self.tensors.items()}
        return {
            target: replace(
                source, names=tuple(_PUBLISHED.get(name, name.removeprefix("model.")) for name in source.names)
            )
            for target, source in table.items()
        }


def _compressor(target: str, source: str) -> dict[str, str | Source]:
    return {
        f"blk.{{i}}.{target}_kv": f"{_ATTENTION}.{source}.wkv",
        f"blk.{{i}}.{target}_gate": f"{_ATTENTION}.{source}.wgate",
        f"blk.{{i}}.{target}_ape.weight": f"{_ATTENTION}.{source}.ape",
        f"blk.{{i}}.{target}_norm": f"{_ATTENTION}.{source}.norm",
    }


HF = {
    "DeepseekV4ForCausalLM": V4Checkpoint(
        "deepseek4",
        {
            **{name: key for name, key in DECODER_KEYS.items() if name != "feed_forward_length"},
            "embedding_length_out": computed(
                "u32", lambda config: config.integer("hidden_size") * config.integer("hc_mult", 4, low=1)
            ),
            "attention.head_count_kv": computed("u32", lambda config: 1),
            "attention.key_length": u32("head_dim", default=512),
            "attention.value_length": u32("head_dim", default=512),
            "attention.q_lora_rank": u32("q_lora_rank", default=1024, low=1),
            "attention.sliding_window": u32("sliding_window", default=128, low=1),
            "attention.output_group_count": u32("o_groups", default=8, low=1),
            "attention.output_lora_rank": u32("o_lora_rank", default=1024, low=1),
            "attention.compress_ratios": computed("i32[]", _ratios),
            "attention.indexer.head_count": u32("index_n_heads", default=64, low=1),
            "attention.indexer.key_length": u32("index_head_dim", default=128, low=1),
            "attention.indexer.top_k": u32("index_topk", default=512, low=1),
            "hyper_connection.count": u32("hc_mult", default=4, low=1),
            "hyper_connection.sinkhorn_iterations": u32("hc_sinkhorn_iters", default=20, low=1),
            "hyper_connection.epsilon": f32("hc_eps", default=1e-6),
            "hash_layer_count": computed("u32", _n_hash),
            "rope.dimension_count": computed("u32", _n_rot),
            "expert_count": u32("n_routed_experts", "num_local_experts", default=256),
            "expert_used_count": u32("num_experts_per_tok", default=6),
            "expert_feed_forward_length": u32("moe_intermediate_size", "intermediate_size", default=2048),
            "expert_shared_count": computed("u32", lambda config: 1),
            "expert_weights_scale": factor("routed_scaling_factor", default=1.5),
            "expert_weights_norm": computed("bool", lambda config: True),
            "expert_gating_func": computed("u32", lambda config: 4),
            "swiglu_clamp_exp": computed("f32[]", _each(_limit)),
            "swiglu_clamp_shexp": computed("f32[]", _each(_limit)),
        },
        {
            "token_embd": "model.embed_tokens",
            "output_norm": "model.norm",
            "output": "head",
            **{f"output_hc_{part}.weight": f"model.hc_head.hc_{part}" for part in ("fn", "base", "scale")},
            **{
                f"blk.{{i}}.hc_{layer}_{part}.weight": f"{_LAYER}.hc_{layer}_{part}"
                for layer in ("attn", "ffn")
                for part in ("fn", "base", "scale")
            },
            "blk.{i}.attn_norm": f"{_LAYER}.attn_norm",
            "blk.{i}.attn_sinks.weight": f"{_ATTENTION}.attn_sink",
            "blk.{i}.attn_q_a": f"{_ATTENTION}.wq_a",
            "blk.{i}.attn_q_a_norm": f"{_ATTENTION}.q_norm",
            "blk.{i}.attn_q_b": f"{_ATTENTION}.wq_b",
            "blk.{i}.attn_kv": f"{_ATTENTION}.wkv",
            "blk.{i}.attn_kv_a_norm": f"{_ATTENTION}.norm",
            "blk.{i}.attn_output_a": f"{_ATTENTION}.wo_a",
            "blk.{i}.attn_output_b": f"{_ATTENTION}.wo_b",
            **_compressor("attn_compressor", "compressor"),
            "blk.{i}.indexer.proj": f"{_ATTENTION}.indexer.weights_proj",
            "blk.{i}.indexer.attn_q_b": f"{_ATTENTION}.indexer.wq_b",
            **_compressor("indexer_compressor", "indexer.compressor"),
            "blk.{i}.ffn_norm": f"{_LAYER}.ffn_norm",
            "blk.{i}.ffn_gate_inp.weight": f"{_MLP}.gate.weight",
            "blk.{i}.exp_probs_b.bias": f"{_MLP}.gate.bias",
            "blk.{i}.ffn_gate_exps": f"{_MLP}.experts.{{e}}.w1",
            "blk.{i}.ffn_up_exps": f"{_MLP}.experts.{{e}}.w3",
            "blk.{i}.ffn_down_exps": f"{_MLP}.experts.{{e}}.w2",
            "blk.{i}.ffn_gate_shexp": f"{_MLP}.shared_experts.w1",
            "blk.{i}.ffn_up_shexp": f"{_MLP}.shared_experts.w3",
            "blk.{i}.ffn_down_shexp": f"{_MLP}.shared_experts.w2",
        },
        fixed={
            "hidden_act": SILU,
            "attention_bias": (False,),
            "mlp_bias": (False,),
            "scoring_func": ("sqrtsoftplus",),
            "num_key_value_heads": (1,),
        },
        rope=_rope,
        unused=(
            "norm_topk_prob",
            "n_shared_experts",
            "num_nextn_predict_layers",
            "router_jitter_noise",
            "expert_dtype",
        ),
        ignored=("mtp.*", "model.mtp.*", "*.ffn.gate.tid2eid"),
    )
}
