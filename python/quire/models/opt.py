"""OPT (Zhang et al. 2022): learned positions, layer norms, ReLU, biases everywhere."""

from __future__ import annotations

from ..checkpoints.mapping import Checkpoint, Fields, computed, rows, tensor, u32
from ..errors import UnsupportedError
from ..nn import MLP, Keys, Step, Tensor, Weights
from .base import DenseConfig
from .classic import EPS, Attention, Block, LayerNormDecoder, PositionTable

ARCHES = ("opt",)


class OPT(LayerNormDecoder):
    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        config = DenseConfig.read(keys, n_vocab, eps=EPS)
        self.positions = PositionTable(config, weights)
        blocks = [
            Block(config, block, Attention(config, block, i), MLP(block, config.dim, config.ffn_dim, "relu"))
            for i, block in enumerate(weights.blocks(config.n_layer))
        ]
        super().__init__(config, weights, blocks)

    def __call__(self, step: Step) -> Tensor:
        return self.logits(self.embedding(step.tokens) + self.positions(step), step)


MODEL = OPT

# --- checkpoint ---

OFFSET = 2  # rows of the position table before the first position


def _n_positions(config: Fields) -> int:
    return config.integer("max_position_embeddings", 2048, low=1)


def _no_projections(config: Fields) -> None:
    """Require embeddings of the model's width; opt-350m projects narrower ones."""
    width = config.integer("hidden_size", 768)
    if not config.is_null("word_embed_proj_dim") and (found := config.integer("word_embed_proj_dim", width)) != width:
        raise UnsupportedError(f"[convert] unsupported 'word_embed_proj_dim': {found} (expected {width})")


_DECODER = "model.decoder"
_LAYER = f"{_DECODER}.layers.{{i}}"
HF = {
    "OPTForCausalLM": Checkpoint(
        "opt",
        {
            "context_length": computed("u32", _n_positions),
            "embedding_length": u32("hidden_size", default=768),
            "block_count": u32("num_hidden_layers", default=12),
            "feed_forward_length": u32("ffn_dim", default=3072),
            "attention.head_count": u32("num_attention_heads", default=12, low=1),
            "attention.layer_norm_epsilon": computed("f32", lambda config: 1e-5),
        },
        {
            "token_embd": f"{_DECODER}.embed_tokens",
            "position_embd": tensor(
                f"{_DECODER}.embed_positions",
                change=rows(lambda config: OFFSET, lambda config: OFFSET + _n_positions(config)),
            ),
            "output_norm": f"{_DECODER}.final_layer_norm",
            "output": "lm_head",
            "blk.{i}.attn_norm": f"{_LAYER}.self_attn_layer_norm",
            "blk.{i}.attn_q": f"{_LAYER}.self_attn.q_proj",
            "blk.{i}.attn_k": f"{_LAYER}.self_attn.k_proj",
            "blk.{i}.attn_v": f"{_LAYER}.self_attn.v_proj",
            "blk.{i}.attn_output": f"{_LAYER}.self_attn.out_proj",
            "blk.{i}.ffn_norm": f"{_LAYER}.final_layer_norm",
            "blk.{i}.ffn_up": f"{_LAYER}.fc1",
            "blk.{i}.ffn_down": f"{_LAYER}.fc2",
        },
        fixed={
            "activation_function": ("relu",),
            "do_layer_norm_before": (True,),
            "_remove_final_layer_norm": (False,),
            "enable_bias": (True,),
            "layer_norm_elementwise_affine": (True,),
        },
        checks=(_no_projections,),
        rope=None,
        tied=True,
        unused=("prefix",),
        base="model.",
    )
}
