"""Ministral 3 and later Mistrals (Mistral AI 2025): Llama with YaRN, and queries that grow with their position."""

from __future__ import annotations

from collections.abc import Iterator

from .._native.graph import scale_by_position
from ..checkpoints.mapping import SILU, Checkpoint, Fields, computed, rope_keys, u32, window, with_pictures
from ..checkpoints.mapping.rope import Entry, kind_of, rope_of
from ..errors import UnsupportedError
from ..nn import CacheSpec, GatedMLP, Keys, RopeSpec, Step, Tensor, Weights, frequency_factors, rope, rope_spec
from . import llama, mistral4
from .base import Block, Decoder, DenseConfig

ARCHES = ("mistral3",)


class Attention(llama.Attention):
    """Llama's attention; queries grow by ``1 + beta * log(1 + floor(position / n_ctx_orig))``."""

    def __init__(
        self, config: DenseConfig, weights: Weights, layer: int, rotation: RopeSpec, *, beta: float, n_ctx_orig: int
    ) -> None:
        super().__init__(config, weights, layer, rotation)
        self.beta, self.n_ctx_orig = beta, n_ctx_orig

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q = rope(self.q(x).heads(self.n_head), step.positions, self.rotation)
        if self.beta:
            q = scale_by_position(q, step.positions, beta=self.beta, n_ctx=self.n_ctx_orig)
        k = rope(self.k(x).heads(self.n_kv_head), step.positions, self.rotation)
        v = self.v(x).heads(self.n_kv_head)
        return self.o(step.attend(self.layer, q, k, v, scale=self.scale))


class Mistral3(Decoder):
    """Files store q and k interleaved, as for Llama."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab)
        keys.only("expert_count", 0)
        self.window = keys.integer("attention.sliding_window", 0)
        beta = keys.number("attention.temperature_scale", 0.0)
        n_ctx_orig = keys.integer("rope.scaling.original_context_length", config.n_ctx_train, low=1)
        rotation = rope_spec(
            keys, n_dims=config.n_rot, layout="interleaved", factors=frequency_factors(weights, config.n_rot)
        )
        blocks = [
            Block(
                config,
                block,
                Attention(config, block, i, rotation, beta=beta, n_ctx_orig=n_ctx_orig),
                GatedMLP(block, config.dim, config.ffn_dim),
            )
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)

    def cache(self) -> list[CacheSpec]:
        return self.config.cache([self.window] * self.config.n_layer)


MODEL = Mistral3

# --- checkpoint ---


def _beta(config: Fields) -> float:
    return rope_of(config).number("llama_4_scaling_beta")


def _rope(config: Fields) -> Iterator[Entry]:
    if not config.has("rope_parameters"):
        raise UnsupportedError("[convert] 'rope_parameters' is missing from config.json")
    rope = rope_of(config)
    if kind_of(rope) != "yarn":
        raise UnsupportedError(f"[convert] unsupported rope scaling '{kind_of(rope)}': expected yarn")
    entries = rope_keys(config)
    if rope.number("mscale", 0.0) == 1.0 and rope.number("mscale_all_dim", 0.0) and not rope.has("attention_factor"):
        yield "rope.scaling.yarn_log_multiplier", "f32", rope.number("mscale_all_dim")
        entries = (entry for entry in entries if entry[0] != "rope.scaling.attn_factor")
    yield from entries


def _head_dim(config: Fields) -> int:
    if config.has("head_dim") or config.is_null("head_dim"):
        return llama.head_dim_of(config)
    return 128


_TEXT = Checkpoint(
    "mistral3",
    {
        **llama.KEYS,
        "attention.head_count_kv": u32("num_key_value_heads", "num_attention_heads", low=1),
        "attention.key_length": computed("u32", _head_dim),
        "attention.value_length": computed("u32", _head_dim),
        "rope.dimension_count": computed("u32", _head_dim),
        "attention.sliding_window": window(None),
        "attention.temperature_scale": computed("f32", _beta),
    },
    llama.TENSORS,
    fixed={"hidden_act": SILU},
    rope=_rope,
)
_OF_MISTRAL = with_pictures(llama.HF["MistralForCausalLM"], tied=True)


_OF_MISTRAL_4 = with_pictures(mistral4.HF["Mistral4ForCausalLM"], tied=True)


class _Pictured(Checkpoint):
    """The text model is Mistral (``llama``) before Ministral 3, and Mistral 4 in later checkpoints."""

    def chosen(self, whole: Fields) -> Checkpoint:
        others = {"mistral": _OF_MISTRAL, "mistral4": _OF_MISTRAL_4}
        return others.get(whole.inner("text_config").text("model_type", "mistral"), self)


HF = {
    "Ministral3ForCausalLM": _TEXT,
    "Mistral3ForConditionalGeneration": _Pictured(**vars(with_pictures(_TEXT, tied=True))),
}
