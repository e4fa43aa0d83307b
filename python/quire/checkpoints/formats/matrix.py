"""A quantized matrix of a checkpoint."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...errors import InternalError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ...files.safetensors import SafetensorsFolder
    from ..reading import Fields

    Floats = npt.NDArray[np.float32]
    Bytes = npt.NDArray[np.uint8]


class StoredMatrix(ABC):
    """A quantized matrix ``[..., rows, columns]``, read a few rows at a time.  Rows are numbered across all matrices.

    - ``values`` returns the numbers to which the format's own library dequantizes it.
    - ``exact_types`` returns the GGUF types that represent these numbers exactly, smallest first; ``packed`` returns
      rows in such a type.
    """

    # Numbers in a packed type times this factor are those of the matrix.  If it is not 1, products are multiplied by
    # it.
    factor: float = 1.0

    def __init__(self, name: str, shape: tuple[int, ...], dtype: str) -> None:
        """``dtype`` is the type to which the library rounds; ``"f32"`` if it uses the model's own type."""
        self.name = name
        self.shape = shape
        self.dtype = dtype

    @property
    def n_rows(self) -> int:
        return math.prod(self.shape[:-1])

    @property
    def n_columns(self) -> int:
        return self.shape[-1]

    def exact_types(self) -> tuple[str, ...]:
        """Return the types that exactly represent every number / ``factor``, before the library's rounding."""
        return ()

    @abstractmethod
    def values(self, begin: int, end: int) -> Floats:
        """Return rows ``[end - begin, columns]`` as the library dequantizes them."""

    def packed(self, dtype: str, begin: int, end: int) -> Bytes:
        """Return rows in one of ``exact_types``, as stored in files: ``[end - begin, bytes of a row]``."""
        raise InternalError(f"[convert] '{self.name}' has no exact type and cannot be packed")


@dataclass
class Contents:
    """The quantized part of a checkpoint.

    ``matrices`` has the name of the unquantized tensor as key.  ``parts`` are the tensors that the matrices are made
    of, and those without effect.
    """

    matrices: dict[str, StoredMatrix] = field(default_factory=dict)
    parts: set[str] = field(default_factory=set)

    def add(self, matrix: StoredMatrix, *parts: str) -> None:
        self.matrices[matrix.name] = matrix
        self.parts.update(parts)


# Reads the fields of ``quantization_config`` and returns the matrices.
Format = Callable[["Fields", "SafetensorsFolder"], Contents]
