"""Ultravox, which transformers does not have: its layers of Whisper and Llama, and the projector by its definition."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from . import FIRST_MARK, TinyFamily
from .whisper import ENCODER, PROCESSOR, frames, halved, template

MARKS = ("<|reserved_special_token_0|>", "<|im_start|>", "<|im_end|>")
STACK = 8


def make() -> Any:
    import torch
    import transformers
    from torch import nn
    from torch.nn import functional
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    torch.manual_seed(7)
    dim, n_mid, n_text = ENCODER["d_model"], 40, 64

    class Projector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ln_pre, self.ln_mid = nn.RMSNorm(STACK * dim, eps=1e-6), nn.RMSNorm(n_mid, eps=1e-6)
            self.linear_1 = nn.Linear(STACK * dim, 2 * n_mid, bias=False)
            self.linear_2 = nn.Linear(n_mid, n_text, bias=False)

        def forward(self, x: Any) -> Any:
            x, gate = self.linear_1(self.ln_pre(x)).chunk(2, dim=-1)
            return self.linear_2(self.ln_mid(x * functional.silu(gate)))

    class Ultravox(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.audio_tower = WhisperEncoder(transformers.WhisperConfig(**ENCODER))
            self.multi_modal_projector = Projector()
            self.language_model = transformers.LlamaForCausalLM(
                transformers.LlamaConfig(
                    vocab_size=288, hidden_size=n_text, intermediate_size=96, num_hidden_layers=2,
                    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=2048, eos_token_id=257,
                )
            )  # fmt: skip

        def rows(self, samples: npt.NDArray[Any]) -> Any:
            """Encode windows of 30 seconds, the last one as long as it is."""
            tower, found = self.audio_tower, []
            spectrogram, _ = frames(samples, is_padded=False)
            for window in spectrogram.split(3000, dim=2):
                x = functional.gelu(tower.conv2(functional.gelu(tower.conv1(window)))).transpose(1, 2)
                x = x + tower.embed_positions.weight[: x.shape[1]]
                for layer in tower.layers:
                    x = layer(x, attention_mask=None)
                    x = x[0] if isinstance(x, tuple) else x
                x = functional.pad(tower.layer_norm(x), (0, 0, 0, -x.shape[1] % STACK))
                found.append(self.multi_modal_projector(x.reshape(1, -1, STACK * dim))[0])
            return torch.cat(found)

        def generate(self, input_ids: Any, sounds: Sequence[npt.NDArray[Any]], **options: Any) -> Any:
            embeddings = self.language_model.get_input_embeddings()(input_ids)
            embeddings[input_ids == FIRST_MARK] = torch.cat([self.rows(samples) for samples in sounds])
            made = self.language_model.generate(inputs_embeds=embeddings, **options)
            return torch.cat([input_ids, made], dim=1)

        def save_pretrained(self, folder: Path) -> None:
            from safetensors.torch import save_file

            (folder / "config.json").write_text(
                json.dumps(
                    {
                        "architectures": ["UltravoxModel"], "stack_factor": STACK, "projector_act": "swiglu",
                        "projector_ln_mid": True, "audio_config": self.audio_tower.config.to_dict(),
                        "text_config": {"hidden_size": n_text},
                    }
                )
            )  # fmt: skip
            kept = {name: x for name, x in self.state_dict().items() if not name.startswith("language_model.")}
            save_file(kept, folder / "model.safetensors")

    return halved(Ultravox().eval())


def inputs(model: Any, tokens: Any, sounds: Sequence[npt.NDArray[Any]]) -> dict[str, Any]:
    return {"sounds": sounds}


def encoded(model: Any, samples: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    rows: npt.NDArray[np.float32] = model.rows(samples).numpy()
    return rows


FAMILY = TinyFamily(make, MARKS, MARKS[0], template("", MARKS[0]), PROCESSOR, inputs, encoded)
