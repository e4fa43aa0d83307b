"""Ouro (ByteDance 2025): Nanbeige 4.2 with norms after attention and MLP too.

Every token runs through all passes, as with the published threshold of 1 for an early exit; its gate is not used.
"""

from __future__ import annotations

from dataclasses import replace

from ..checkpoints.mapping import computed
from . import llama, nanbeige
from .base import SandwichBlock

ARCHES = ("ouro",)


class Ouro(nanbeige.Nanbeige):
    block = SandwichBlock


MODEL = Ouro

# --- checkpoint ---

_LLAMA = llama.HF["LlamaForCausalLM"]
HF = {
    "OuroForCausalLM": replace(
        _LLAMA,
        arch="ouro",
        keys={
            **_LLAMA.keys,
            "num_loops": computed("u32", lambda config: config.integer("total_ut_steps", 4, low=1)),
        },
        tensors={
            **_LLAMA.tensors,
            "blk.{i}.post_attention_norm": "model.layers.{i}.input_layernorm_2",
            "blk.{i}.post_ffw_norm": "model.layers.{i}.post_attention_layernorm_2",
        },
        fixed={**_LLAMA.fixed, "early_exit_threshold": (1.0, None), "early_exit_step": (None,)},
        ignored=("model.early_exit_gate.*",),
    )
}
