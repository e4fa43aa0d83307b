"""XVERSE (XVERSE Technology 2023): Llama."""

from __future__ import annotations

from ..checkpoints.mapping import Checkpoint
from . import llama

ARCHES = ("xverse",)
MODEL = llama.Windowless

# --- checkpoint ---

_LLAMA = llama.HF["LlamaForCausalLM"]
HF = {
    "XverseForCausalLM": Checkpoint(
        "xverse",
        _LLAMA.keys,
        _LLAMA.tensors,
        fixed=_LLAMA.fixed,
        checks=_LLAMA.checks,
        unused=(*_LLAMA.unused, "max_tokenizer_truncation"),
    )
}
