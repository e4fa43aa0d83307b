"""Qwen2-Audio."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from . import FIRST_MARK, TinyFamily
from .whisper import ENCODER, PROCESSOR, frames, halved, template

MARKS = ("<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>", "<|im_start|>", "<|im_end|>")


def make() -> Any:
    import torch
    import transformers

    torch.manual_seed(5)
    config = transformers.Qwen2AudioConfig(
        text_config={
            "vocab_size": 288, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048,
        },
        audio_config=ENCODER,
        audio_token_index=FIRST_MARK + 1,
    )  # fmt: skip
    return halved(transformers.Qwen2AudioForConditionalGeneration(config).eval())


def inputs(model: Any, tokens: Any, sounds: Sequence[npt.NDArray[Any]]) -> dict[str, Any]:
    import torch

    found = [frames(samples) for samples in sounds]
    mask = torch.tensor([[1] * n_real + [0] * (3000 - n_real) for _, n_real in found])
    return {"input_features": torch.cat([each for each, _ in found]), "feature_attention_mask": mask}


def encoded(model: Any, samples: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    import torch

    spectrogram, n_real = frames(samples)
    n = (n_real - 1) // 2 + 1
    mask = torch.zeros(1, 1, 1, 1500)
    mask[..., n:] = -torch.inf
    states = model.model.audio_tower(spectrogram, attention_mask=mask).last_hidden_state
    rows: npt.NDArray[np.float32] = model.model.multi_modal_projector(states)[0, : (n - 2) // 2 + 1].numpy()
    return rows


FAMILY = TinyFamily(
    make, MARKS, "<|AUDIO|>", template("Audio: <|audio_bos|><|AUDIO|>", "<|audio_eos|>\n"), PROCESSOR, inputs, encoded
)
