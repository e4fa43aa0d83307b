"""Tiny models that read images, with random weights, saved by transformers with a tokenizer of bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tiny_checkpoints import tokenizer_json

MARKS = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|im_start|>", "<|im_end|>", "<|video_pad|>")
FIRST_MARK = 259
N_VOCAB = 288
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "size": {"shortest_edge": 1024, "longest_edge": 65536},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def mark_id(text: str) -> int:
    return FIRST_MARK + MARKS.index(text)


def randomized(model: Any) -> Any:
    """Give norms and biases values that tell them apart; a fresh model has ones and zeros."""
    import torch

    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name or name.endswith(".bias"):
                weight.add_(torch.randn_like(weight) * 0.2)
            elif weight.ndim > 1:
                weight.mul_(4)
    return model


def qwen3vl() -> Any:
    """Qwen3-VL with two deep-stack layers."""
    import torch
    import transformers

    torch.manual_seed(3)
    config = transformers.Qwen3VLConfig(
        text_config={
            "vocab_size": N_VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 2048,
            "rope_scaling": {"rope_type": "default", "mrope_section": [6, 5, 5], "mrope_interleaved": True},
        },
        vision_config={
            "depth": 4, "hidden_size": 64, "intermediate_size": 96, "num_heads": 2, "out_hidden_size": 64,
            "num_position_embeddings": 144, "deepstack_visual_indexes": [1, 2],
        },
        image_token_id=mark_id("<|image_pad|>"), video_token_id=mark_id("<|video_pad|>"),
        vision_start_token_id=mark_id("<|vision_start|>"), vision_end_token_id=mark_id("<|vision_end|>"),
    )  # fmt: skip
    return randomized(transformers.Qwen3VLForConditionalGeneration(config).eval())


def save(model: Any, folder: Path) -> None:
    """Save a model with the tokenizer, the template and the image processor's settings."""
    model.save_pretrained(folder)
    words = tokenizer_json()
    words["added_tokens"] += [  # type: ignore[operator]
        {"id": FIRST_MARK + i, "content": text, "special": True} for i, text in enumerate(MARKS)
    ]
    (folder / "tokenizer.json").write_text(json.dumps(words))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": False, "chat_template": TEMPLATE})
    )
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
