"""Hugging Face checkpoints to GGUF files."""

from .run import DTYPES, convert

__all__ = ["DTYPES", "convert"]
