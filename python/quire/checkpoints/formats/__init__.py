"""Read checkpoints that other programs quantized, by ``quant_method``; one file per format.

A format reads its fields of ``quantization_config`` and returns a ``StoredMatrix`` for each matrix, under the name of
the unquantized tensor (``folder.FORMATS``).  Architectures do not see the difference.
"""

from .folder import StoredCheckpoint, by_slabs
from .matrix import Contents, Format, StoredMatrix
from .old_files import with_old_quantization

__all__ = ["Contents", "Format", "StoredCheckpoint", "StoredMatrix", "by_slabs", "with_old_quantization"]
