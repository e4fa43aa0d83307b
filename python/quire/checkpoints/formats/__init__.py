"""Checkpoints that other programs quantized, by ``quant_method``: one file for each format.

A format reads its fields of ``quantization_config`` and gives a ``StoredMatrix`` for each matrix under the name of the
tensor that it stands for (``folder.FORMATS``).  Architectures know nothing of that.
"""

from .folder import StoredCheckpoint, by_slabs
from .matrix import Contents, Format, StoredMatrix
from .old_files import with_old_quantization

__all__ = ["Contents", "Format", "StoredCheckpoint", "StoredMatrix", "by_slabs", "with_old_quantization"]
