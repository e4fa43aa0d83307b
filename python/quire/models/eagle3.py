"""EAGLE-3 (Li et al. 2025): a Llama-like head that predicts later tokens of another model.

It is not a model by itself.  Files follow llama.cpp; options of checkpoints beyond those have keys of Quire's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..checkpoints.mapping import (
    DECODER_KEYS,
    SILU,
    Fields,
    HeadCheckpoint,
    Key,
    Source,
    computed,
    interleaved,
    no_windows,
    tensor,
    u32,
)
from ..errors import LoadError, UnsupportedError
from ..nn import (
    EagleHead,
    Fusion,
    GatedMLP,
    Keys,
    Linear,
    RopeSpec,
    Step,
    Tensor,
    Weights,
    frequency_factors,
    rope,
    rope_spec,
)
from .base import MAX_DIM, Decoder, DenseConfig
from .llama import head_dim_of

if TYPE_CHECKING:
    from ..files.gguf import GGUFReader

HEADS = ("eagle3",)
MOST_LAYERS_READ = 16


@dataclass(frozen=True)
class LoadedHead:
    """A head with its weights.  ``tokens`` maps the head's tokens to the model's; empty: they are the same."""

    config: DenseConfig  # n_vocab is the size of the head's vocabulary
    head: EagleHead
    fusion: Fusion
    tokens: tuple[int, ...]


class Attention:
    """Llama's attention, with inputs twice as wide as its outputs."""

    def __init__(self, config: DenseConfig, weights: Weights, rotation: RopeSpec) -> None:
        self.n_head = config.n_head
        self.n_kv_head = config.n_kv_head
        self.scale = config.head_dim**-0.5
        self.rotation = rotation
        self.q = weights.linear("attn_q", 2 * config.dim, config.n_head * config.head_dim, bias=None)
        self.k = weights.linear("attn_k", 2 * config.dim, config.n_kv_head * config.head_dim, bias=None)
        self.v = weights.linear("attn_v", 2 * config.dim, config.n_kv_head * config.v_head_dim, bias=None)
        self.o = weights.linear("attn_output", config.n_head * config.v_head_dim, config.dim, bias=None)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q = rope(self.q(x).heads(self.n_head), step.positions, self.rotation)
        k = rope(self.k(x).heads(self.n_kv_head), step.positions, self.rotation)
        return self.o(step.attend(0, q, k, self.v(x).heads(self.n_kv_head), scale=self.scale))


def load_head(reader: GGUFReader, model: Decoder) -> LoadedHead:
    """Load a head for ``model``.  If the file has no embedding or output matrix, the model's is used.

    Raises:
        LoadError: Keys or tensors do not fit.
        UnsupportedError: The head's sizes belong to another model, or it has unknown options.
    """
    keys, weights, of_model = Keys(reader.metadata), Weights(reader, lambda tensor: tensor), model.config
    n_known = weights.n_rows("output.weight") if weights.has("output.weight") else of_model.n_vocab
    config = DenseConfig.read(keys, n_known)
    keys.only("block_count", 1)
    keys.only("vocab_size", of_model.n_vocab)
    keys.only("target_hidden_size" if keys.has("target_hidden_size") else "embedding_length", of_model.dim)
    if not weights.has("token_embd.weight") and config.dim != of_model.dim:
        raise UnsupportedError(
            f"[{keys.arch}] hidden size {config.dim} differs from the model's, {of_model.dim}: a head without an "
            f"embedding of its own shares the model's"
        )
    fusion = _fusion(keys, weights, config, of_model.dim, of_model.n_layer)
    rotation = rope_spec(
        keys, n_dims=config.n_rot, layout="interleaved", factors=frequency_factors(weights, config.n_rot)
    )
    block = weights.scope("blk.0")
    head = EagleHead(
        dim=config.dim,
        cache=config.cache()[0],
        embedding=weights.embedding("token_embd", of_model.n_vocab, config.dim)
        if weights.has("token_embd.weight")
        else model.embedding,
        embedding_norm=block.norm("attn_norm", config.dim, config.eps),
        feature_norm=block.norm("attn_norm_2", config.dim, config.eps),
        attention=Attention(config, block, rotation),
        ffn_norm=block.norm("ffn_norm", config.dim, config.eps),
        mlp=GatedMLP(block, config.dim, config.ffn_dim),
        norm=weights.norm("output_norm", config.dim, config.eps),
        head=weights.linear("output", config.dim, n_known)
        if weights.has("output.weight")
        else _head_of(keys, model, config),
        adds_normed=keys.flag("norm_before_residual", False),
        leaves_normed=keys.flag("norm_output", False),
    )
    tokens = _tokens(weights, n_known, of_model.n_vocab)
    keys.finish()
    weights.finish()
    return LoadedHead(config, head, fusion, tokens)


