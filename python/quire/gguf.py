"""GGUF files: a strict reader and an atomic writer; the public name of ``quire.files.gguf``."""

from .files.gguf import NUMBER_CODES, REQUIRED, GGUFReader, GGUFWriter, LoadMode, Metadata, Required

__all__ = ["NUMBER_CODES", "REQUIRED", "GGUFReader", "GGUFWriter", "LoadMode", "Metadata", "Required"]
