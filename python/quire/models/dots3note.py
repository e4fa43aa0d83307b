"""dots3 Note (rednote 2026), text: latent attention gated by head, to tokens that an indexer picks or in a window."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from ..checkpoints.mapping import (
    SILU,
    Array,
    Change,
    Checkpoint,
    Entry,
    Fields,
    Key,
    Target,
    computed,
    f32,
    factor,
    kinds_of_mlps,
    n_dense,
    tensor,
    u32,
)
from ..checkpoints.mapping.rope import kind_of, rope_of
from ..errors import UnsupportedError
from ..nn import ROUTING, CacheSpec, ExpertConfig, Keys, LatentSizes, Tensor, Weights, rope_spec
from . import deepseek2, deepseek32
from .bailingmoe3 import GatedLatentAttention
from .base import (
    MAX_DIM,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    Block,
    Decoder,
    DenseConfig,
    dense_then_experts,
    layers_left_out,
)
from .base import local_layers as locals_of
from .deepseek32 import Indexer, Indexers, IndexerSizes

ARCHES = ("dots3note",)
LOCAL_BASE = 5e4


class Attention(GatedLatentAttention):
    """Normalizes the rotated part of keys, too."""

    def declare(self, weights: Weights, dim: int, eps: float) -> None:
        self.gate = weights.linear("attn_gate", dim, self.sizes.n_head)
        self.rotated_norm = weights.norm("attn_k_norm", self.sizes.n_rot, eps)

    def key_to_rotate(self, k: Tensor) -> Tensor:
        return self.rotated_norm(k)


def _sizes(keys: Keys, n_head: int, kind: str) -> LatentSizes:
    """Read the sizes of one kind of layers; ``kind`` ends the names of its keys."""
    head_dim, v_dim = (
        keys.integer(f"attention.{name}_length_mla{kind}", low=1, high=MAX_HEAD_DIM) for name in ("key", "value")
    )
    rank = keys.integer(f"attention.kv_lora_rank{kind}", low=1, high=MAX_DIM)
    sizes = replace(LatentSizes.read(keys, n_head, head_dim, v_dim), rank=rank)
    keys.only(f"attention.key_length{kind}", rank + sizes.n_rot)
    keys.only(f"attention.value_length{kind}", rank)
    return sizes


class Dots3Note(Decoder):
    """Layers with a window have another number of heads, other sizes and another base of the rotation."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        n_heads = keys.integers(
            "attention.head_count", keys.integer("block_count", high=MAX_LAYERS), low=1, high=MAX_HEADS
        )
        config = DenseConfig.read(keys, n_vocab, n_head=max(n_heads, default=1), n_kv_head=1)
        n = config.n_layer - layers_left_out(keys, weights, config.n_layer)
        config = replace(config, n_layer=n)
        keys.without_effect("attention.head_count_kv")
        self.local, self.window = locals_of(keys, n, 1), keys.integer("attention.sliding_window", low=1)
        self.sizes = [_sizes(keys, n_heads[i], "_swa" if one else "") for i, one in enumerate(self.local)]
        if not all(size.q_rank for size in self.sizes):
            raise UnsupportedError("[dots3note] attention.q_lora_rank 0 is unsupported")
        experts = ExpertConfig.read(keys, n, gating="sigmoid", normalize=False, grouped=True, reads=ROUTING)
        n_shared = keys.integer("expert_shared_count", 1, high=64)
        shared_dim = keys.integer("expert_shared_feed_forward_length", n_shared * experts.ffn_dim, high=MAX_DIM)
        mlp = dense_then_experts(config, experts, shared_dim, keys.integer("leading_dense_block_count", 0))
        base = keys.number("rope.freq_base_swa", LOCAL_BASE)
        rotations = [rope_spec(keys, n_dims=config.n_rot, layout="interleaved", freq_base=one) for one in (None, base)]
        self.index_sizes, indexers = IndexerSizes.read(keys, config.n_rot), Indexers()
        if keys.has("attention.indexer.types"):
            keys.integers("attention.indexer.types", n, high=1)
        blocks, next_cache = [], n
        for i, block in enumerate(weights.blocks(n)):
            size, rotation = self.sizes[i], rotations[self.local[i]]
            attention = Attention(
                block, config.dim, size, i, eps=config.eps, rotation=rotation, scale=size.head_dim**-0.5
            )
            attention.declare(block, config.dim, config.eps)
            if not self.local[i]:
                indexer = Indexer(
                    block, config.dim, size.q_rank, sizes=self.index_sizes, layer=next_cache, rotation=rotation
                )
                attention.picker, next_cache = indexers.own(indexer), next_cache + 1
            blocks.append(Block(config, block, attention, mlp(i, block)))
        super().__init__(config, weights, blocks)

    def cache(self) -> list[CacheSpec]:
        rows = [
            CacheSpec.latent(rank=size.rank, n_rot=size.n_rot, window=self.window if local else 0)
            for size, local in zip(self.sizes, self.local, strict=True)
        ]
        return [*rows, *[self.index_sizes.cache()] * self.local.count(False)]