def _head_of(keys: Keys, model: Decoder, config: DenseConfig) -> Linear:
    if config.dim != model.config.dim:
        raise UnsupportedError(
            f"[{keys.arch}] hidden size {config.dim} differs from the model's, {model.config.dim}: a head without an "
            f"output matrix of its own shares the model's"
        )
    return model.head


def _fusion(keys: Keys, weights: Weights, config: DenseConfig, dim: int, n_layer: int) -> Fusion:
    """Read the fusion for a model of width ``dim``; the default layers are those of the published code."""
    layers = keys.some_integers("target_layers", high=MAX_DIM) if keys.has("target_layers") else []
    layers = layers or [2, n_layer // 2, n_layer - 3]
    if layers != sorted(set(layers)) or not 0 <= layers[0] <= layers[-1] <= n_layer or len(layers) > MOST_LAYERS_READ:
        raise UnsupportedError(
            f"[{keys.arch}] unsupported target_layers {', '.join(map(str, layers[:8]))}: expected at most "
            f"{MOST_LAYERS_READ} ascending numbers from 0 to the model's {n_layer}"
        )
    n = len(layers) * dim
    is_normed, are_normed = keys.flag("norm_before_fc", False), keys.flag("fc_norm", False)
    return Fusion(
        layers=tuple(layers),
        norms=tuple(weights.norm(f"enc.fc_norm.{i}", dim, config.eps) for i in range(len(layers)))
        if are_normed
        else (),
        norm=weights.norm("enc.output_norm", n, config.eps) if is_normed else None,
        projection=weights.linear("fc", n, config.dim),
    )


def _tokens(weights: Weights, n_known: int, n_vocab: int) -> tuple[int, ...]:
    if not weights.has("d2t"):
        if n_known != n_vocab:
            raise LoadError(f"[eagle3] tensor 'd2t' is missing: the head has {n_known} of the model's {n_vocab} tokens")
        return ()
    tokens = tuple(weights.whole_numbers("d2t", (n_known,)).tolist())
    if len(set(tokens)) != n_known or not 0 <= min(tokens) <= max(tokens) < n_vocab:
        raise LoadError(f"[eagle3] invalid 'd2t': expected distinct tokens below {n_vocab}")
    return tokens


# --- checkpoint ---


def _layers(config: Fields) -> list[int] | None:
    """Return the layers whose inputs the head reads, as files store them.

    Configurations of speculators and vLLM count inputs too; ``eagle_config`` (SGLang, SpecForge) counts outputs.
    """
    own, inner = config.items("eagle_aux_hidden_state_layer_ids"), config.inner("eagle_config")
    left = inner.items("eagle_aux_hidden_state_layer_ids")
    if own and left:
        raise UnsupportedError(
            "[draft] 'eagle_aux_hidden_state_layer_ids' is given twice, in config.json and in its 'eagle_config'"
        )
    if not all(isinstance(i, int) and -(2**31) < i < 2**31 - 1 for i in [*own, *left]):
        raise LoadError("[draft] invalid 'eagle_aux_hidden_state_layer_ids': expected integers")
    return [int(str(i)) for i in own] or [int(str(i)) + 1 for i in left] or None


def _flag_of(name: str) -> Key:
    """Return a key for a flag of the configuration or of its ``eagle_config``."""

    def read(config: Fields) -> bool | None:
        inner = config.inner("eagle_config")
        value = config.flag(name, inner.flag(name, False))
        return value or None

    return computed("bool", read)


_ALWAYS = ("use_aux_hidden_state", "use_input_layernorm_in_first_layer", "use_last_layernorm", "next_layer_regular")


def _known_kind(config: Fields) -> None:
    """Raise UnsupportedError for options that change the computation."""
    inner = config.inner("eagle_config")
    for name in _ALWAYS:
        if not inner.flag(name, True):
            raise UnsupportedError(f"[draft] unsupported '{name}': false")
    for name in ("use_mtp_layernorm", "parallel_drafting"):
        if inner.flag(name, False) or config.flag(name, False):
            raise UnsupportedError(f"[draft] unsupported '{name}': true")
    if (n := inner.integer("parallel_draft_step", 1)) != 1:
        raise UnsupportedError(f"[draft] unsupported 'parallel_draft_step': {n} (expected 1)")
    inner.read(("parallel_draft_heads_num_layers",))  # without effect if there is a single step
    if config.text("speculators_model_type", "eagle3") != "eagle3":
        found = config.text("speculators_model_type")
        raise UnsupportedError(f"[draft] unsupported 'speculators_model_type': '{found:.40}' (expected eagle3)")
    if config.has("speculators_model_type") and not config.has("norm_before_residual"):
        raise LoadError("[draft] 'norm_before_residual' is missing from config.json")


_LAYER = "midlayer."
TENSORS: dict[str, str | Source] = {
    "fc": "fc",
    "enc.output_norm": "input_norm",
    **{f"enc.fc_norm.{i}": f"fc_norm.{i}" for i in range(MOST_LAYERS_READ)},
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "output": "lm_head",
    "blk.0.attn_norm": f"{_LAYER}input_layernorm",
    "blk.0.attn_norm_2": f"{_LAYER}hidden_norm",
    "blk.0.attn_q": tensor(f"{_LAYER}self_attn.q_proj", change=interleaved("num_attention_heads")),
    "blk.0.attn_k": tensor(
        f"{_LAYER}self_attn.k_proj", change=interleaved("num_key_value_heads", "num_attention_heads")
    ),
    "blk.0.attn_v": f"{_LAYER}self_attn.v_proj",
    "blk.0.attn_output": f"{_LAYER}self_attn.o_proj",
    "blk.0.ffn_norm": f"{_LAYER}post_attention_layernorm",
    "blk.0.ffn_gate": f"{_LAYER}mlp.gate_proj",
    "blk.0.ffn_up": f"{_LAYER}mlp.up_proj",
    "blk.0.ffn_down": f"{_LAYER}mlp.down_proj",
}
KEYS: dict[str, Key] = {
    **DECODER_KEYS,
    "attention.key_length": computed("u32", head_dim_of),
    "attention.value_length": computed("u32", head_dim_of),
    "rope.dimension_count": computed("u32", head_dim_of),
    "vocab_size": u32("vocab_size"),
    "target_hidden_size": u32("target_hidden_size", "hidden_size"),
    "target_layers": computed("i32[]", _layers),
    **{name: _flag_of(name) for name in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")},
}
HF_HEADS = {
    "LlamaForCausalLMEagle3": HeadCheckpoint(
        "eagle3",
        KEYS,
        TENSORS,
        fixed={"hidden_act": SILU, "num_hidden_layers": (1,)},
        checks=(no_windows, _known_kind),
        unused=(
            "attention_bias",
            "mlp_bias",
            "speculators_*",
            "has_no_defaults_at_init",
            "embed_requires_grad",
            "target_model_type",
            "modal_type",
        ),
        ignored=("d2t", "t2d"),  # d2t is computed separately, t2d is redundant
        base="",
        is_head=True,
        has_empty_layers=True,  # no tensor name has a layer's number
    )
}
