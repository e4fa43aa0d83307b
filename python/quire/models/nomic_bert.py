"""Nomic BERT (Nussbaum et al. 2024, 2025): BERT with RoPE and a gated MLP, or with experts in some layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .._native.graph import add_weight
from ..checkpoints.mapping import SILU, Checkpoint, Fields, Key, Source, by_expert, f32, rows, tensor, u32
from ..errors import UnsupportedError
from ..nn import MLP, ExpertConfig, GatedMLP, Keys, MoE, MoeSpec, Tensor, Weights, rope_spec
from .base import MAX_LAYERS, Layer
from .encoding import (
    ENCODER_KEYS,
    HEAD_KEYS,
    TOKEN_HEAD,
    TOKEN_HEAD_KEYS,
    TRAINING_HEADS,
    Attention,
    Block,
    Embeddings,
    Encoder,
    EncoderConfig,
    below,
    plain_base,
)

ARCHES = ("nomic-bert", "nomic-bert-moe")


class BiasedSum:
    """Experts, and a bias added to their sum; files made by llama.cpp lack it."""

    def __init__(self, weights: Weights, dim: int, experts: MoE) -> None:
        name = "ffn_down_exps.bias"
        self.experts, self.bias = experts, weights.tensor(name, (dim,), vector=True) if weights.has(name) else None

    def __call__(self, x: Tensor) -> Tensor:
        y = self.experts(x)
        return y if self.bias is None else add_weight(y, self.bias)


class NomicBert(Encoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = EncoderConfig.read_file(keys, weights, n_vocab)
        rotation = rope_spec(keys, n_dims=config.head_dim, layout="half")
        mlp = self.experts(keys, config) if keys.arch == "nomic-bert-moe" else self.gated(config)
        blocks = [
            Block(config, block, Attention(config, block, rotation), mlp(i, block))
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, keys, weights, Embeddings(config, weights), blocks)

    @staticmethod
    def gated(config: EncoderConfig) -> Callable[[int, Weights], Layer]:
        """Return a function that makes a layer's gated MLP."""
        return lambda i, weights: GatedMLP(weights, config.dim, config.ffn_dim, "silu")

    @staticmethod
    def experts(keys: Keys, config: EncoderConfig) -> Callable[[int, Weights], Layer]:
        """Return a function that makes a layer's experts or, in other layers, its MLP; both are ungated."""
        experts = ExpertConfig.read(keys, config.n_layer, normalize=False, ffn_dim=config.ffn_dim)
        spec = MoeSpec(n_used=experts.n_used, activation="gelu", normalize=False, unit="ungated")
        period = keys.integer("moe_every_n_layers", 0, high=MAX_LAYERS)

        def mlp(i: int, weights: Weights) -> Layer:
            if period == 0 or i % period != 1:
                return MLP(weights, config.dim, config.ffn_dim, "gelu")
            return BiasedSum(
                weights, config.dim, MoE(weights, config.dim, experts.ffn_dim, experts.n, spec, gated=False)
            )

        return mlp


MODEL = NomicBert

# --- checkpoint ---

BASE = 1000.0


def _n_positions(config: Fields) -> int:
    """Return the trained context: published configurations say 8192, which needs a stretched rotation."""
    longest = config.integer("max_trained_positions", 2048)
    config.read(("rotary_scaling_factor",))
    return min(config.integer("n_positions", longest), longest)


def _part(name: str, i: int) -> Source:
    """Take queries, keys or values from a fused tensor."""
    return tensor(name, change=rows(lambda config: i * _width(config), lambda config: (i + 1) * _width(config)))


def _width(config: Fields) -> int:
    return config.integer("hidden_size" if config.has("hidden_size") else "n_embd")


# Published configurations and tensors have other names than transformers'.
_KEYS: dict[str, Key] = {
    **ENCODER_KEYS,
    "context_length": u32("max_position_embeddings", default=_n_positions),
    "embedding_length": u32("hidden_size", "n_embd"),
    "block_count": u32("num_hidden_layers", "n_layer"),
    "feed_forward_length": u32("intermediate_size", "n_inner"),
    "attention.head_count": u32("num_attention_heads", "n_head", low=1),
    "attention.layer_norm_epsilon": f32("layer_norm_eps", "layer_norm_epsilon", default=1e-12),
    "rope.freq_base": plain_base("rotary_emb_base", BASE),
}
_LAYER, _OLD = "layers.{i}", "encoder.layers.{i}"
TENSORS: dict[str, str | Source] = {
    "token_embd": "embeddings.word_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "token_embd_norm": "embeddings.LayerNorm",
    "blk.{i}.attn_q": f"{_LAYER}.self_attn.q_proj",
    "blk.{i}.attn_k": f"{_LAYER}.self_attn.k_proj",
    "blk.{i}.attn_v": f"{_LAYER}.self_attn.v_proj",
    "blk.{i}.attn_output": f"{_LAYER}.self_attn.o_proj",
    "blk.{i}.attn_output_norm": f"{_LAYER}.post_attention_layernorm",
    "blk.{i}.layer_output_norm": f"{_LAYER}.post_mlp_layernorm",
}
_NEW_ONES: dict[str, str | Source] = {
    **TENSORS,
    "blk.{i}.ffn_gate": f"{_LAYER}.mlp.gate_proj",
    "blk.{i}.ffn_up": f"{_LAYER}.mlp.up_proj",
    "blk.{i}.ffn_down": f"{_LAYER}.mlp.down_proj",
}


