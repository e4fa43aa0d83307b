"""Whisper (Radford et al. 2022): an encoder of sound, a decoder with cross attention that writes what is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..checkpoints.mapping import Checkpoint, Key, Source, computed, tensor, u32
from ..nn import CacheSpec, Keys, Step, Tensor, Weights, activate, select_rows
from .base import DenseConfig, Vectors
from .classic import EPS, PositionTable
from .media.whisper import LAYER, WINDOW, column

ARCHES = ("whisper",)


@dataclass(frozen=True)
class WhisperConfig(DenseConfig):
    """Sizes of the decoder.  The encoder, whose rows ``encode`` reads, is ``media.whisper.WhisperSource``."""

    start: int

    @property
    def decoder_start(self) -> int:
        return self.start

    @property
    def n_source(self) -> int:
        return WINDOW // 2

    def cache(self, windows: Sequence[int] | None = None) -> list[CacheSpec]:
        """Return the decoder's layers twice: for its own text, then for the sound."""
        kept = [
            CacheSpec(n_kv_head=self.n_head, head_dim=self.head_dim, of_source=of_source) for of_source in (False, True)
        ]
        return [kept[0]] * self.n_layer + [kept[1]] * self.n_layer


class DecoderBlock:
    """A decoder layer; its own text is layer ``i`` of the cache, the sound is layer ``source``."""

    def __init__(self, config: WhisperConfig, weights: Weights, i: int) -> None:
        self.n_head, self.i, self.source, self.scale = config.n_head, i, config.n_layer + i, config.head_dim**-0.5
        dim = config.dim
        self.norm, self.cross_norm, self.ffn_norm = (
            weights.layer_norm(f"{name}_norm", dim, config.eps, bias=True) for name in ("attn", "cross_attn", "ffn")
        )
        self.q, self.k, self.v, self.o = (weights.linear(f"attn_{one}", dim, dim, bias=None) for one in "qkvo")
        self.cross_q, self.cross_k, self.cross_v, self.cross_o = (
            weights.linear(f"cross_attn_{one}", dim, dim, bias=None) for one in "qkvo"
        )
        self.up = weights.linear("ffn_up", dim, config.ffn_dim, bias=True)
        self.down = weights.linear("ffn_down", config.ffn_dim, dim, bias=True)

    def write_source(self, encoded: Tensor, step: Step) -> None:
        k, v = (linear(encoded).heads(self.n_head) for linear in (self.cross_k, self.cross_v))
        step.write_source(self.source, k, v)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        y = self.norm(x)
        q, k, v = (linear(y).heads(self.n_head) for linear in (self.q, self.k, self.v))
        x = x + self.o(step.attend(self.i, q, k, v, scale=self.scale))
        q = self.cross_q(self.cross_norm(x)).heads(self.n_head)
        x = x + self.cross_o(step.attend_to_source(self.source, q, scale=self.scale))
        return x + self.down(activate(self.up(self.ffn_norm(x)), "gelu"))


class Whisper:
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        sizes = DenseConfig.read(keys, n_vocab, eps=EPS)
        start = keys.integer("decoder_start_token_id", low=0, high=n_vocab - 1)
        self.config = config = WhisperConfig(**vars(sizes), start=start)
        self.embedding = weights.embedding("token_embd", config.n_vocab, config.dim)
        self.positions = PositionTable(config, weights)
        self.blocks = [DecoderBlock(config, weights.scope(f"dec.blk.{i}"), i) for i in range(config.n_layer)]
        self.norm = weights.layer_norm("dec.output_norm", config.dim, config.eps, bias=True)
        self.head = self.embedding.as_head()

    def cache(self) -> list[CacheSpec]:
        return self.config.cache()

    def encode(self, step: Step) -> Vectors:
        x = step.features(self.config.dim)
        for block in self.blocks:
            block.write_source(x, step)
        return Vectors(select_rows(x, step.logit_rows))

    def __call__(self, step: Step) -> Tensor:
        x = step.run_layers(self.blocks, self.embedding(step.tokens) + self.positions(step))
        return self.head(self.norm(select_rows(x, step.logit_rows)))


