"""The parts that tiny models with the encoder of Whisper share."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from quire.media.audio import open_extractor

from . import randomized

WINDOW_SAMPLES = 480_000
N_MELS = 40
PROCESSOR = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": N_MELS}
ENCODER = {
    "d_model": 48, "encoder_layers": 3, "encoder_attention_heads": 3, "encoder_ffn_dim": 64, "num_mel_bins": N_MELS,
}  # fmt: skip


def template(begin: str, end: str) -> str:
    return (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n"
        "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
        "{% if part.type == 'audio' %}" + begin + end + "{% else %}{{ part.text }}{% endif %}"
        "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )


def halved(model: Any) -> Any:
    """Give a model random weights; those of convolutions are numbers of f16, as files store them."""
    import torch

    with torch.no_grad():
        for name, weight in randomized(model).named_parameters():
            if ".conv" in name and weight.ndim > 2:
                weight.copy_(weight.half().float())
    return model


def frames(samples: npt.NDArray[np.float32], *, is_padded: bool = True) -> tuple[Any, int]:
    """Return the spectrogram ``[windows, n_mels, frames]`` in torch, and its real frames.

    Other tests show that it equals that of transformers.
    """
    import torch

    length = -(-len(samples) // WINDOW_SAMPLES) * WINDOW_SAMPLES if is_padded else 0
    found = open_extractor(PROCESSOR).extract(samples, length)
    windows = found.frames.reshape(-1, 3000 if is_padded else len(found.frames), N_MELS)
    return torch.from_numpy(windows).transpose(1, 2), found.n_real