def fused_tensors(attention: str, mlp: Mapping[str, str]) -> dict[str, str | Source]:
    """Return the tensors of published checkpoints, with fused queries, keys and values in module ``attention``.

    Names include ``.weight`` and ``.bias``, so that a table can have them beside the module names of transformers.
    """
    modules: dict[str, str] = {
        "token_embd_norm": "emb_ln",
        "blk.{i}.attn_output": f"{_OLD}.{attention}.out_proj",
        "blk.{i}.attn_output_norm": f"{_OLD}.norm1",
        "blk.{i}.layer_output_norm": f"{_OLD}.norm2",
        **{f"blk.{{i}}.{ours}": f"{_OLD}.mlp.{theirs}" for ours, theirs in mlp.items()},
    }
    tensors: dict[str, str | Source] = {}
    for suffix in ("weight", "bias"):
        tensors |= {f"{ours}.{suffix}": f"{theirs}.{suffix}" for ours, theirs in modules.items()}
        for i, one in enumerate("qkv"):
            tensors[f"blk.{{i}}.attn_{one}.{suffix}"] = _part(f"{_OLD}.{attention}.Wqkv.{suffix}", i)
    return tensors


_OLD_ONES = fused_tensors("attn", {"ffn_up": "fc11", "ffn_gate": "fc12", "ffn_down": "fc2"})
_FIXED = {
    "hidden_act": SILU,
    "activation_function": ("swiglu",),
    "prenorm": (False,),
    "parallel_block": (False,),
    "use_rms_norm": (False, None),
    "causal": (False,),
    "rotary_emb_fraction": (1.0, 1),
    "rotary_emb_interleaved": (False,),
    "rotary_emb_scale_base": (None,),
    "qkv_proj_bias": (False,),
    "mlp_fc1_bias": (False,),
    "mlp_fc2_bias": (False,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
}


def _head_size(config: Fields) -> None:
    """Require heads that split the width evenly."""
    if config.has("head_dim") and config.integer("head_dim") * config.integer("num_attention_heads") != _width(config):
        raise UnsupportedError(
            f"[convert] unsupported 'head_dim': {config.value('head_dim')} (expected hidden_size / num_attention_heads)"
        )


class _Nomic(Checkpoint):
    """The mapping with experts if the configuration has any, else the one without."""

    def chosen(self, whole: Fields) -> Checkpoint:
        return _of_experts(self.base) if whole.value("moe_every_n_layers") else self


def _of(prefix: str, head: dict[str, str | Source] | None = None, keys: dict[str, Key] | None = None) -> Checkpoint:
    return _Nomic(
        "nomic-bert",
        {**_KEYS, **(keys or {})},
        {**below(prefix, {**_NEW_ONES, **_OLD_ONES}), **(head or {})},
        fixed=_FIXED,
        checks=(_head_size,),
        rope=None,
        unused=(
            "type_vocab_size",
            "tie_word_embeddings",
            "classifier_dropout",
            "pad_vocab_size_multiple",
            "fused_*",
            "use_flash_attn",
            "use_xentropy",
            "summary_*",
            "reorder_and_upcast_attn",
            "dense_seq_output",
            "sequence_parallel",
            "last_layer_subset",
        ),
        ignored=TRAINING_HEADS,
        base=prefix,
    )


def _n_expert(config: Fields) -> int:
    return config.integer("num_experts", low=1)


def _is_mixed(config: Fields) -> None:
    if (period := config.integer("moe_every_n_layers")) == 1:
        raise UnsupportedError(f"[convert] unsupported 'moe_every_n_layers': {period} (expected 2 or more)")


_EXPERTS = f"{_OLD}.mlp.experts"


def _of_experts(prefix: str) -> Checkpoint:
    gated = _of(prefix)
    tensors: dict[str, str | Source] = {
        "token_embd": "embeddings.word_embeddings",
        "token_types": "embeddings.token_type_embeddings",
        **fused_tensors("attn", {"ffn_up": "fc1", "ffn_down": "fc2"}),
        "blk.{i}.ffn_gate_inp": f"{_OLD}.mlp.router.layer",
        "blk.{i}.ffn_up_exps.weight": tensor(f"{_EXPERTS}.mlp.w1", change=by_expert(_n_expert)),
        "blk.{i}.ffn_down_exps.weight": tensor(f"{_EXPERTS}.mlp.w2", change=by_expert(_n_expert, transposes=True)),
        "blk.{i}.ffn_down_exps.bias": f"{_EXPERTS}.bias",
    }
    fixed = {
        **_FIXED,
        "activation_function": ("gelu",),
        "hidden_act": ("gelu",),
        "qkv_proj_bias": (True,),
        "mlp_fc1_bias": (True,),
        "mlp_fc2_bias": (True,),
        "moe_normalize_expert_weights": (False,),
        "expert_choice_router": (False,),
        "ffn_div": (1, 1.0),
        "num_shared_experts": (0,),
    }
    return Checkpoint(
        "nomic-bert-moe",
        {
            **_KEYS,
            "context_length": u32("max_position_embeddings", default=lambda config: min(_n_positions(config), 512)),
            "moe_every_n_layers": u32("moe_every_n_layers"),
            "expert_count": u32("num_experts"),
            "expert_used_count": u32("moe_top_k"),
        },
        below(prefix, tensors),
        fixed=fixed,
        checks=(_head_size, _is_mixed),
        rope=None,
        unused=(*gated.unused, "moe_impl", "add_pooling_layer", "parallel_block_tied_norm"),
        ignored=gated.ignored,
        base=prefix,
    )


_HEAD: dict[str, str | Source] = {"cls": "nomic_bert.pooler.dense", "cls.output": "classifier"}
HF = {
    "NomicBertModel": _of(""),
    "NomicBertForMaskedLM": _of("nomic_bert."),
    "NomicBertForSequenceClassification": _of("nomic_bert.", _HEAD, HEAD_KEYS),
    "NomicBertForTokenClassification": _of("nomic_bert.", TOKEN_HEAD, TOKEN_HEAD_KEYS),
}
