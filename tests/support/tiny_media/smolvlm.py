"""SmolVLM with tiles of 64 pixels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from . import FIRST_MARK, TinyFamily, randomized

TILES = [f"<row_{row}_col_{col}>" for row in range(1, 4) for col in range(1, 4)]
MARKS = ("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", "<|im_start|>", *TILES)
TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{ message.role | capitalize }}"
    "{% if message.content[0]['type'] == 'image' %}:{% else %}: {% endif %}"
    "{% for part in message.content %}{% if part.type == 'text' %}{{ part.text }}"
    "{% elif part.type == 'image' %}<image>{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
PROCESSOR = {
    "image_processor_type": "SmolVLMImageProcessor",
    "size": {"longest_edge": 192},
    "max_image_size": {"longest_edge": 64},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def make() -> Any:
    import torch
    import transformers

    torch.manual_seed(5)
    config = transformers.SmolVLMConfig(
        text_config={
            "model_type": "llama", "vocab_size": 288, "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
            "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
        },
        vision_config={
            "hidden_size": 48, "intermediate_size": 72, "num_hidden_layers": 2, "num_attention_heads": 3,
            "image_size": 64, "patch_size": 8,
        },
        scale_factor=4, image_token_id=FIRST_MARK,
    )  # fmt: skip
    return randomized(transformers.SmolVLMForConditionalGeneration(config).eval())


def image_processor() -> Any:
    from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

    return SmolVLMImageProcessorPil(**{name: value for name, value in PROCESSOR.items() if name[-4:] != "type"})


def processor(folder: Path) -> Any:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return transformers.Idefics3Processor(image_processor(), tokenizer, image_seq_len=4, chat_template=TEMPLATE)


def inputs(model: Any, tokens: Any, images: Sequence[npt.NDArray[Any]]) -> dict[str, Any]:
    from PIL import Image

    pictures = [[Image.fromarray(image) for image in images]]
    found: dict[str, Any] = dict(image_processor()(pictures, return_tensors="pt"))
    return {name: found[name] for name in ("pixel_values", "pixel_attention_mask")}


def encoded(model: Any, image: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    output = model.model.get_image_features(**inputs(model, None, [image]))
    rows: npt.NDArray[np.float32] = np.concatenate([tile.numpy().reshape(-1, 64) for tile in output.pooler_output])
    return rows


FAMILY = TinyFamily(make, MARKS, "<image>", TEMPLATE, PROCESSOR, inputs, encoded, prompter=processor)
