"""The LoRA adapter tables of ``quire info``."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import QuireError
from ..hub.names import is_adapter_folder
from .tables import print_table
from .text import one_line, size_text

if TYPE_CHECKING:
    from ..files.gguf import GGUFReader

__all__ = ["AdapterFacts", "adapter_objects", "is_adapter", "print_adapters", "read_facts", "refusals", "targets_of"]

_BASE_NAMES = ("general.base_model.0.repo_url", "general.base_model.0.name")


@dataclass(frozen=True)
class AdapterFacts:
    """Facts read from an adapter's file or folder.  ``architecture`` is None if the adapter does not name one."""

    path: str
    format: str
    architecture: str | None
    base_model: str | None
    ranks: list[int]
    alpha: float | None
    n_tensors: int
    n_parameters: int
    size_bytes: int


def is_adapter(path: Path) -> bool:
    """Return True for a LoRA adapter, False for a model.  LoadError for a file that is not GGUF."""
    if path.is_dir():
        return is_adapter_folder(path)
    from ..files.gguf import GGUFReader

    metadata = GGUFReader(path).metadata
    return "general.type" in metadata and metadata["general.type"] == "adapter"


def read_facts(path: Path) -> AdapterFacts:
    """Read the facts of a GGUF adapter or a PEFT folder.  LoadError or UnsupportedError for one that fits no model."""
    if path.is_dir():
        return _of_folder(path)
    from ..files.gguf import GGUFReader
    from ..nn import Adapter

    reader = GGUFReader(path)
    metadata, adapter = reader.metadata, Adapter(reader)
    arch = metadata.text("general.architecture")
    adapter.check(arch)
    names = [str(metadata[key]) for key in _BASE_NAMES if key in metadata]
    ranks = {info.shape[0] for info in reader.tensors if info.name.endswith(".lora_a")}
    return AdapterFacts(
        str(path), f"GGUF {reader.version}", arch, next(iter(names), None), sorted(ranks), adapter.alpha or None,
        len(reader.tensors), sum(math.prod(info.shape) for info in reader.tensors), reader.size_bytes,
    )  # fmt: skip


def targets_of(path: Path) -> list[str]:
    """Return the kinds of matrices that an adapter changes, each once: attn_q, or q_proj for a PEFT folder."""
    if path.is_dir():
        from ..checkpoints.conversion import PeftFolder

        return sorted({module.rpartition(".")[2] for module in PeftFolder(path).products})
    from ..files.gguf import GGUFReader

    names = {info.name.rpartition(".lora_")[0].removesuffix(".weight") for info in GGUFReader(path).tensors}
    return sorted({name.rpartition(".")[2] for name in names})


def _of_folder(folder: Path) -> AdapterFacts:
    from ..checkpoints.conversion import PeftFolder

    peft = PeftFolder(folder)
    halves = [half for product in peft.products.values() for half in (product.left, product.right)]
    ranks = {product.rank for product in peft.products.values()}
    kinds = ["PEFT"] + ["DoRA"] * bool(peft.magnitudes) + ["aLoRA"] * bool(peft.config.invocation)
    kind, base = ", ".join(kinds), peft.config.base_name or None
    return AdapterFacts(
        str(folder), kind, None, base, sorted(ranks), peft.config.alpha,
        len(halves), sum(math.prod(half.shape) for half in halves), peft.size_bytes,
    )  # fmt: skip


def refusals(source: Path, model: GGUFReader, adapters: Sequence[tuple[str, float]]) -> list[str]:
    """Return the reason why each adapter does not fit a model, "" for one that fits.

    ``model`` is the reader of ``source``, a file or a checkpoint folder.
    """
    from ..checkpoints.conversion import opened_adapters
    from ..models import load_model
    from ..nn.adapter import BY_REQUEST

    found = []
    with _base(source, model) as base:
        for adapter in adapters:
            try:
                with opened_adapters([adapter], base, takes=BY_REQUEST) as opened:
                    load_model(model, adapters=opened)
            except QuireError as error:
                found.append(str(error))
            else:
                found.append("")
    return found


@contextmanager
def _base(source: Path, model: GGUFReader) -> Iterator[GGUFReader]:
    """Open the model in the form that PEFT adapters are matched against."""
    if not source.is_dir():
        yield model
        return
    from ..checkpoints.conversion import CheckpointReader
    from ..checkpoints.reading import checkpoint_dtype

    with (
        tempfile.TemporaryDirectory(prefix="quire-") as scratch,
        CheckpointReader(source, Path(scratch), checkpoint_dtype(source)) as reader,
    ):
        yield reader


def adapter_objects(adapters: Sequence[tuple[str, float]], reasons: Sequence[str]) -> list[dict[str, object]]:
    """Return a model's adapters for JSON output."""
    return [
        {**_known(path), "scale": scale, "fits": not reason, "fits_not_because": reason or None}
        for (path, scale), reason in zip(adapters, reasons, strict=True)
    ]


def _known(path: str) -> dict[str, object]:
    try:
        return asdict(read_facts(Path(path)))
    except QuireError:  # its reason already says why it cannot be read
        return {"path": path}


def print_adapters(rows: Sequence[dict[str, object]]) -> None:
    """Print a table for each adapter: the values of ``AdapterFacts`` and ``adapter_objects``."""
    for row in rows:
        shown = [
            (name.removeprefix("n_").removesuffix("_bytes").replace("_", " "), _text(name, value))
            for name, value in row.items()
            if name != "path" and value not in (None, [])
        ]
        print_table(("adapter", one_line(str(row["path"]))), shown)


def _text(name: str, value: object) -> str:
    if name == "size_bytes" and isinstance(value, int):
        return size_text(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) else one_line(str(value))
