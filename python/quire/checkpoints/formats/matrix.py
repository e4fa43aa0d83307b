"""A matrix as a checkpoint of another program keeps it."""

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
    """A matrix ``[..., rows, columns]`` in few bits, read some rows at a time (those of all matrices counted on).

    - ``values`` are the numbers that the format's own library makes of it.
    - ``exact_types`` are types of files that hold the same numbers, the smallest first; ``packed`` makes such rows.
    """

    # What numbers of a packed type are multiplied by to be those of the matrix: products are, where it is not 1.
    factor: float = 1.0

    def __init__(self, name: str, shape: tuple[int, ...], dtype: str) -> None:
        """``dtype``: what the library's numbers are rounded to; ``"f32"`` where they take the model's own type."""
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
        """Types that hold every number of the matrix, before the library rounds it, divided by ``factor``."""
        return ()

    @abstractmethod
    def values(self, begin: int, end: int) -> Floats:
        """Rows ``[end - begin, columns]`` as the library dequantizes them."""

    def packed(self, dtype: str, begin: int, end: int) -> Bytes:
        """Rows in one of ``exact_types``, as files have them: ``[end - begin, bytes of a row]``."""
        raise InternalError(f"[convert] '{self.name}' must be of an exact type to be packed but is of none")


@dataclass
class Contents:
    """What of a checkpoint's tensors is stored in few bits.

    ``matrices``: by the name that the tensor has in the unquantized checkpoint.  ``parts``: the tensors that they are
    made of, and those that change nothing here.
    """

    matrices: dict[str, StoredMatrix] = field(default_factory=dict)
    parts: set[str] = field(default_factory=set)

    def add(self, matrix: StoredMatrix, *parts: str) -> None:
        self.matrices[matrix.name] = matrix
        self.parts.update(parts)


# Reads the fields of ``quantization_config`` and finds the matrices.
Format = Callable[["Fields", "SafetensorsFolder"], Contents]
