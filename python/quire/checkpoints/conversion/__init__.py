"""Convert Hugging Face checkpoints and PEFT adapters to GGUF."""

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
