"""Read the files in which AutoGPTQ and AutoAWQ described a checkpoint before config.json did."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..reading import read_json

__all__ = ["OLD_FILES", "with_old_quantization"]

OLD_FILES: Mapping[str, str] = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
_NAMES = {"w_bit": "bits", "q_group_size": "group_size"}  # AutoAWQ's names, and those of quantization_config


def with_old_quantization(values: Mapping[str, object], folder: Path) -> Mapping[str, object]:
    """Return config.json with the ``quantization_config`` of an old file, unless it has its own.

    Raises LoadError for an old file that is not a JSON object.
    """
    name = next((name for name in OLD_FILES if (folder / name).is_file()), None)
    if name is None or any(field in values for field in ("quantization_config", "compression_config")):
        return values
    fields = {_NAMES.get(field, field): value for field, value in read_json(folder / name).items()}
    return {**values, "quantization_config": {"quant_method": OLD_FILES[name], **fields}}
