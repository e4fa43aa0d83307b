"""MPT (MosaicML 2023): ALiBi, layer norms, no biases."""

from __future__ import annotations

from .._native.graph import clamp
from ..checkpoints.mapping import Checkpoint, Fields, computed, f32, u32
from ..errors import LoadError, UnsupportedError
from ..nn import MLP, Keys, LayerNorm, Step, Tensor, Weights
from .base import DenseConfig
from .classic import EPS, AlibiAttention, Block, LayerNormDecoder, LinearBiases, PositionTable

ARCHES = ("mpt",)


class Attention(AlibiAttention):
    """Attention with ALiBi.  ``limit``: clamp for q, k and v; 0: none.  Files may have norms of whole q and k rows."""

    def __init__(
        self, config: DenseConfig, weights: Weights, layer: int, biases: LinearBiases | None, limit: float
    ) -> None:
        super().__init__(config, weights, layer, biases)
        self.limit = limit
        has_norms = weights.has("attn_q_norm.weight")
        self.norms: list[LayerNorm] | None = None
        if has_norms:
            sizes = {"q": config.n_head * config.head_dim, "k": config.n_kv_head * config.head_dim}
            self.norms = [weights.layer_norm(f"attn_{one}_norm", n, config.eps) for one, n in sizes.items()]

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (clamp(y, -self.limit, self.limit) if self.limit else y for y in (self.q(x), self.k(x), self.v(x)))
        if self.norms:
            q, k = self.norms[0](q), self.norms[1](k)
        return q.heads(self.n_head), k.heads(self.n_kv_head), v.heads(self.n_kv_head)


class MPT(LayerNormDecoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab, eps=EPS)
        limit, max_bias = keys.number("attention.clamp_kqv", 0.0), keys.number("attention.max_alibi_bias", 0.0)
        if limit < 0 or max_bias < 0:
            raise LoadError(f"[mpt] negative attention.clamp_kqv {limit} or attention.max_alibi_bias {max_bias}")
        self.positions = PositionTable(config, weights) if weights.has("position_embd.weight") else None
        biases = LinearBiases(weights, config.n_head, max_bias) if max_bias else None
        blocks = [
            Block(
                config,
                block,
                Attention(config, block, i, biases, limit),
                MLP(block, config.dim, config.ffn_dim, "gelu"),
            )
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)

    def __call__(self, step: Step) -> Tensor:
        x = self.embedding(step.tokens)
        return self.logits(x + self.positions(step) if self.positions else x, step)


MODEL = MPT

# --- checkpoint ---


def _ffn_dim(config: Fields) -> int:
    return 4 * config.integer("d_model", 2048)


def _limit(config: Fields) -> float | None:
    return config.inner("attn_config").number("clip_qkv", 0.0) or None


def _max_bias(config: Fields) -> float:
    return config.inner("attn_config").integer("alibi_bias_max", 8)


def _attention(config: Fields) -> None:
    """Reject options of ``attn_config`` for which files have no keys."""
    fields = config.inner("attn_config")
    fixed = {
        "attn_type": "multihead_attention",
        "softmax_scale": None,
        "prefix_lm": False,
        "qk_ln": False,
        "alibi": True,
        "kv_n_heads": None,
        "rope": False,
    }
    for name, wanted in fixed.items():
        if fields.value(name) not in (wanted, None):
            raise UnsupportedError(
                f"[convert] unsupported '{name}' of 'attn_config': {fields.value(name)} (expected {wanted})"
            )
    fields.read(("attn_impl", "attn_pdrop", "attn_uses_sequence_id"))


_LAYER = "transformer.blocks.{i}"
_CHECKPOINT = Checkpoint(
    "mpt",
    {
        "context_length": u32("max_seq_len", default=2048, low=1),
        "embedding_length": u32("d_model", default=2048),
        "block_count": u32("n_layers", default=24),
        "feed_forward_length": computed("u32", _ffn_dim),
        "attention.head_count": u32("n_heads", default=16, low=1),
        "attention.layer_norm_epsilon": f32("layer_norm_epsilon", default=1e-5),
        "attention.clamp_kqv": computed("f32", _limit),
        "attention.max_alibi_bias": computed("f32", _max_bias),
    },
    {
        "token_embd": "transformer.wte",
        "output_norm": "transformer.norm_f",
        "output": "lm_head",
        "blk.{i}.attn_norm": f"{_LAYER}.norm_1",
        "blk.{i}.attn_qkv": f"{_LAYER}.attn.Wqkv",
        "blk.{i}.attn_output": f"{_LAYER}.attn.out_proj",
        "blk.{i}.ffn_norm": f"{_LAYER}.norm_2",
        "blk.{i}.ffn_up": f"{_LAYER}.ffn.up_proj",
        "blk.{i}.ffn_down": f"{_LAYER}.ffn.down_proj",
    },
    fixed={"expansion_ratio": (4,), "logit_scale": (None,), "no_bias": (True,)},
    checks=(_attention,),
    rope=None,
    tied=True,
    unused=(
        "embedding_fraction",
        "init_config",
        "init_device",
        "learned_pos_emb",
        "norm_type",
        "tokenizer_name",
        "verbose",
    ),
    base="transformer.",
)
HF = {"MPTForCausalLM": _CHECKPOINT, "MptForCausalLM": _CHECKPOINT}  # published files name the first
