"""CLIP (Radford et al. 2021) and SigLIP (Zhai et al. 2023): the text encoder beside an encoder of images."""

from __future__ import annotations

from dataclasses import replace

from .._native.graph import quick_gelu
from ..checkpoints.mapping import Checkpoint, Fields, Key, Source, computed, f32, u32
from ..errors import LoadError, UnsupportedError
from ..nn import MLP, CacheSpec, Keys, Step, Tensor, Weights, embed, select_rows
from .base import Layer, Vectors
from .encoder_heads import head_of
from .encoding import ENCODER_KEYS, Attention, EncoderConfig

ARCHES = ("clip-text", "siglip-text")
ACTIVATIONS = ("quick_gelu", "gelu", "gelu_tanh")
LAST = 3  # pooling_type of the last token: the end of the text, or the last padding


class Block:
    def __init__(self, config: EncoderConfig, weights: Weights, attention: Attention, activation: str) -> None:
        self.attn_norm, self.mlp_norm = (
            weights.layer_norm(name, config.dim, config.eps, bias=True) for name in ("attn_norm", "ffn_norm")
        )
        gelu: Layer | str = quick_gelu if activation == "quick_gelu" else activation
        self.attention, self.mlp = attention, MLP(weights, config.dim, config.ffn_dim, gelu)  # type: ignore[arg-type]

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.attention(self.attn_norm(x), step)
        return x + self.mlp(self.mlp_norm(x))


class ClipText:
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        import numpy as np

        is_causal = keys.arch == "clip-text"
        self.config = config = EncoderConfig.read_file(keys, weights, n_vocab, is_causal=is_causal)
        keys.only("pooling_type", LAST)
        length = 0 if is_causal else keys.integer("padded_length", low=1, high=config.n_ctx_train)
        if not is_causal and length != config.n_ctx_train:
            raise LoadError(f"[{keys.arch}] padded_length is {length}: expected context_length {config.n_ctx_train}")
        activation = keys.text("hidden_activation")
        if activation not in ACTIVATIONS:
            expected = ", ".join(ACTIVATIONS)
            raise UnsupportedError(f"[{keys.arch}] unsupported hidden_activation '{activation}': expected {expected}")
        self.tokens = weights.embedding("token_embd", n_vocab, config.dim)
        self.positions = weights.tensor("position_embd.weight", (config.n_ctx_train, config.dim))
        # Texts are short, so attention is causal by a bias: nothing for the token itself and earlier ones.
        later = np.tile(np.array([0.0, 0.0, -1e9], np.float32), (config.n_head, 1))
        bias = weights.computed("causal_bias", later) if is_causal else None
        blocks = weights.blocks(config.n_layer)
        self.blocks = [Block(config, block, Attention(config, block, bias=bias), activation) for block in blocks]
        self.norm = weights.layer_norm("output_norm", config.dim, config.eps, bias=True)
        self.n_out = weights.n_rows("dense_2.weight")
        self.projection = head_of(keys, weights, config.dim, config.classes)

    def cache(self) -> list[CacheSpec]:
        return [CacheSpec()] * self.config.n_layer

    def __call__(self, step: Step) -> Vectors:
        x = self.tokens(step.tokens) + embed(step.positions, self.positions)
        x = select_rows(step.run_layers(self.blocks, x), step.logit_rows)
        return Vectors(self.projection(self.norm(x)))


MODEL = ClipText

# --- checkpoint ---

_ACTIVATIONS = {"gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}


def _activation(default: str) -> Key:
    def read(config: Fields) -> str:
        found = config.text("hidden_act", default)
        name = _ACTIVATIONS.get(found, found)
        if name not in ACTIVATIONS:
            raise UnsupportedError(f"[convert] unsupported 'hidden_act': {found:.40} (expected quick_gelu or gelu)")
        return name

    return computed("string", read)


def _sizes(dim: int, ffn_dim: int, n_head: int, n_ctx: int, eps: float) -> dict[str, Key]:
    """Return the keys of sizes, with transformers' defaults."""
    return {
        **ENCODER_KEYS,
        "context_length": u32("max_position_embeddings", default=n_ctx),
        "embedding_length": u32("hidden_size", default=dim),
        "block_count": u32("num_hidden_layers", default=12),
        "feed_forward_length": u32("intermediate_size", default=ffn_dim),
        "attention.head_count": u32("num_attention_heads", default=n_head, low=1),
        "attention.layer_norm_epsilon": f32("layer_norm_eps", default=eps),
        "pooling_type": computed("u32", lambda config: LAST),
    }


_CLIP_KEYS: dict[str, Key] = {
    **_sizes(512, 2048, 8, 77, 1e-5),
    "attention.causal": computed("bool", lambda config: True),
    "hidden_activation": _activation("quick_gelu"),
}
_SIGLIP_KEYS: dict[str, Key] = {
    **_sizes(768, 3072, 12, 64, 1e-6),
    # The model was trained on texts that padding fills up, and attends to it.
    "padded_length": u32("max_position_embeddings", default=64),
    "hidden_activation": _activation("gelu_pytorch_tanh"),
}
_LAYER = "text_model.encoder.layers.{i}"
_TENSORS: dict[str, str | Source] = {
    "token_embd": "text_model.embeddings.token_embedding",
    "position_embd": "text_model.embeddings.position_embedding",
    "blk.{i}.attn_norm": f"{_LAYER}.layer_norm1",
    "blk.{i}.attn_q": f"{_LAYER}.self_attn.q_proj",
    "blk.{i}.attn_k": f"{_LAYER}.self_attn.k_proj",
    "blk.{i}.attn_v": f"{_LAYER}.self_attn.v_proj",
    "blk.{i}.attn_output": f"{_LAYER}.self_attn.out_proj",
    "blk.{i}.ffn_norm": f"{_LAYER}.layer_norm2",
    "blk.{i}.ffn_up": f"{_LAYER}.mlp.fc1",
    "blk.{i}.ffn_down": f"{_LAYER}.mlp.fc2",
    "output_norm": "text_model.final_layer_norm",
}
_CLIP = Checkpoint(
    "clip-text",
    _CLIP_KEYS,
    {**_TENSORS, "dense_2": "text_projection"},
    rope=None,
    section="text_config",
    unused=(
        "vision_config", "*_config_dict", "projection_dim", "logit_scale_init_value", "tie_word_embeddings",
    ),
    ignored=("vision_model.*", "visual_projection.*", "logit_scale", "*position_ids"),
    base="",
)  # fmt: skip
_SIGLIP = replace(
    _CLIP,
    arch="siglip-text",
    keys=_SIGLIP_KEYS,
    tensors={**_TENSORS, "dense_2": "text_model.head"},
    unused=("vision_config", "projection_size", "tie_word_embeddings", "logit_scale", "logit_bias"),
    ignored=("vision_model.*", "logit_scale", "logit_bias", "*position_ids"),
)
HF = {
    "CLIPModel": _CLIP,
    "CLIPTextModelWithProjection": replace(_CLIP, section=""),
    "SiglipModel": _SIGLIP,
    "SiglipTextModel": replace(_SIGLIP, section="", base="text_model."),
    "Siglip2Model": _SIGLIP,
}
