"""Convert Hugging Face checkpoints and PEFT adapters to GGUF."""

from .adapter_pairs import AdapterPairs, adapter_pairs
from .made_reader import MadeReader, Origin
from .peft_reader import PeftFolder, PeftReader, opened_adapters
from .run import DTYPES, CheckpointReader, convert

__all__ = [
    "DTYPES",
    "AdapterPairs",
    "CheckpointReader",
    "MadeReader",
    "Origin",
    "PeftFolder",
    "PeftReader",
    "adapter_pairs",
    "convert",
    "opened_adapters",
]
