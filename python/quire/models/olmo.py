"""OLMo (Groeneveld et al. 2024): Llama with layer norms without weights; q, k and v may be clamped."""

from __future__ import annotations

from .._native.graph import clamp
from ..checkpoints.mapping import SILU, Checkpoint, Fields, computed, no_windows
from ..errors import LoadError, UnsupportedError
from ..nn import GatedMLP, Keys, LayerNorm, RopeSpec, Step, Tensor, Weights, rope, rope_spec
from . import llama
from .base import Decoder, DenseConfig, Layer, Mixer, head

ARCHES = ("olmo",)


class Attention(llama.Attention):
    """Llama's attention; ``limit``: clamp for q, k and v, 0: none."""

    def __init__(self, config: DenseConfig, weights: Weights, layer: int, rotation: RopeSpec, limit: float) -> None:
        super().__init__(config, weights, layer, rotation)
        self.limit = limit

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        q, k, v = (clamp(y, -self.limit, self.limit) if self.limit else y for y in (self.q(x), self.k(x), self.v(x)))
        q = rope(q.heads(self.n_head), step.positions, self.rotation)
        k = rope(k.heads(self.n_kv_head), step.positions, self.rotation)
        return self.o(step.attend(self.layer, q, k, v.heads(self.n_kv_head), scale=self.scale))


class Block:
    def __init__(self, norm: LayerNorm, attention: Mixer, mlp: Layer) -> None:
        self.norm, self.attention, self.mlp = norm, attention, mlp

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.attention(self.norm(x), step)
        return x + self.mlp(self.norm(x))


class Olmo(Decoder):
    """Files store q and k interleaved, as for Llama."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        self.config = config = DenseConfig.read(keys, n_vocab, eps="attention.layer_norm_epsilon")
        limit = keys.number("attention.clamp_kqv", 0.0)
        if limit < 0:
            raise LoadError(f"[olmo] negative attention.clamp_kqv: {limit}")
        rotation = rope_spec(keys, n_dims=config.n_rot, layout="interleaved")
        norm = LayerNorm(None, None, config.eps)
        self.embedding = weights.embedding("token_embd", config.n_vocab, config.dim)
        self.blocks = [
            Block(norm, Attention(config, block, i, rotation, limit), GatedMLP(block, config.dim, config.ffn_dim))
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        self.norm = norm
        self.head = head(weights, config, self.embedding)


MODEL = Olmo

# --- checkpoint ---


def _limit(config: Fields) -> float | None:
    if not config.has("clip_qkv"):
        config.read(("clip_qkv",))
        return None
    if (limit := config.number("clip_qkv")) <= 0:
        raise UnsupportedError(f"[convert] 'clip_qkv' {limit} is out of range: expected more than 0")
    return limit


HF = {
    "OlmoForCausalLM": Checkpoint(
        "olmo",
        {
            **{k: v for k, v in llama.KEYS.items() if not k.endswith("rms_epsilon")},
            "attention.layer_norm_epsilon": computed("f32", lambda config: 1e-5),
            "attention.clamp_kqv": computed("f32", _limit),
        },
        llama.TENSORS,
        fixed={"hidden_act": SILU},
        checks=(no_windows,),
        unused=("attention_bias", "rms_norm_eps"),
    )
}
