"""InternLM 2 and 2.5 (Cai et al. 2024): Llama, with q, k and v fused in checkpoints."""

from __future__ import annotations

from dataclasses import replace

from ..checkpoints.mapping import (
    DECODER_KEYS,
    SILU,
    Array,
    Change,
    Checkpoint,
    Fields,
    computed,
    interleaved,
    no_windows,
    only_with,
    tensor,
)
from . import llama

ARCHES = ("internlm2",)
MODEL = llama.Windowless

# --- checkpoint ---


def _part(which: str) -> Change:
    """Take the rows of q, k or v: each k head follows the q heads that share it and precedes its v head."""

    def change(x: Array, config: Fields) -> Array:
        n_head, n_kv_head = config.integer("num_attention_heads", low=1), config.integer("num_key_value_heads", low=1)
        n_shared = n_head // n_kv_head
        groups = x.reshape(n_kv_head, n_shared + 2, x.shape[0] // n_kv_head // (n_shared + 2), *x.shape[1:])
        heads = {"q": groups[:, :n_shared], "k": groups[:, n_shared], "v": groups[:, n_shared + 1]}[which]
        rows: Array = heads.reshape(-1, *x.shape[1:])
        n = {"q": "num_attention_heads", "k": "num_key_value_heads"}
        return interleaved(n[which])(rows, config) if which in n else rows

    return only_with("bias", default=True, biases=True, change=change)


_LAYER = "model.layers.{i}"
_INTERNLM2 = Checkpoint(
    "internlm2",
    {
        **DECODER_KEYS,
        "attention.key_length": computed("u32", llama.head_dim_of),
        "attention.value_length": computed("u32", llama.head_dim_of),
    },
    {
        "token_embd": "model.tok_embeddings",
        "output_norm": "model.norm",
        "output": "output",
        "blk.{i}.attn_norm": f"{_LAYER}.attention_norm",
        **{f"blk.{{i}}.attn_{one}": tensor(f"{_LAYER}.attention.wqkv", change=_part(one)) for one in "qkv"},
        "blk.{i}.attn_output": tensor(f"{_LAYER}.attention.wo", change=only_with("bias", default=True, biases=True)),
        "blk.{i}.ffn_norm": f"{_LAYER}.ffn_norm",
        "blk.{i}.ffn_gate": f"{_LAYER}.feed_forward.w1",
        "blk.{i}.ffn_up": f"{_LAYER}.feed_forward.w3",
        "blk.{i}.ffn_down": f"{_LAYER}.feed_forward.w2",
    },
    fixed={"hidden_act": SILU},
    checks=(no_windows,),
    unused=("attn_implementation", "bias"),
)
HF = {
    "InternLM2ForCausalLM": _INTERNLM2,
    # Mono-InternVL: MLPs of their own for rows of images
    "InternLM2VEForCausalLM": replace(_INTERNLM2, ignored=("model.layers.*.feed_forward_ve.*",)),
}
