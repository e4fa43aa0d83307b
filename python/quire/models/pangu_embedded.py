"""openPangu Embedded (Chen et al. 2025): Llama with RoPE on halves and attention biases."""

from __future__ import annotations

from ..checkpoints.mapping import (
    DECODER_KEYS,
    DECODER_TENSORS,
    SILU,
    Checkpoint,
    computed,
    no_windows,
    only_with,
    tensor,
    u32,
)
from .exaone import Exaone
from .llama import head_dim_of

ARCHES = ("pangu-embedded",)
MODEL = Exaone

# --- checkpoint ---

_LAYER = "model.layers.{i}.self_attn"
_BIASES = only_with("bias", default=True, biases=True)
HF = {
    "PanguEmbeddedForCausalLM": Checkpoint(
        "pangu-embedded",
        {
            **DECODER_KEYS,
            "attention.key_length": computed("u32", head_dim_of),
            "attention.value_length": computed("u32", head_dim_of),
            "rope.dimension_count": computed("u32", head_dim_of),
            "vocab_size": u32("vocab_size"),
        },
        {
            **DECODER_TENSORS,
            **{f"blk.{{i}}.attn_{one}": tensor(f"{_LAYER}.{one}_proj", change=_BIASES) for one in "qkv"},
            "blk.{i}.attn_output": tensor(f"{_LAYER}.o_proj", change=_BIASES),
        },
        fixed={"hidden_act": SILU},
        checks=(no_windows,),
        unused=("bias",),
    )
}
