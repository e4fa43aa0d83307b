"""Llama with bidirectional attention, such as Llama-Embed-Nemotron (Babakhin et al. 2025)."""

from __future__ import annotations

from typing import ClassVar

from ..checkpoints.mapping import SILU, Checkpoint, computed
from ..nn.rotary import Layout
from . import llama
from .eurobert import EuroBert

ARCHES = ("llama-embed",)


class LlamaEmbed(EuroBert):
    """Files store q and k interleaved, as for Llama."""

    LAYOUT: ClassVar[Layout] = "interleaved"


MODEL = LlamaEmbed

# --- checkpoint ---

HF = {
    "LlamaBidirectionalModel": Checkpoint(
        "llama-embed",
        {**llama.KEYS, "attention.causal": computed("bool", lambda config: False)},
        {ours: theirs for ours, theirs in llama.TENSORS.items() if ours != "output"},
        fixed={"hidden_act": SILU},
        unused=("attention_bias", "mlp_bias", "pooling"),
        ignored=("lm_head.*",),
    )
}
