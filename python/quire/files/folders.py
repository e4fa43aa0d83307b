"""Recognize checkpoint folders by the names of their files."""

from __future__ import annotations

from pathlib import Path

__all__ = ["MISTRAL_PARAMS", "MISTRAL_STEM", "is_checkpoint_folder", "is_mistral_folder"]

MISTRAL_PARAMS, MISTRAL_STEM = "params.json", "consolidated"


def is_checkpoint_folder(folder: Path) -> bool:
    """Return True for a folder with a checkpoint in transformers' form or in Mistral's own."""
    return (folder / "config.json").is_file() or is_mistral_folder(folder)


def is_mistral_folder(folder: Path) -> bool:
    """Return True for a folder in Mistral's own form, unless it also has the weights in transformers' form."""
    return (
        (folder / MISTRAL_PARAMS).is_file()
        and any(folder.glob(f"{MISTRAL_STEM}*.safetensors"))
        and not ((folder / "config.json").is_file() and any(folder.glob("model*.safetensors")))
    )
