"""Differences between llama.cpp and transformers, found with the tiny checkpoints of tests/tiny.

Quire follows transformers.  Each variant is a form of the checkpoint that both programs interpret in the same way.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

__all__ = ["VARIANTS", "Variant"]

Shapes = dict[str, list[int]]


@dataclass(frozen=True)
class Variant:
    """A changed checkpoint.

    ``fields`` replace those of config.json; "section.name" is a field of a section.  ``tensors`` maps patterns of names
    to other shapes, or None to leave the tensor out.  ``kernels``: "stock" (ggml's) if another rounding would change
    the answer.  ``tolerance``: for logits, if it is not the usual one.
    """

    reason: str
    fields: dict[str, object] = field(default_factory=dict)
    tensors: dict[str, list[int] | None] = field(default_factory=dict)
    kernels: str = "auto"
    tolerance: float = 0.0

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
    """Return ``block_configs``: for each layer the q heads of a k and v head, "product" or None, and the MLP factor."""
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


NO_WINDOW = "llama.cpp ignores the window: compared without one"
LONGER = "compared with a position table that is long enough for the prompt"
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
INDEXER = "llama.cpp's indexer needs heads of 64: compared with that size, and contexts in which it picks every token"
VARIANTS = {
    "t5": Variant(
        "llama.cpp does not scale the logits of version 1.0: compared without scaling", {"tie_word_embeddings": False}
    ),
    "t5-gated": Variant(
        "llama.cpp rejects a decoder with more layers than the encoder: compared with two layers",
        {"num_decoder_layers": 2},
        {r"^decoder\.block\.2\.": None},
        kernels="stock",  # because of GELU's table too
    ),
    **{
        name: Variant("llama.cpp looks GELU up in an f16 table: compared with ggml's kernels", kernels="stock")
        for name in ("mt5", "umt5")
    },
    "nomic-bert-moe": Variant(
        "llama.cpp ignores the bias of the experts' sum: compared without it", {}, {r"experts\.bias": None}
    ),
    "afmoe": Variant(
        "llama.cpp applies RoPE in all but every fourth layer, even if other layers have windows: compared "
        "with windows in the same layers",
        {"global_attn_every_n_layers": 4},
    ),
    "baichuan": Variant("llama.cpp applies RoPE only in models with 32 layers, others get no positions"),
    **{name: Variant("llama.cpp has the name GPT-J, but no implementation") for name in ("codegen", "gptj")},
    "distilbert": Variant("llama.cpp requires token types, which DistilBERT lacks"),
    "gemma3n": Variant("llama.cpp always uses four streams"),
    "jina-bert-v3-rank": Variant("llama.cpp has no classifier for this architecture"),
    "deepseek2-groups": Variant(
        "llama.cpp ranks groups by their two best experts, not by the best one: compared without groups",
        {"topk_method": "greedy"},
    ),
    "command-r-plus": Variant(
        "llama.cpp expects query and key norms only in models with 64 layers: compared without norms",
        {"use_qk_norm": False},
        {r"[qk]_norm": None},
    ),
    "deci": Variant(
        "llama.cpp skips attention in layers without an MLP: compared without both in such layers",
        {"block_configs": deci_layers((3, 2.0), (None, 4.5), ("product", 1.0), (None, None), (2, 5.0))},
        {r"layers\.3\.": None},
    ),
    "deepseek32": Variant(
        INDEXER,
        {"index_topk": 256, "index_head_dim": 64},
        {r"indexer\.k_norm": [64], r"indexer\.wk": [64, 64], r"indexer\.wq_b": [768, 36]},
    ),
    "minimax-m3": Variant(
        "llama.cpp picks blocks only with flash attention, whose half precision changes the choice in a few rows: "
        "compared in contexts in which every block is picked",
        {"index_topk_blocks": 8},
    ),
    "deepseek4": Variant(
        "llama.cpp shares rows among 4 or 128 tokens only, and its indexer needs heads of 64: compared with those "
        "sizes, and contexts in which it picks every row",
        {
            "index_topk": 256,
            "index_head_dim": 64,
            "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128},
        },
        {
            r"layers\.2\.attn\.compressor\.ape": [128, 24],
            r"indexer\.compressor\.ape": [4, 128],
            r"indexer\.compressor\.norm": [64],
            r"indexer\.compressor\.w": [128, 56],
            r"indexer\.wq_b": [704, 36],
        },
    ),
    "dots1": Variant(
        "llama.cpp lacks grouped-query attention here: compared with as many k and v heads as q heads",
        {"num_key_value_heads": 6},
        {r"[kv]_proj\.weight": [96, 48]},
    ),
    "dots3note": Variant(
        INDEXER + "; llama.cpp has no expert groups here, and takes shared experts to be as wide as routed ones",
        {
            "index_topk": 256,
            "index_head_dim": 64,
            "n_group": 1,
            "topk_group": 1,
            "shared_experts_intermediate_size": 28,
        },
        {
            r"indexer\.k_norm": [64],
            r"indexer\.wk": [64, 60],
            r"indexer\.wq_b": [576, 36],
            r"shared_experts\.(gate|up)": [56, 60],
            r"shared_experts\.down": [60, 56],
        },
    ),
    "electra": Variant("llama.cpp takes embeddings to be as wide as layers"),
    "exaone-moe": Variant(
        "in one row the scores of two expert groups differ by only 1e-7, and llama.cpp's rounding picks "
        "another group than transformers and Quire: compared without groups",
        {"n_group": 1, "topk_group": 1},
    ),
    "exaone4": Variant(
        "llama.cpp reads windows only in models with 64 layers: compared without windows",
        {"sliding_window": None, "layer_types": ["full_attention"] * 5},
    ),
    "exaone4-full": Variant(
        "llama.cpp reads windows only in models with 64 layers, and heads must together have the model's width: "
        "compared so",
        {"head_dim": 16, "sliding_window": None},
        {r"[qkvo]_proj\.weight": [80, 80], r"[qk]_norm\.weight": [16]},
    ),
    "gemma4-moe": Variant(
        "llama.cpp looks GELU up in an f16 table, which changes the choice of experts in a few rows: "
        "compared with ggml's kernels",
        kernels="stock",
    ),
    "glm-dsa": Variant(
        INDEXER,
        {"index_topk": 256, "index_head_dim": 64},
        {r"indexer\.k_norm": [64], r"indexer\.wk": [64, 48], r"indexer\.wq_b": [704, 28]},
    ),
    "glm5-next": Variant(
        "llama.cpp requires four streams: compared with four",
        {"text_config.hc_mult": 4, "text_config.index_topk": 256},
        {r"hc_(attn|ffn)_base": [24], r"hc_(attn|ffn)_fn": [24, 224]},
    ),
    "gpt-oss": Variant(
        "llama.cpp rounds the ends of YaRN's ramp, although config.json says not to: compared with ends that "
        "are integers",
        {"rope_parameters": WHOLE_RAMP},
    ),
    "gpt2": Variant(LONGER, {"n_positions": 256, "n_ctx": 256}, {r"wpe\.weight": [256, 60]}),
    "grok": Variant(
        "llama.cpp normalizes the weights of the chosen experts, does not cap the router's scores, and multiplies "
        "rotated heads by YaRN's factor: compared with all experts chosen, a high cap and no YaRN",
        {"num_experts_per_tok": 6, "router_logit_softcapping": 1e5, "rope_type": "original"},
        kernels="stock",  # because of GELU's table too
        tolerance=1e-2,
    ),
    "grok-1": Variant(
        "llama.cpp does not cap the router's scores, and looks GELU up in an f16 table: compared with ggml's kernels",
        kernels="stock",
        tolerance=1e-2,
    ),
    "grovemoe": Variant("llama.cpp feeds the large experts' output to the small ones, instead of the layer's input"),
    "hunyuan_vl": Variant(
        "llama.cpp computes each pair's angle from the one before, whose rounding grows with the position",
        tolerance=1e-2,
    ),
    "hy_v4": Variant(
        INDEXER,
        {"index_topk": 256, "index_head_dim": 64},
        {r"indexer\.k_norm": [64], r"indexer\.wk": [64, 60], r"indexer\.wq_b": [704, 36]},
    ),
    "lfm2moe": Variant("llama.cpp ignores routed_scaling_factor: compared with 1", {"routed_scaling_factor": 1.0}),
    "llama4": Variant(
        "llama.cpp supports only the published values of chunk size, floor_scale and attn_scale: compared with those",
        {"attention_chunk_size": 8192, "floor_scale": 8192, "attn_scale": 0.1},
    ),
    "mamba": Variant(
        "llama.cpp lacks projection biases: compared without biases",
        {"use_bias": False},
        {r"(in|out)_proj\.bias": None},
    ),
    "mellum": Variant(
        "llama.cpp uses the full-attention layers' RoPE base in windowed layers too: compared with a single base",
        {"rope_parameters": ONE_BASE},
    ),
    "mimo2": Variant(
        "llama.cpp ignores biases of q, k and v, and routed_scaling_factor: compared without them",
        {"attention_bias": False, "routed_scaling_factor": 1.0},
        {r"self_attn\.[qkv]_proj\.bias": None},
    ),
    "mistral": Variant(NO_WINDOW, {"sliding_window": None}),
    "mistral3": Variant(NO_WINDOW, {"sliding_window": None}),
    "mixtral": Variant(NO_WINDOW, {"sliding_window": None}),
    "nemotron_h": Variant(
        "llama.cpp lacks biases in Mamba's projections: compared without biases",
        {"use_bias": False},
        {r"mixer\.(in|out)_proj\.bias": None},
    ),
    "nemotron_h_moe": Variant(
        "llama.cpp expects experts in all MLP layers or none: compared without the plain MLP",
        {"layers_block_type": ["linear_attention", "moe", "full_attention", "moe"]},
        {r"layers\.4\.": None},
    ),
    "paddleocr": Variant(
        "llama.cpp has no biases here: compared without them",
        {"use_bias": False},
        {r"model\.layers\..*_proj\.bias": None},
    ),
    "phi3": Variant(NO_WINDOW, {"sliding_window": None}),
    "phimoe": Variant("llama.cpp uses RMS norms and softmax expert weights, transformers layer norms and SparseMixer"),
    "qwen3next": Variant(
        "llama.cpp requires keys and values of the same size: compared with equal sizes",
        {"linear_value_head_dim": 16},
        {
            r"linear_attn\.conv1d": [160, 1, 4],
            r"linear_attn\.in_proj_qkvz": [256, 64],
            r"linear_attn\.norm": [16],
            r"linear_attn\.out_proj": [64, 96],
        },
    ),
    "smallthinker": Variant(
        "llama.cpp always uses windows of 4096: compared with that size", {"sliding_window_size": 4096}
    ),
    "plamo2": Variant(
        "llama.cpp has no windows here, and did not finish the tiny model's first prompt within 20 seconds"
    ),
    "starcoder": Variant(LONGER, {"n_positions": 256}, {r"wpe\.weight": [256, 80]}),
    "starcoder2": Variant(NO_WINDOW, {"sliding_window": None}),
}
