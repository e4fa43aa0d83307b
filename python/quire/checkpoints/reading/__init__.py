"""Read the JSON files of checkpoint folders, and know which of their fields transformers reads."""

from .fields import Fields, read_json
from .folder import checkpoint_dtype, has_encoder, read_config
from .reference import reference_of

__all__ = ["Fields", "checkpoint_dtype", "has_encoder", "read_config", "read_json", "reference_of"]