MODEL = Dots3Note

# --- checkpoint ---

GLOBAL_BASE = 8e7
_SIZES = {  # transformers' defaults: of layers that pick, and of layers with a window
    "num_attention_heads": (128, 64), "q_lora_rank": (1024, 1024), "kv_lora_rank": (512, 1024),
    "qk_nope_head_dim": (128, 192), "v_head_dim": (128, 128),
}  # fmt: skip


def _locals(config: Fields) -> list[bool]:
    n, kinds = config.integer("num_hidden_layers"), [str(kind) for kind in config.items("layer_types")]
    picks = {"indexed_attention"} if config.has("per_layer_config") else {"indexed_attention", "full_attention"}
    if kinds and (len(kinds) != n or not set(kinds) <= {"sliding_attention", *picks}):
        raise UnsupportedError("[convert] unsupported 'layer_types': expected sliding_attention or indexed_attention")
    return [kind == "sliding_attention" for kind in kinds] or [i > 1 and i % 4 != 1 for i in range(n)]


def _size(config: Fields, name: str, *, local: bool) -> int:
    """Read a size; those of layers with a window have names of their own, or are in ``per_layer_config``."""
    own = config.integer(name, _SIZES[name][0], low=1)
    if not local:
        return own
    if not config.has("per_layer_config"):
        return config.integer(f"swa_{name}", _SIZES[name][1], low=1)
    layers = config.inner("per_layer_config")
    if set(layers.names()) != {str(i) for i, one in enumerate(_locals(config)) if one}:
        raise UnsupportedError("[convert] unsupported 'per_layer_config': its layers are not those with a window")
    found = {layers.inner(i).integer(name, own, low=1) for i in layers.names()}
    if len(found) != 1:
        raise UnsupportedError(f"[convert] unsupported 'per_layer_config': '{name}' differs between layers")
    return found.pop()


def _n_rot(config: Fields) -> int:
    n = config.integer("qk_rope_head_dim", 64)
    if config.has("per_layer_config"):
        layers = config.inner("per_layer_config")
        found = {layers.inner(i).integer("qk_rope_head_dim", n) for i in layers.names()}
    else:
        rest = config.integer("swa_head_dim", 256) - _size(config, "qk_nope_head_dim", local=True)
        found = {config.integer("swa_qk_rope_head_dim", rest)}
    if any(_locals(config)) and found != {n}:
        raise UnsupportedError(
            f"[convert] unsupported 'qk_rope_head_dim' of layers with a window: {found} (expected {n})"
        )
    return n


def _q_rank(config: Fields) -> int:
    n = _size(config, "q_lora_rank", local=False)
    if any(_locals(config)) and (found := _size(config, "q_lora_rank", local=True)) != n:
        raise UnsupportedError(f"[convert] unsupported 'q_lora_rank' of layers with a window: {found} (expected {n})")
    return n


def _shared_dim(config: Fields) -> int:
    own = config.integer("shared_experts_intermediate_size", 1536)
    return config.integer("n_shared_experts", 1, low=1) * config.integer("moe_shared_expert_intermediate_size", own)


def _sized(name: str, *, local: bool, rotated: bool = False) -> Key:
    return computed("u32", lambda config: _size(config, name, local=local) + rotated * _n_rot(config))


def _n_dense(config: Fields) -> int:
    n, first, every = config.integer("num_hidden_layers"), config.integer("first_k_dense_replace", 1), [1]
    if isinstance(config.value("moe_layer_freq"), list):
        every = [int(str(one)) for one in config.items("moe_layer_freq")]
    elif (period := config.integer("moe_layer_freq", 1, low=1)) != 1:
        raise UnsupportedError(f"[convert] unsupported 'moe_layer_freq': {period} (expected 1)")
    if kinds_of_mlps(config):
        return n_dense(config, 0)
    is_dense = [i < first or not every[i % len(every)] for i in range(n)]
    if any(is_dense[is_dense.count(True) :]):
        raise UnsupportedError("[convert] unsupported 'moe_layer_freq': dense layers after sparse ones")
    return is_dense.count(True)


def _rope(config: Fields) -> Iterator[Entry]:
    picks, local = rope_of(config, "indexed_attention"), rope_of(config, "sliding_attention")
    for rope in (picks, local):
        rope.read(("partial_rotary_factor",))  # redundant: head sizes determine it
        if (kind := kind_of(rope)) != "default":
            raise UnsupportedError(f"[convert] unsupported rope scaling '{kind}': expected default")
    yield "rope.freq_base", "f32", picks.number("rope_theta", config.number("rope_theta", GLOBAL_BASE))
    yield "rope.freq_base_swa", "f32", local.number("rope_theta", config.number("swa_rope_theta", LOCAL_BASE))


