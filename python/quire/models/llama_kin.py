"""Classes whose forward pass is that of Llama: Aquila, InternLM and InternLM 3, IQuest Coder, Helium, GritLM."""

from __future__ import annotations

from dataclasses import replace

from ..checkpoints.mapping import DECODER_TENSORS, Fields, computed
from . import llama

# --- checkpoint ---


def _head_dim(config: Fields) -> int:
    return config.integer("head_dim", 128)


_LLAMA = llama.HF["LlamaForCausalLM"]
_WIDE = replace(  # heads of 128 unless config.json says otherwise
    _LLAMA,
    keys={
        **_LLAMA.keys,
        **dict.fromkeys(
            ("attention.key_length", "attention.value_length", "rope.dimension_count"), computed("u32", _head_dim)
        ),
    },
    unused=(*_LLAMA.unused, "qkv_bias", "bias"),
)
_OLD = replace(_LLAMA, unused=(*_LLAMA.unused, "bias"))  # biases of q, k, v and o are in the checkpoint, or not
HF = {
    "GritLM": llama.HF["MistralForCausalLM"],
    "AquilaForCausalLM": _OLD,
    "AquilaModel": _OLD,
    "InternLMForCausalLM": _OLD,
    "InternLM3ForCausalLM": _WIDE,
    "IQuestCoderForCausalLM": replace(_WIDE, fixed={**_WIDE.fixed, "clip_qkv": (None,)}),
    "HeliumForCausalLM": replace(_WIDE, tensors=DECODER_TENSORS),  # its checkpoints are interleaved
}