MODEL = Whisper

# --- checkpoint ---

_KEYS: dict[str, Key] = {
    "context_length": u32("max_target_positions", default=448),
    "embedding_length": u32("d_model", default=384),
    "block_count": u32("decoder_layers", default=4),
    "feed_forward_length": u32("decoder_ffn_dim", default=1536),
    "attention.head_count": u32("decoder_attention_heads", default=6),
    "attention.layer_norm_epsilon": computed("f32", lambda config: 1e-5),
    "decoder_start_token_id": u32("decoder_start_token_id", default=50257),
    "audio.embedding_length": u32("d_model", default=384),
    "audio.projection_dim": u32("d_model", default=384),
    "audio.block_count": u32("encoder_layers", default=4),
    "audio.feed_forward_length": u32("encoder_ffn_dim", default=1536),
    "audio.attention.head_count": u32("encoder_attention_heads", default=6),
    "audio.attention.layer_norm_epsilon": computed("f32", lambda config: 1e-5),
    "audio.num_mel_bins": u32("num_mel_bins", default=80),
}
_ENCODER, _DECODER = "model.encoder", "model.decoder.layers.{i}"
_TENSORS: dict[str, str | Source] = {
    "token_embd": "model.decoder.embed_tokens",
    "position_embd": "model.decoder.embed_positions",
    "dec.output_norm": "model.decoder.layer_norm",
    "dec.blk.{i}.attn_norm": f"{_DECODER}.self_attn_layer_norm",
    "dec.blk.{i}.cross_attn_norm": f"{_DECODER}.encoder_attn_layer_norm",
    "dec.blk.{i}.ffn_norm": f"{_DECODER}.final_layer_norm",
    "dec.blk.{i}.ffn_up": f"{_DECODER}.fc1",
    "dec.blk.{i}.ffn_down": f"{_DECODER}.fc2",
    "a.position_embd": f"{_ENCODER}.embed_positions",
    "a.post_ln": f"{_ENCODER}.layer_norm",
}
for _ours, _theirs in (("q", "q_proj"), ("k", "k_proj"), ("v", "v_proj"), ("o", "out_proj")):
    _TENSORS[f"dec.blk.{{i}}.attn_{_ours}"] = f"{_DECODER}.self_attn.{_theirs}"
    _TENSORS[f"dec.blk.{{i}}.cross_attn_{_ours}"] = f"{_DECODER}.encoder_attn.{_theirs}"
for _n in (1, 2):
    _TENSORS[f"a.conv1d.{_n}.weight"] = f"{_ENCODER}.conv{_n}.weight"
    _TENSORS[f"a.conv1d.{_n}.bias"] = tensor(f"{_ENCODER}.conv{_n}.bias", change=column)
for _ours, _theirs in LAYER.items():
    _TENSORS[f"a.blk.{{i}}.{_ours}"] = f"{_ENCODER}.layers.{{i}}.{_theirs}"

HF = {
    "WhisperForConditionalGeneration": Checkpoint(
        "whisper",
        _KEYS,
        _TENSORS,
        fixed={
            "is_encoder_decoder": (True,),
            "activation_function": ("gelu",),
            "scale_embedding": (False,),
            "max_source_positions": (WINDOW // 2,),
            "tie_word_embeddings": (True,),
        },
        rope=None,
        tied=True,
        # About training, other classes, and timestamps of words; and the encoder's layers once more.
        unused=(
            "*_layerdrop",
            "init_std",
            "apply_spec_augment",
            "mask_*",
            "classifier_proj_size",
            "use_weighted_layer_sum",
            "median_filter_width",
            "num_hidden_layers",
            "forced_decoder_ids",
            "lang_ids",
        ),
        ignored=("proj_out.weight",),
    )
}
