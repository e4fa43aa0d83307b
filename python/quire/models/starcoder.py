"""StarCoder (Li et al. 2023): GPT-2 with multi-query attention."""

from __future__ import annotations

from ..checkpoints.mapping import Checkpoint, u32
from .gpt2 import GPT2
from .gpt2 import HF as GPT2_HF

ARCHES = ("starcoder",)
MODEL = GPT2

# --- checkpoint ---

_GPT2 = GPT2_HF["GPT2LMHeadModel"]
_LAYER = "transformer.h.{i}"
# Fields that change how transformers computes, but not the result.
UNUSED = (
    "attention_softmax_in_fp32",
    "scale_attention_softmax_in_fp32",
    "inference_runner",
    "max_batch_size",
    "max_sequence_length",
    "pad_key_length",
    "pre_allocate_kv_cache",
    "validate_runner_input",
    "summary_*",
)
HF = {
    "GPTBigCodeForCausalLM": Checkpoint(
        "starcoder",
        {**_GPT2.keys, "attention.head_count_kv": u32("num_key_value_heads", default=1, low=1)},
        {
            **_GPT2.tensors,
            "blk.{i}.attn_qkv": f"{_LAYER}.attn.c_attn",
            "blk.{i}.attn_output": f"{_LAYER}.attn.c_proj",
            "blk.{i}.ffn_up": f"{_LAYER}.mlp.c_fc",
            "blk.{i}.ffn_down": f"{_LAYER}.mlp.c_proj",
        },
        fixed={
            "activation_function": ("gelu_pytorch_tanh", "gelu_new", "gelu_fast"),
            "scale_attn_weights": (True,),
            "multi_query": (True,),
            "num_key_value_heads": (1, None),
        },
        rope=None,
        tied=True,
        unused=("n_ctx", *UNUSED),
        ignored=("*h.*.attn.bias", "*h.*.attn.masked_bias"),
        base="transformer.",
    )
}