def _scaled(x: Array, config: Fields) -> Array:
    """Fold the factor of latent rows into their norm."""
    scaled: Array = x * (config.integer("hidden_size") / len(x)) ** 0.5
    return scaled


def _part(local: bool, *, of_values: bool) -> Change:
    """Take the part of keys or of values of ``kv_b_proj``."""

    def change(x: Array, config: Fields) -> Array:
        n_head, nope, v_dim = (
            _size(config, name, local=local) for name in ("num_attention_heads", "qk_nope_head_dim", "v_head_dim")
        )
        both = x.reshape(n_head, nope + v_dim, -1)
        return both[:, nope:] if of_values else both[:, :nope].swapaxes(1, 2)

    return change


_V32 = deepseek32.HF["DeepseekV32ForCausalLM"]
_ATTENTION = "model.layers.{i}.self_attn"


class _Checkpoint(Checkpoint):
    def targets(self, config: Fields, entries: Iterable[Entry], there: Collection[str]) -> list[Target]:
        """Return the targets; what becomes of ``kv_b_proj`` depends on the kind of the layer."""
        parts = {
            f"blk.{i}.attn_{name}_b": tensor(
                f"model.layers.{i}.self_attn.kv_b_proj", change=_part(local, of_values=name == "v")
            )
            for i, local in enumerate(_locals(config))
            for name in "kv"
        }
        return Checkpoint.targets(replace(self, tensors={**self.tensors, **parts}), config, entries, there)


HF = {
    "Dots3NoteForCausalLM": _Checkpoint(
        "dots3note",
        {
            **_V32.keys,
            "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-5),
            "attention.latent_norm_rms_epsilon": computed("f32", lambda config: None),
            "attention.head_count": computed(
                "u32[]", lambda config: [_size(config, "num_attention_heads", local=one) for one in _locals(config)]
            ),
            "attention.q_lora_rank": computed("u32", _q_rank),
            "attention.kv_lora_rank": _sized("kv_lora_rank", local=False),
            "attention.key_length": _sized("kv_lora_rank", local=False, rotated=True),
            "attention.value_length": _sized("kv_lora_rank", local=False),
            "attention.key_length_mla": _sized("qk_nope_head_dim", local=False, rotated=True),
            "attention.value_length_mla": _sized("v_head_dim", local=False),
            "attention.kv_lora_rank_swa": _sized("kv_lora_rank", local=True),
            "attention.key_length_swa": _sized("kv_lora_rank", local=True, rotated=True),
            "attention.value_length_swa": _sized("kv_lora_rank", local=True),
            "attention.key_length_mla_swa": _sized("qk_nope_head_dim", local=True, rotated=True),
            "attention.value_length_mla_swa": _sized("v_head_dim", local=True),
            "attention.sliding_window": u32("sliding_window", "sliding_window_size", default=512, low=1),
            "attention.sliding_window_pattern": computed("bool[]", _locals),
            "attention.indexer.types": computed("bool[]", lambda config: [not one for one in _locals(config)]),
            "expert_feed_forward_length": u32("moe_intermediate_size", default=1536),
            "expert_shared_feed_forward_length": computed("u32", _shared_dim),
            "expert_weights_scale": factor("routed_scaling_factor", default=1.0),
            "expert_group_count": u32("n_group", default=1, low=1),
            "expert_group_used_count": u32("topk_group", default=1, low=1),
            "leading_dense_block_count": computed("u32", _n_dense),
        },
        {
            **{name: source for name, source in _V32.tensors.items() if not name.endswith(("attn_k_b", "attn_v_b"))},
            "blk.{i}.attn_q_a_norm": tensor(f"{_ATTENTION}.q_a_layernorm", change=_scaled),
            "blk.{i}.attn_kv_a_norm": tensor(f"{_ATTENTION}.kv_a_layernorm", change=_scaled),
            "blk.{i}.attn_k_norm": f"{_ATTENTION}.k_rope_only_layernorm",
            "blk.{i}.attn_gate": f"{_ATTENTION}.g_proj",
        },
        fixed={
            "hidden_act": SILU,
            "attention_bias": (False,),
            "mlp_bias": (False,),
            "use_dsa": (True,),
            "use_sliding_window": (True,),
            "apply_mla_qkv_lora_rescale": (True,),
            "k_rope_only_layernorm": (True,),
            "attention_gate_type": ("headwise",),
            "swa_attention_gate_type": ("headwise",),
            "topk_method": ("noaux_tc",),
            "scoring_func": ("sigmoid",),
            "use_dynamic_rsf": (False,),
        },
        rope=_rope,
        unused=(
            *deepseek2.UNUSED,
            "num_key_value_heads",
            "swa_num_key_value_heads",
            "swa_head_dim",
            "vision_config",
            "audio_config",
            "sliding_window_size",
        ),
        ignored=("vision_encoder.*", "audio_encoder.*", "model.mtp.*", "model.layers.46.*"),
    )
}
