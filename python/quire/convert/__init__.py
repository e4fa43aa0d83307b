"""Hugging Face checkpoints to GGUF files."""

from .made_reader import MadeReader
from .run import DTYPES, CheckpointReader, convert

__all__ = ["DTYPES", "CheckpointReader", "MadeReader", "convert"]
