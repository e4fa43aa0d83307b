"""Fields and names that most decoders' checkpoints share (transformers' ``LlamaForCausalLM``)."""

from __future__ import annotations

from ...errors import UnsupportedError
from ..reading.fields import Fields
from .changes import only_with
from .keys import Key, f32, u32
from .tensors import PredictingLayers, Source


def _trained_context(config: Fields) -> int:
    """Return the context length of a configuration without one: the default of its class."""
    default = config.default("max_position_embeddings")
    return default if isinstance(default, int) else config.integer("max_position_embeddings")


DECODER_KEYS: dict[str, Key] = {
    "context_length": u32("max_position_embeddings", default=_trained_context),
    "embedding_length": u32("hidden_size"),
    "block_count": u32("num_hidden_layers"),
    "feed_forward_length": u32("intermediate_size"),
    "attention.head_count": u32("num_attention_heads", low=1),
    "attention.head_count_kv": u32("num_key_value_heads", "num_attention_heads", low=1),
    "attention.key_length": u32("head_dim", default=None),
    "attention.value_length": u32("head_dim", default=None),
    "attention.layer_norm_rms_epsilon": f32("rms_norm_eps", default=1e-6),
}

DECODER_TENSORS: dict[str, str | Source] = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "blk.{i}.attn_norm": "model.layers.{i}.input_layernorm",
    "blk.{i}.ffn_norm": "model.layers.{i}.post_attention_layernorm",
    "blk.{i}.attn_q": "model.layers.{i}.self_attn.q_proj",
    "blk.{i}.attn_k": "model.layers.{i}.self_attn.k_proj",
    "blk.{i}.attn_v": "model.layers.{i}.self_attn.v_proj",
    "blk.{i}.attn_output": "model.layers.{i}.self_attn.o_proj",
    "blk.{i}.ffn_gate": "model.layers.{i}.mlp.gate_proj",
    "blk.{i}.ffn_up": "model.layers.{i}.mlp.up_proj",
    "blk.{i}.ffn_down": "model.layers.{i}.mlp.down_proj",
}

# Biases of q, k and v are dropped unless ``attention_bias`` is true.
BIASED_TENSORS: dict[str, str | Source] = {
    **{name: source for name, source in DECODER_TENSORS.items() if not name.endswith(("attn_q", "attn_k", "attn_v"))},
    **{f"blk.{{i}}.attn_{part}.weight": f"model.layers.{{i}}.self_attn.{part}_proj.weight" for part in "qkv"},
    **{
        f"blk.{{i}}.attn_{part}.bias": Source(
            (f"model.layers.{{i}}.self_attn.{part}_proj.bias",), only_with("attention_bias", default=True)
        )
        for part in "qkv"
    },
}

EXPERT_TENSORS: dict[str, str | Source] = {
    "blk.{i}.ffn_gate_inp": "model.layers.{i}.mlp.gate",
    "blk.{i}.ffn_gate_exps": "model.layers.{i}.mlp.experts.{e}.gate_proj",
    "blk.{i}.ffn_up_exps": "model.layers.{i}.mlp.experts.{e}.up_proj",
    "blk.{i}.ffn_down_exps": "model.layers.{i}.mlp.experts.{e}.down_proj",
}

# Experts that every token goes through.
SHARED_EXPERT_TENSORS: dict[str, str | Source] = {
    f"blk.{{i}}.ffn_{part}_shexp": f"model.layers.{{i}}.mlp.shared_experts.{part}_proj"
    for part in ("gate", "up", "down")
}


_PREDICTING = "model.layers.{i}"
# Layers that predict later tokens, numbered after the others (DeepSeek-V3's names).
PREDICTING_LAYERS = PredictingLayers(
    {
        "nextn.eh_proj": f"{_PREDICTING}.eh_proj",
        "nextn.enorm": f"{_PREDICTING}.enorm",
        "nextn.hnorm": f"{_PREDICTING}.hnorm",
        "nextn.embed_tokens": f"{_PREDICTING}.embed_tokens",
        "nextn.shared_head_norm": f"{_PREDICTING}.shared_head.norm",
        "nextn.shared_head_head": f"{_PREDICTING}.shared_head.head",
    }
)


def no_windows(config: Fields) -> None:
    """Raise UnsupportedError if a layer has a sliding window."""
    slides = config.knows("use_sliding_window") and config.flag("use_sliding_window", False)
    if slides and config.integer("max_window_layers", 0) < config.integer("num_hidden_layers"):
        raise UnsupportedError("[convert] unsupported 'use_sliding_window' for this architecture: true")
    config.read(("sliding_window", "max_window_layers"))
    if config.knows("layer_types") and any(kind != "full_attention" for kind in config.items("layer_types")):
        raise UnsupportedError("[convert] unsupported 'layer_types' for this architecture: expected full_attention")


def kinds_of_mlps(config: Fields) -> list[str]:
    """Return ``mlp_layer_types``, ``dense`` or ``sparse`` for each layer; empty if the configuration has none."""
    n_layer, kinds = config.integer("num_hidden_layers"), [str(kind) for kind in config.items("mlp_layer_types")]
    if kinds and (len(kinds) != n_layer or not set(kinds) <= {"dense", "sparse"}):
        raise UnsupportedError("[convert] invalid 'mlp_layer_types': expected dense or sparse for each layer")
    return kinds


def n_dense(config: Fields, default: int) -> int:
    """Return how many layers are dense, which must be the first ones; ``default``: without ``mlp_layer_types``."""
    kinds = kinds_of_mlps(config)
    n = kinds.count("dense") if kinds else default
    if "dense" in kinds[n:]:
        raise UnsupportedError("[convert] unsupported 'mlp_layer_types': dense layers after sparse ones")
    return n


def only_experts(config: Fields) -> None:
    """Raise UnsupportedError if some layers of a Qwen model have a plain MLP instead of experts."""
    if layers := config.items("mlp_only_layers"):
        raise UnsupportedError(f"[convert] unsupported 'mlp_only_layers': {layers} (expected none)")
    if (step := config.integer("decoder_sparse_step", 1)) != 1:
        raise UnsupportedError(f"[convert] unsupported 'decoder_sparse_step': {step} (expected 1)")


def has_windows(config: Fields) -> None:
    """Raise UnsupportedError if the window is null: files must hold a number."""
    if config.is_null("sliding_window"):
        raise UnsupportedError("[convert] unsupported 'sliding_window': null (expected a number)")


def layers_of_type(config: Fields, name: str) -> list[bool]:
    """Return which layers ``layer_types`` calls ``name``; empty if it is absent.

    Raises:
        UnsupportedError: It has another length, or a name other than this one and ``full_attention``.
    """
    n_layer, kinds = config.integer("num_hidden_layers"), config.items("layer_types")
    if kinds and (len(kinds) != n_layer or not set(map(str, kinds)) <= {name, "full_attention"}):
        raise UnsupportedError(f"[convert] invalid 'layer_types': expected {name} or full_attention for each layer")
    return [kind == name for kind in kinds]


def local_layers(config: Fields, period: int) -> list[bool]:
    """Return the layers with windows: by ``layer_types``, or all but every ``period``-th."""
    n_layer = config.integer("num_hidden_layers")
    return layers_of_type(config, "sliding_attention") or [bool((i + 1) % max(period, 1)) for i in range(n_layer)]
