"""EAGLE-3 (Li et al. 2025): a head of llama's kind that predicts later tokens of another model.

It is no model by itself.  Files are llama.cpp's; what checkpoints say beyond those has keys of Quire's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..checkpoint import (
    DECODER_KEYS,
    SILU,
    Fields,
    HeadCheckpoint,
    Key,
    Source,
    interleaved,
    made,
    no_windows,
    taken,
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
    from ..gguf import GGUFReader

HEADS = ("eagle3",)
MOST_LAYERS_READ = 16


@dataclass(frozen=True)
class LoadedHead:
    """A head with its weights in place.  ``tokens``: the model's token of each one that it knows; empty: all."""

    config: DenseConfig  # whose vocabulary are the tokens that it knows
    head: EagleHead
    fusion: Fusion
    tokens: tuple[int, ...]


class Attention:
    """Llama's, of rows that are twice as wide as what it leaves."""

    def __init__(self, c: DenseConfig, w: Weights, rotation: RopeSpec) -> None:
        self.n_head, self.n_kv_head, self.scale, self.rotation = c.n_head, c.n_kv_head, c.head_dim**-0.5, rotation
        self.q = w.linear("attn_q", 2 * c.dim, c.n_head * c.head_dim, bias=None)
        self.k = w.linear("attn_k", 2 * c.dim, c.n_kv_head * c.head_dim, bias=None)
        self.v = w.linear("attn_v", 2 * c.dim, c.n_kv_head * c.v_head_dim, bias=None)
        self.o = w.linear("attn_output", c.n_head * c.v_head_dim, c.dim, bias=None)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q = rope(self.q(x).heads(self.n_head), step.positions, self.rotation)
        k = rope(self.k(x).heads(self.n_kv_head), step.positions, self.rotation)
        return self.o(step.attend(0, q, k, self.v(x).heads(self.n_kv_head), scale=self.scale))


def load_head(reader: GGUFReader, model: Decoder) -> LoadedHead:
    """The head of ``model`` that a file holds.  An embedding or output that the file has not is the model's.

    LoadError for keys and tensors that do not fit, UnsupportedError for a head of another model, by its sizes, and for
    what is not known.
    """
    m, w, of_model = Keys(reader.metadata), Weights(reader, lambda tensor: tensor), model.config
    n_known = w.n_rows("output.weight") if w.has("output.weight") else of_model.n_vocab
    c = DenseConfig.read(m, n_known)
    m.only("block_count", 1)
    m.only("vocab_size", of_model.n_vocab)
    m.only("target_hidden_size" if m.has("target_hidden_size") else "embedding_length", of_model.dim)
    if not w.has("token_embd.weight") and c.dim != of_model.dim:
        raise UnsupportedError(
            f"[{m.arch}] a head without an embedding must have the model's hidden size, {of_model.dim}, but has {c.dim}"
        )
    fusion = _fusion(m, w, c, of_model.dim, of_model.n_layer)
    rotation = rope_spec(m, n_dims=c.n_rot, layout="interleaved", factors=frequency_factors(w, c.n_rot))
    b = w.scope("blk.0")
    head = EagleHead(
        dim=c.dim,
        cache=c.cache()[0],
        embedding=w.embedding("token_embd", of_model.n_vocab, c.dim) if w.has("token_embd.weight") else model.embedding,
        embedding_norm=b.norm("attn_norm", c.dim, c.eps),
        feature_norm=b.norm("attn_norm_2", c.dim, c.eps),
        attention=Attention(c, b, rotation),
        ffn_norm=b.norm("ffn_norm", c.dim, c.eps),
        mlp=GatedMLP(b, c.dim, c.ffn_dim),
        norm=w.norm("output_norm", c.dim, c.eps),
        head=w.linear("output", c.dim, n_known) if w.has("output.weight") else _head_of(m, model, c),
        adds_normed=m.flag("norm_before_residual", False),
        leaves_normed=m.flag("norm_output", False),
    )
    tokens = _tokens(w, n_known, of_model.n_vocab)
    m.finish()
    w.finish()
    return LoadedHead(c, head, fusion, tokens)


def _head_of(m: Keys, model: Decoder, c: DenseConfig) -> Linear:
    if c.dim != model.config.dim:
        raise UnsupportedError(
            f"[{m.arch}] a head without an output must have the model's size, {model.config.dim}, but has {c.dim}"
        )
    return model.head


