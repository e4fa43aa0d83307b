"""Llama with bidirectional attention, such as Llama-Embed-Nemotron (Babakhin et al. 2025)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from ..checkpoints.mapping import SILU, Checkpoint, Fields, computed
from ..errors import UnsupportedError
from ..nn.rotary import Layout
from . import llama
from .encoder_heads import CLS, MEAN
from .encoding import HEAD_KEYS
from .eurobert import EuroBert

ARCHES = ("llama-embed",)


class LlamaEmbed(EuroBert):
    """Files store q and k interleaved, as for Llama."""

    LAYOUT: ClassVar[Layout] = "interleaved"


MODEL = LlamaEmbed

# --- checkpoint ---

_POOLINGS = {"avg": MEAN, "cls": CLS}


def _pooling(config: Fields) -> int:
    """Return what a classifier scores: the mean of all tokens, or the first one."""
    pooling = config.text("pooling", "avg")
    if pooling not in _POOLINGS:
        raise UnsupportedError(f"[convert] unsupported 'pooling': '{pooling}' (expected {' or '.join(_POOLINGS)})")
    return _POOLINGS[pooling]


_MODEL = Checkpoint(
    "llama-embed",
    {**llama.KEYS, "attention.causal": computed("bool", lambda config: False)},
    {ours: theirs for ours, theirs in llama.TENSORS.items() if ours != "output"},
    fixed={"hidden_act": SILU},
    unused=("attention_bias", "mlp_bias", "pooling", "temperature"),
    ignored=("lm_head.*",),
)
HF = {
    "LlamaBidirectionalModel": _MODEL,
    # The rerankers of Llama Nemotron.
    "LlamaBidirectionalForSequenceClassification": replace(
        _MODEL,
        keys={**_MODEL.keys, **HEAD_KEYS, "classifier.pooling_type": computed("u32", _pooling)},
        tensors={**_MODEL.tensors, "cls.output": "score"},
    ),
}
