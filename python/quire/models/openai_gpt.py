"""GPT (Radford et al. 2018): learned positions, layer norms after attention and MLP, biases everywhere."""

from __future__ import annotations

from ..checkpoints.mapping import Checkpoint, computed, f32, tensor, transposed, u32
from ..nn import MLP, CacheSpec, Keys, Step, Tensor, Weights, select_rows
from .base import DenseConfig
from .classic import EPS, Attention, PositionTable

ARCHES = ("openai-gpt",)


class Block:
    def __init__(self, config: DenseConfig, weights: Weights, layer: int) -> None:
        self.attention = Attention(config, weights, layer)
        self.mlp = MLP(weights, config.dim, config.ffn_dim, "gelu_tanh")
        self.norms = [
            weights.layer_norm(name, config.dim, config.eps) for name in ("attn_output_norm", "layer_output_norm")
        ]

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = self.norms[0](x + self.attention(x, step))
        return self.norms[1](x + self.mlp(x))


class OpenAIGPT:
    """No norm precedes the output matrix, as one ends the last layer."""

    def __init__(self, keys: Keys, weights: Weights, n_vocab: int) -> None:
        self.config = config = DenseConfig.read(keys, n_vocab, eps=EPS)
        self.embedding, self.positions = (
            weights.embedding("token_embd", n_vocab, config.dim),
            PositionTable(config, weights),
        )
        self.blocks = [Block(config, block, i) for i, block in enumerate(weights.blocks(config.n_layer))]
        own = weights.has("output.weight")
        self.head = weights.linear("output", config.dim, n_vocab) if own else self.embedding.as_head()

    def cache(self) -> list[CacheSpec]:
        return self.config.cache()

    def __call__(self, step: Step) -> Tensor:
        x = step.run_layers(self.blocks, self.embedding(step.tokens) + self.positions(step))
        return self.head(select_rows(x, step.logit_rows))


MODEL = OpenAIGPT

# --- checkpoint ---

_LAYER = "transformer.h.{i}"
HF = {
    "OpenAIGPTLMHeadModel": Checkpoint(
        "openai-gpt",
        {
            "context_length": u32("n_positions", default=512, low=1),
            "embedding_length": u32("n_embd", default=768),
            "block_count": u32("n_layer", default=12),
            "feed_forward_length": computed("u32", lambda config: 4 * config.integer("n_embd", 768)),
            "attention.head_count": u32("n_head", default=12, low=1),
            "attention.layer_norm_epsilon": f32("layer_norm_epsilon", default=1e-5),
        },
        {
            "token_embd": "transformer.tokens_embed",
            "position_embd": "transformer.positions_embed",
            "output": "lm_head",
            "blk.{i}.attn_qkv": tensor(f"{_LAYER}.attn.c_attn", change=transposed),
            "blk.{i}.attn_output": tensor(f"{_LAYER}.attn.c_proj", change=transposed),
            "blk.{i}.attn_output_norm": f"{_LAYER}.ln_1",
            "blk.{i}.ffn_up": tensor(f"{_LAYER}.mlp.c_fc", change=transposed),
            "blk.{i}.ffn_down": tensor(f"{_LAYER}.mlp.c_proj", change=transposed),
            "blk.{i}.layer_output_norm": f"{_LAYER}.ln_2",
        },
        fixed={"afn": ("gelu",)},
        rope=None,
        tied=True,
        unused=("n_ctx", "n_special", "predict_special_tokens", "summary_*"),
        ignored=("*h.*.attn.bias",),  # causal masks
        base="transformer.",
    )
}
