"""Grok 2's folders: files of all ranks (``*-TP-common.safetensors``) and of each (``*-TP-000.safetensors``, ...).

Ranks have a part of each expert's matrices (SGLang's ``load_presharded_moe``).  Here the parts are joined.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import LoadError, UnsupportedError
from ...files.safetensors import SafetensorsFile, SafetensorsFolder

if TYPE_CHECKING:
    from typing import Any

    import numpy as np
    import numpy.typing as npt

    from ..._native.core import Tensor

__all__ = ["RankTensors", "has_rank_files"]

_FILE = re.compile(r".*-TP-(common|\d{3})\.safetensors")
# The experts' matrices and the dimension that ranks share: w1 and w3 have rows of units, w2 columns.
_SPLIT = re.compile(r".*\.block_sparse_moe\.experts\.\d+\.w([123])\.weight")


def has_rank_files(folder: Path) -> bool:
    return any(_FILE.fullmatch(path.name) for path in folder.glob("*-TP-*.safetensors"))


class RankTensors(SafetensorsFolder):
    """The joined tensors.  Raises LoadError if a rank's files or parts are missing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        names = sorted(path.name for path in folder.glob("*-TP-*.safetensors") if _FILE.fullmatch(path.name))
        self._files = {name: SafetensorsFile(folder / name) for name in names}
        self._where: dict[str, str] = {}
        self._parts: dict[str, dict[str, SafetensorsFile]] = {}  # by rank
        for name, file in self._files.items():
            (rank,) = _FILE.fullmatch(name).groups()  # type: ignore[union-attr]
            for tensor in file:
                if rank in self._parts.setdefault(tensor, {}):
                    raise LoadError(f"[safetensors] tensor '{tensor}' is in several files of rank '{rank}'")
                self._parts[tensor][rank] = file
                self._where.setdefault(tensor, name)
        ranks = sorted({rank for parts in self._parts.values() for rank in parts if rank != "common"})
        if ranks != [f"{i:03}" for i in range(len(ranks))]:
            raise LoadError(f"[safetensors] the files of ranks {', '.join(ranks)} are there: one is missing")
        for tensor, parts in self._parts.items():
            if len(parts) > 1 and sorted(parts) != ranks:
                raise LoadError(
                    f"[safetensors] tensor '{tensor}' is in the files of {len(parts)} of {len(ranks)} ranks"
                )
            if len(parts) > 1 and not _SPLIT.fullmatch(tensor):
                raise UnsupportedError(f"[safetensors] unsupported tensor split among ranks: '{tensor}'")

    def _parts_of(self, name: str) -> tuple[list[SafetensorsFile], int]:
        """Return the files with the parts, by rank, and the dimension to join."""
        self._place(name)  # raises LoadError if there is no such tensor
        split = _SPLIT.fullmatch(name)
        axis = 1 if split is not None and split[1] == "2" else 0
        return [file for _, file in sorted(self._parts[name].items())], axis

    def __getitem__(self, name: str) -> Tensor:
        files, _ = self._parts_of(name)
        return files[0].tensor_of(name, self.array(name))

    def array(self, name: str) -> npt.NDArray[Any]:
        import numpy as np

        files, axis = self._parts_of(name)
        parts = [file.array(name) for file in files]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis)

    def bytes_of(self, name: str) -> npt.NDArray[np.uint8]:
        files, _ = self._parts_of(name)
        files[0].bytes_of(name)  # raises LoadError for other types
        joined: npt.NDArray[np.uint8] = self.array(name)
        return joined

    def n_bytes(self, name: str) -> int:
        files, _ = self._parts_of(name)
        return sum(file.n_bytes(name) for file in files)

    def shape(self, name: str) -> tuple[int, ...]:
        files, axis = self._parts_of(name)
        shapes = [file.shape(name) for file in files]
        if len(shapes) == 1:
            return shapes[0]
        if len({(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}) != 1:
            raise LoadError(f"[safetensors] the parts of '{name}' have shapes {shapes}, which do not fit together")
        return (*shapes[0][:axis], sum(shape[axis] for shape in shapes), *shapes[0][axis + 1 :])
