"""Hugging Face checkpoints to GGUF files."""

from .run import DTYPES, CheckpointReader, convert

__all__ = ["DTYPES", "CheckpointReader", "convert"]