def _fusion(m: Keys, w: Weights, c: DenseConfig, dim: int, n_layer: int) -> Fusion:
    """Of a model of that width and number of layers.  The layers by default are those of the published code."""
    layers = m.some_integers("target_layers", high=MAX_DIM) if m.has("target_layers") else []
    layers = layers or [2, n_layer // 2, n_layer - 3]
    if layers != sorted(set(layers)) or not 0 <= layers[0] <= layers[-1] <= n_layer or len(layers) > MOST_LAYERS_READ:
        raise UnsupportedError(
            f"[{m.arch}] the layers whose hidden states a head reads must ascend, from 0 to the model's {n_layer}, but "
            f"are {', '.join(map(str, layers[:8]))}"
        )
    n = len(layers) * dim
    is_normed, are_normed = m.flag("norm_before_fc", False), m.flag("fc_norm", False)
    return Fusion(
        layers=tuple(layers),
        norms=tuple(w.norm(f"enc.fc_norm.{i}", dim, c.eps) for i in range(len(layers))) if are_normed else (),
        norm=w.norm("enc.output_norm", n, c.eps) if is_normed else None,
        projection=w.linear("fc", n, c.dim),
    )


def _tokens(w: Weights, n_known: int, n_vocab: int) -> tuple[int, ...]:
    if not w.has("d2t"):
        if n_known != n_vocab:
            raise LoadError(f"[eagle3] the head must hold 'd2t' as it knows {n_known} of {n_vocab} tokens but does not")
        return ()
    tokens = tuple(w.whole_numbers("d2t", n_known).tolist())
    if len(set(tokens)) != n_known or not 0 <= min(tokens) <= max(tokens) < n_vocab:
        raise LoadError(f"[eagle3] 'd2t' must lead to tokens of the model that differ, below {n_vocab}, but does not")
    return tokens


def _layers(config: Fields) -> list[int] | None:
    """As files have them: the hidden states that go into those layers.

    A configuration of speculators and vLLM says the same; ``eagle_config``, which is SGLang's and SpecForge's, counts
    what layers leave.
    """
    own, inner = config.items("eagle_aux_hidden_state_layer_ids"), config.inner("eagle_config")
    left = inner.items("eagle_aux_hidden_state_layer_ids")
    if own and left:
        raise UnsupportedError("[draft] 'eagle_aux_hidden_state_layer_ids' of the head must be there once but is twice")
    if not all(isinstance(i, int) and -(2**31) < i < 2**31 - 1 for i in [*own, *left]):
        raise LoadError("[draft] 'eagle_aux_hidden_state_layer_ids' of the head must be whole numbers but are not")
    return [int(str(i)) for i in own] or [int(str(i)) + 1 for i in left] or None


def _flag_of(name: str) -> Key:
    """A flag of the configuration, or of its ``eagle_config``."""

    def read(config: Fields) -> bool | None:
        inner = config.inner("eagle_config")
        value = config.flag(name, inner.flag(name, False))
        return value or None

    return made("bool", read)


_ALWAYS = ("use_aux_hidden_state", "use_input_layernorm_in_first_layer", "use_last_layernorm", "next_layer_regular")


def _known_kind(config: Fields) -> None:
    """UnsupportedError for what is not computed here."""
    inner = config.inner("eagle_config")
    for name in _ALWAYS:
        if not inner.flag(name, True):
            raise UnsupportedError(f"[draft] '{name}' of the head must be true but is false")
    for name in ("use_mtp_layernorm", "parallel_drafting"):
        if inner.flag(name, False) or config.flag(name, False):
            raise UnsupportedError(f"[draft] '{name}' of the head must be false but is true")
    if (n := inner.integer("parallel_draft_step", 1)) != 1:
        raise UnsupportedError(f"[draft] 'parallel_draft_step' of the head must be 1 but is {n}")
    inner.read(("parallel_draft_heads_num_layers",))  # of steps that there are not
    if config.text("speculators_model_type", "eagle3") != "eagle3":
        raise UnsupportedError(
            f"[draft] 'speculators_model_type' must be eagle3 but is '{config.text('speculators_model_type'):.40}'"
        )
    if config.has("speculators_model_type") and not config.has("norm_before_residual"):
        raise LoadError("[draft] 'norm_before_residual' must be in config.json of a head of speculators but is not")


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
    "blk.0.attn_q": taken(f"{_LAYER}self_attn.q_proj", change=interleaved("num_attention_heads")),
    "blk.0.attn_k": taken(
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
    "attention.key_length": made("u32", head_dim_of),
    "attention.value_length": made("u32", head_dim_of),
    "rope.dimension_count": made("u32", head_dim_of),
    "vocab_size": u32("vocab_size"),
    "target_hidden_size": u32("target_hidden_size", "hidden_size"),
    "target_layers": made("i32[]", _layers),
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
        ignored=("d2t", "t2d"),  # a made tensor, and what tells the same
        base="",
        is_head=True,
        has_empty_layers=True,  # no name has a layer's number
    )
}
