"""Read the JSON files of checkpoint folders, and know which of their fields transformers reads."""

from .fields import Fields, checkpoint_dtype, has_encoder, read_json
from .reference import reference_of

__all__ = ["Fields", "checkpoint_dtype", "has_encoder", "read_json", "reference_of"]
