"""A checkpoint's advice on sampling as GGUF keys."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..checkpoint import Fields, read_json

if TYPE_CHECKING:
    from ..gguf import GGUFWriter

__all__ = ["write_sampling"]

# Fields of generation_config.json, GGUF's keys below general.sampling, and their types.
_NUMBERS = {"temperature": "temp", "top_p": "top_p", "min_p": "min_p", "repetition_penalty": "penalty_repeat"}


def write_sampling(writer: GGUFWriter, folder: Path) -> None:
    """What ``generation_config.json`` says, where there is one; ``do_sample`` false is temperature 0.

    Raises LoadError for values of another type.
    """
    path = folder / "generation_config.json"
    if not path.is_file():
        return
    advice = Fields("generation_config.json", read_json(path))
    if advice.has("do_sample") and not advice.flag("do_sample"):
        writer.set("general.sampling.temp", 0.0, "f32")
        return
    for name, key in _NUMBERS.items():
        if advice.has(name):
            writer.set(f"general.sampling.{key}", advice.number(name), "f32")
    if advice.has("top_k"):
        writer.set("general.sampling.top_k", advice.integer("top_k"), "i32")
