"""Voxtral."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from . import FIRST_MARK, TinyFamily
from .whisper import N_MELS, PROCESSOR, frames, halved, template

MARKS = ("[BEGIN_AUDIO]", "[AUDIO]", "<|im_start|>", "<|im_end|>", "[TRANSCRIBE]")


def make() -> Any:
    import torch
    import transformers

    torch.manual_seed(6)
    config = transformers.VoxtralConfig(
        text_config={
            "vocab_size": 288, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 32,
            "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 4096, "eos_token_id": 257,
        },
        # Four hidden states side by side are as many numbers as the encoder's MLP has.
        audio_config={
            "hidden_size": 48, "intermediate_size": 192, "num_hidden_layers": 3, "num_attention_heads": 3, "num_mel_bins": N_MELS,
        },
        audio_token_id=FIRST_MARK + 1,
    )  # fmt: skip
    return halved(transformers.VoxtralForConditionalGeneration(config).eval())


def inputs(model: Any, tokens: Any, sounds: Sequence[npt.NDArray[Any]]) -> dict[str, Any]:
    import torch

    return {"input_features": torch.cat([frames(samples)[0] for samples in sounds])}


def encoded(model: Any, samples: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    rows: npt.NDArray[np.float32] = model.get_audio_features(frames(samples)[0]).pooler_output.numpy()
    return rows


FAMILY = TinyFamily(make, MARKS, "[AUDIO]", template("[BEGIN_AUDIO]", "[AUDIO]"), PROCESSOR, inputs, encoded)
