"""Write a checkpoint folder with adapters merged into its matrices; all else in it stays as it is."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..._native.core import DType, Tensor
from ..._native.quant import dequantize, quantize
from ...errors import LoadError, RequestError, UnsupportedError
from ...files.safetensors import SafetensorsFile
from ...models import load_model
from .adapter_files import undone
from .low_rank import Product
from .made_reader import MadeReader
from .peft_reader import opened_adapters

if TYPE_CHECKING:
    from ...files.gguf import GGUFReader
    from ...nn import Adapter
    from ..mapping import Array

__all__ = ["write_merged_folder"]

_TYPES = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
Progress = Callable[[int, int, str], None]  # finished matrices, all matrices, name


def write_merged_folder(
    folder: Path,
    base: GGUFReader,
    given: Sequence[tuple[str, float]],
    out: Path,
    *,
    progress: Progress | None = None,
) -> list[str]:
    """Copy a checkpoint with adapters merged into its matrices; return the names of these.

    Args:
        folder: The checkpoint.
        base: The same, read as a model's file.
        given: Paths of adapters, GGUF files or PEFT folders, with their scales.
        out: The new folder, which appears when it is complete.
        progress: Called before each matrix, and at the end.

    Raises:
        LoadError: An adapter is malformed or does not fit the model.
        RequestError: The folder exists already.
        UnsupportedError: An adapter changes what Quire cannot change, or matrices are quantized.
    """
    if out.exists():
        raise RequestError(f"[adapter] {out} exists already: name a new folder")
    if not out.absolute().parent.is_dir():
        raise RequestError(f"[adapter] cannot write {out}: there is no folder {out.parent}")
    files = [SafetensorsFile(path) for path in sorted(folder.glob("*.safetensors"))]
    with opened_adapters(given, base) as adapters, tempfile.TemporaryDirectory(dir=out.absolute().parent) as scratch:
        changes = _changes(base, adapters)
        made = Path(scratch) / out.name
        # Without the permissions, which may forbid to write.
        shutil.copytree(folder, made, ignore=shutil.ignore_patterns(".*"), copy_function=shutil.copyfile)
        made.chmod(0o755)
        for done, (name, products) in enumerate(changes.items()):
            if progress is not None:
                progress(done, len(changes), name)
            file = next((file for file in files if name in file), None)
            if file is None:
                raise LoadError(f"[adapter] the checkpoint has no tensor '{name}' in a safetensors file")
            _change(file, made / file.path.name, name, products)
        if progress is not None:
            progress(len(changes), len(changes), "")
        made.rename(out)
    return list(changes)


def _changes(base: GGUFReader, adapters: Sequence[Adapter]) -> dict[str, list[Product]]:
    """Return what is added to each matrix of the checkpoint."""
    import numpy as np

    if not isinstance(base, MadeReader) or (origin := base.origin) is None:
        raise UnsupportedError("[adapter] a folder is written from a checkpoint's folder: name OUT.gguf for a file")
    targets = {target.name: target for target in origin.targets}
    found: dict[str, list[Product]] = {}
    for name, scale in load_model(base, adapters=adapters).products.items():
        for adapter in adapters:
            if f"{name}.lora_a" not in adapter.reader:
                continue
            n_out, n_in = (int(n) for n in base.tensor_info(name).shape)
            rank = adapter.rank_of(name, n_in, n_out)
            right, left = (
                np.asarray(dequantize(adapter.reader.tensor(f"{name}.lora_{half}")), np.float32).reshape(shape)
                for half, shape in (("a", (rank, n_in)), ("b", (n_out, rank)))
            )
            module, product, turns = undone(
                targets[name], Product(left * np.float32(adapter.factor(rank) / scale), right), origin.config
            )
            found.setdefault(f"{module}.weight", []).append(product.turned() if turns else product)
    return found


def _change(source: SafetensorsFile, copy: Path, name: str, products: Sequence[Product]) -> None:
    """Add products to a tensor in a copy of its file."""
    import numpy as np

    kind = _TYPES.get(source.dtype(name))
    if kind is None:
        raise UnsupportedError(f"[adapter] '{name}' is {source.dtype(name)}: expected {', '.join(_TYPES)}")
    values: Array = np.asarray(dequantize(source.tensor(name)), np.float32).reshape(source.shape(name)).copy()
    for product in products:
        values += product.left @ product.right
    if not np.isfinite(values).all():
        raise LoadError(f"[adapter] merging '{name}' gives numbers that are not finite")
    stored: Tensor = quantize(values, DType(kind))
    with copy.open("r+b") as file:
        file.seek(source.begin(name))
        file.write(np.ascontiguousarray(stored.numpy()).tobytes())
