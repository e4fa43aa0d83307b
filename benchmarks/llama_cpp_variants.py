"""What llama.cpp does otherwise than transformers, or has no words for, found on the tiny checkpoints of tests/tiny.

Quire does as transformers.  Each variant is a form of the checkpoint that means the same to both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

__all__ = ["VARIANTS", "Variant"]

Shapes = dict[str, list[int]]


@dataclass(frozen=True)
class Variant:
    """``fields`` of config.json that are changed; ``tensors``: by pattern, other shapes, None where there is none.

    ``kernels``: Quire's, or ggml's operators where another rounding changes the answer.
    """

    reason: str
    fields: dict[str, object] = field(default_factory=dict)
    tensors: dict[str, list[int] | None] = field(default_factory=dict)
    kernels: str = "auto"

    def shapes(self, shapes: Shapes) -> Shapes:
        changed: Shapes = {}
        for name, shape in shapes.items():
            matches = [other for pattern, other in self.tensors.items() if re.search(pattern, name)]
            if not matches:
                changed[name] = shape
            elif matches[0] is not None:
                changed[name] = matches[0]
        return changed


def deci_layers(*layers: tuple[object, float | None]) -> list[object]:
    """``block_configs``: heads that share one of k and v, a product, or None; the factor of an MLP, or None."""
    return [
        {
            "attention": {
                "n_heads_in_group": kind if isinstance(kind, int) else None,
                "no_op": kind is None,
                "replace_with_linear": kind == "product",
            },
            "ffn": {"ffn_mult": factor, "no_op": factor is None, "replace_with_linear": False},
        }
        for kind, factor in layers
    ]


NO_WINDOW = "llama.cpp reads no window: compared without"
LONGER = "with positions for the prompt"
WHOLE_RAMP = {
    "rope_type": "yarn", "rope_theta": 10765.0, "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 64,
}  # fmt: skip
ONE_BASE = {
    "full_attention": {
        "rope_type": "yarn", "rope_theta": 50000.0, "factor": 4.0, "original_max_position_embeddings": 32,
    },
    "sliding_attention": {"rope_type": "default", "rope_theta": 50000.0},
}  # fmt: skip
INDEXER = "llama.cpp's indexer needs heads of 64: compared so, with no more tokens than it picks"
VARIANTS = {
    "t5": Variant(
        "llama.cpp does not scale the logits of version 1.0: compared without", {"tie_word_embeddings": False}
    ),
    "t5-gated": Variant(
        "llama.cpp opens no decoder with more layers than the encoder: compared with two",
        {"num_decoder_layers": 2},
        {r"^decoder\.block\.2\.": None},
        kernels="stock",  # by the same table of GELU
    ),
    **{
        name: Variant("llama.cpp looks GELU up in a table of f16: compared with ggml's operators", kernels="stock")
        for name in ("mt5", "umt5")
    },
    "nomic-bert-moe": Variant(
        "llama.cpp leaves the bias of the experts' sum out: compared without", {}, {r"experts\.bias": None}
    ),
    "afmoe": Variant(
        "llama.cpp turns all but every fourth layer, wherever windows are: compared with windows there",
        {"global_attn_every_n_layers": 4},
    ),
    "baichuan": Variant("llama.cpp rotates where there are 32 layers, and else knows no positions"),
    **{name: Variant("llama.cpp names GPT-J and computes nothing of it") for name in ("codegen", "gptj")},
    "distilbert": Variant("llama.cpp wants types of tokens, of which DistilBERT has none"),
    "gemma3n": Variant("llama.cpp has four streams, whatever the file says"),
    "jina-bert-v3-rank": Variant("llama.cpp reads no classifier here"),
    "deepseek2-groups": Variant(
        "llama.cpp ranks groups by their two best experts, not by the best: compared without groups",
        {"topk_method": "greedy"},
    ),
    "command-r-plus": Variant(
        "llama.cpp has norms of heads where there are 64 layers: compared without",
        {"use_qk_norm": False},
        {r"[qk]_norm": None},
    ),
    "deci": Variant(
        "llama.cpp leaves attention out where a layer has no MLP: compared without either there",
        {"block_configs": deci_layers((3, 2.0), (None, 4.5), ("product", 1.0), (None, None), (2, 5.0))},
        {r"layers\.3\.": None},
    ),
    "deepseek32": Variant(
        INDEXER,
        {"index_topk": 256, "index_head_dim": 64},
        {r"indexer\.k_norm": [64], r"indexer\.wk": [64, 64], r"indexer\.wq_b": [192, 36]},
    ),
    "dots1": Variant(
        "llama.cpp has no groups of heads here: compared with as many heads of k and v as of q",
        {"num_key_value_heads": 6},
        {r"[kv]_proj\.weight": [96, 48]},
    ),
    "exaone-moe": Variant(
        "two groups of experts differ by 1e-7 in one row, where llama.cpp's rounding chooses another one than "
        "transformers and Quire: compared without groups",
        {"n_group": 1, "topk_group": 1},
    ),
    "exaone4": Variant(
        "llama.cpp reads windows where there are 64 layers: compared without",
        {"sliding_window": None, "layer_types": ["full_attention"] * 5},
    ),
    "exaone4-full": Variant(
        "llama.cpp has windows where there are 64 layers, and heads as wide together as the model: compared so",
        {"head_dim": 16, "sliding_window": None},
        {r"[qkvo]_proj\.weight": [80, 80], r"[qk]_norm\.weight": [16]},
    ),
    "gemma4-moe": Variant(
        "llama.cpp looks GELU up in a table of f16, which changes the choice of experts in a few rows: compared with "
        "ggml's operators",
        kernels="stock",
    ),
    "glm-dsa": Variant(
        INDEXER,
        {"index_topk": 256, "index_head_dim": 64},
        {r"indexer\.k_norm": [64], r"indexer\.wk": [64, 48], r"indexer\.wq_b": [320, 28]},
    ),
    "gpt-oss": Variant(
        "llama.cpp rounds the ends of YaRN's ramp, which config.json says not to: compared where they are whole",
        {"rope_parameters": WHOLE_RAMP},
    ),
    "gpt2": Variant(LONGER, {"n_positions": 256, "n_ctx": 256}, {r"wpe\.weight": [256, 60]}),
    "lfm2moe": Variant("llama.cpp reads no routed_scaling_factor: compared with 1", {"routed_scaling_factor": 1.0}),
    "llama4": Variant(
        "llama.cpp has the chunk, floor_scale and attn_scale of the published models only: compared with those",
        {"attention_chunk_size": 8192, "floor_scale": 8192, "attn_scale": 0.1},
    ),
    "mamba": Variant(
        "llama.cpp has no biases of projections: compared without", {"use_bias": False}, {r"(in|out)_proj\.bias": None}
    ),
    "mellum": Variant(
        "llama.cpp turns layers with windows by the base of the others: compared with one base",
        {"rope_parameters": ONE_BASE},
    ),
    "mimo2": Variant(
        "llama.cpp adds no biases to q, k and v, and reads no routed_scaling_factor: compared without",
        {"attention_bias": False, "routed_scaling_factor": 1.0},
        {r"self_attn\.[qkv]_proj\.bias": None},
    ),
    "mistral": Variant(NO_WINDOW, {"sliding_window": None}),
    "mistral3": Variant(NO_WINDOW, {"sliding_window": None}),
    "mixtral": Variant(NO_WINDOW, {"sliding_window": None}),
    "nemotron_h": Variant(
        "llama.cpp has no biases of Mamba's projections: compared without",
        {"use_bias": False},
        {r"mixer\.(in|out)_proj\.bias": None},
    ),
    "nemotron_h_moe": Variant(
        "llama.cpp has experts in each MLP where any has: compared without the other one",
        {"layers_block_type": ["linear_attention", "moe", "full_attention", "moe"]},
        {r"layers\.4\.": None},
    ),
    "phi3": Variant(NO_WINDOW, {"sliding_window": None}),
    "phimoe": Variant(
        "llama.cpp has norms of root mean squares, and weights of experts by their softmax, where transformers has "
        "layer norms and a sparse mixer"
    ),
    "qwen3next": Variant(
        "llama.cpp has keys and values of one size: compared so",
        {"linear_value_head_dim": 16},
        {
            r"linear_attn\.conv1d": [160, 1, 4],
            r"linear_attn\.in_proj_qkvz": [256, 64],
            r"linear_attn\.norm": [16],
            r"linear_attn\.out_proj": [64, 96],
        },
    ),
    "smallthinker": Variant(
        "llama.cpp has windows of 4096, whatever the file says: compared so", {"sliding_window_size": 4096}
    ),
    "starcoder": Variant(LONGER, {"n_positions": 256}, {r"wpe\.weight": [256, 80]}),
    "starcoder2": Variant(NO_WINDOW, {"sliding_window": None}),
}
