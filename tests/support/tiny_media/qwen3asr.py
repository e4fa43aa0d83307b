"""Qwen3-ASR."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from . import FIRST_MARK, TinyFamily
from .whisper import N_MELS, PROCESSOR, halved, template

MARKS = ("<|audio_start|>", "<|audio_pad|>", "<|audio_end|>", "<|im_start|>", "<|im_end|>", "<asr_text>")


def make() -> Any:
    import torch
    import transformers

    torch.manual_seed(8)
    config = transformers.Qwen3ASRConfig(
        text_config={
            "vocab_size": 288, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 32,
            "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 2048,
        },
        audio_config={
            "d_model": 48, "encoder_layers": 4, "encoder_attention_heads": 3, "encoder_ffn_dim": 64,
            "num_mel_bins": N_MELS, "output_dim": 64, "downsample_hidden_size": 12,
        },
        audio_token_id=FIRST_MARK + 1, pad_token_id=258, eos_token_id=257,
    )  # fmt: skip
    return halved(transformers.Qwen3ASRForConditionalGeneration(config).eval())


def inputs(model: Any, tokens: Any, sounds: Sequence[npt.NDArray[Any]]) -> dict[str, Any]:
    """Return the spectrograms that transformers' extractor makes of each sound alone; in a batch the ends differ."""
    import torch
    import transformers
    from torch.nn.functional import pad

    extractor = transformers.Qwen3ASRFeatureExtractor(feature_size=N_MELS)
    options = {"sampling_rate": 16_000, "padding": True, "return_tensors": "pt", "return_attention_mask": True}
    found = [extractor(samples, **options) for samples in sounds]
    longest = max(each["attention_mask"].shape[1] for each in found)
    names = {"input_features": "input_features", "attention_mask": "input_features_mask"}
    return {
        theirs: torch.cat([pad(each[ours], (0, longest - each[ours].shape[-1])) for each in found])
        for ours, theirs in names.items()
    }


def encoded(model: Any, samples: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    rows: npt.NDArray[np.float32] = model.model.get_audio_features(
        **inputs(model, None, [samples])
    ).pooler_output.numpy()
    return rows


FAMILY = TinyFamily(
    make, MARKS, "<|audio_pad|>", template("<|audio_start|><|audio_pad|>", "<|audio_end|>"), PROCESSOR, inputs, encoded
)
