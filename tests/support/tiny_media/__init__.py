"""Tiny models that read images or hear sounds, with random weights, saved by transformers: one module per family."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tiny_checkpoints import tokenizer_json

__all__ = ["AUDIO_FAMILIES", "FAMILIES", "FIRST_MARK", "OMNI_FAMILIES", "TinyFamily", "family", "randomized"]

# The tokenizer of bytes has 259 tokens; a family's marks follow.
FIRST_MARK = 259
FAMILIES = (
    "gemma3",
    "gemma4",
    "gemma4small",
    "glm4v",
    "glm4vmoe",
    "glmocr",
    "kimik25",
    "lfm2vl",
    "lightonocr",
    "internvl",
    "llama4",
    "llava",
    "llavanext",
    "paddleocr",
    "pixtral",
    "pixtral12b",
    "qwen25vl",
    "qwen2vl",
    "qwen35",
    "qwen35moe",
    "qwen3vl",
    "smolvlm",
)
AUDIO_FAMILIES = ("qwen2audio", "qwen3asr", "ultravox", "voxtral")
# Images and sounds.
OMNI_FAMILIES = ("gemma4omni", "qwen25omni", "qwen3omni")


@dataclass(frozen=True)
class TinyFamily:
    """A family's tiny model.

    Attributes:
        make: Returns transformers' model, always with the same weights.
        marks: Special tokens besides those of the tokenizer of bytes.
        pad: The placeholder among them.
        template: The chat template.
        processor: The contents of preprocessor_config.json.
        inputs: Returns what ``generate`` takes besides ``input_ids``, for these ids and images or sounds.
        encoded: Returns the rows that transformers puts in the prompt for one image or sound.
        has_state: Some of its layers are recurrent.
        prompter: Returns transformers' processor of the saved model, which lays out prompts; None: not compared.
        max_step_tokens: Tokens of short steps, which hold an image whose rows are computed together.
    """

    make: Callable[[], Any]
    marks: Sequence[str]
    pad: str
    template: str
    processor: Mapping[str, Any]
    inputs: Callable[[Any, Any, Sequence[npt.NDArray[Any]]], dict[str, Any]]
    encoded: Callable[[Any, npt.NDArray[Any]], npt.NDArray[np.float32]]
    has_state: bool = False
    prompter: Callable[[Path], Any] | None = None
    max_step_tokens: int = 32

    @property
    def pad_id(self) -> int:
        return FIRST_MARK + list(self.marks).index(self.pad)

    def greedy(self, model: Any, ids: Sequence[int], items: Sequence[npt.NDArray[Any]]) -> list[int]:
        """Return transformers' 12 greedy tokens after a prompt with these images or sounds."""
        import torch

        tokens = torch.tensor([ids])
        with torch.no_grad():
            out = model.generate(
                input_ids=tokens, attention_mask=torch.ones_like(tokens), do_sample=False, max_new_tokens=12,
                min_new_tokens=12, eos_token_id=None, pad_token_id=258, **self.inputs(model, tokens, items),
            )  # fmt: skip
        found: list[int] = out[0, len(ids) :].tolist()
        return found

    def save(self, model: Any, folder: Path) -> None:
        """Save a model with the tokenizer, the template and the processor's settings."""
        model.save_pretrained(folder)
        self.save_texts(folder)

    def save_texts(self, folder: Path) -> None:
        """Save the tokenizer, the template and the processor's settings."""
        words = tokenizer_json()
        # transformers' tokenizers need every field.
        plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        added: Any = words["added_tokens"]
        added += [{"id": FIRST_MARK + i, "content": text, "special": True} for i, text in enumerate(self.marks)]
        words["added_tokens"] = [{**plain, **token} for token in added]
        words["pre_tokenizer"] = words["decoder"] = {
            "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True,
        }  # fmt: skip
        (folder / "tokenizer.json").write_text(json.dumps(words))
        (folder / "tokenizer_config.json").write_text(
            json.dumps(
                {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": False, "chat_template": self.template}
            )
        )
        (folder / "preprocessor_config.json").write_text(json.dumps(self.processor))


def family(name: str) -> TinyFamily:
    """Return a family by the name of its module."""
    found: TinyFamily = import_module(f"tiny_media.{name}").FAMILY
    return found


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
