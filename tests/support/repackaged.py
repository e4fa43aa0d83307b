"""The package's model with other metadata."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import quire

PACKAGED = Path(quire.__file__).parent / "data" / "tiny-chat-q8_0.gguf"


def repackaged(target: Path, changes: Mapping[str, tuple[object, str]]) -> Path:
    """Write the package's model to ``target`` with values (and their types) changed or added."""
    reader = quire.GGUFReader(PACKAGED)
    with quire.GGUFWriter(target, "qwen3") as writer:
        for key in reader.metadata:
            if key != "general.architecture" and key not in changes:
                kind = reader.metadata.type_of(key)
                value = reader.metadata.strings(key) if kind == "string[]" else reader.metadata[key]
                writer.set(key, value, kind)
        for key, (value, kind) in changes.items():
            writer.set(key, value, kind)
        for info in reader.tensors:
            writer.add_tensor(info.name, info.dtype, info.shape)
        for info in reader.tensors:
            writer.write(info.name, reader.tensor(info.name).numpy())
    return target
