"""Hugging Face checkpoints to GGUF files, and PEFT's adapters as such."""

from .made_reader import MadeReader, Origin
from .peft_reader import PeftFolder, PeftReader, opened_adapters
from .run import DTYPES, CheckpointReader, convert

__all__ = [
    "DTYPES",
    "CheckpointReader",
    "MadeReader",
    "Origin",
    "PeftFolder",
    "PeftReader",
    "convert",
    "opened_adapters",
]
