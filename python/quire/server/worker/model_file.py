"""Describe a model file, for lists of models."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...chat import AnswerFormat, ChatTemplate
from ...engine.requests.infill import FillInTokens
from ...errors import QuireError
from ...files.gguf import GGUFReader
from ...files.ollama import open_model_file

if TYPE_CHECKING:
    from ...tokenizer import Tokenizer

__all__ = ["abilities", "describe"]

_MAX_TEXT = 4096


def describe(path: Path) -> dict[str, Any]:
    """Return a model's size, date, number of parameters, most common weight type, and metadata without long values.

    ``digest`` identifies the file.  It is computed from the table of tensors, the size and the date, because hashing
    all bytes would take about a second per gigabyte.  Folders only have a size and a date.
    """
    if path.is_dir():
        files = [file.stat() for file in path.iterdir() if file.is_file()]
        newest = max((file.st_mtime for file in files), default=path.stat().st_mtime)
        return {"size_bytes": sum(file.st_size for file in files), "modified_s": newest}
    state = path.stat() if path.is_file() else None  # if it is not a file, the reader raises the error
    return _described_file(path, *((state.st_mtime, state.st_size) if state is not None else (0.0, 0)))


@lru_cache(maxsize=8)
def _described_file(path: Path, modified_s: float, size_bytes: int) -> dict[str, Any]:
    """Describe a file, cached by its state: clients list models often, and reading the vocabulary takes a while."""
    reader = open_model_file(path)
    tensors = reader.tensors
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        sizes[str(tensor.dtype)] += tensor.size_bytes
    table = repr([(t.name, str(t.dtype), t.shape, t.offset_bytes) for t in tensors])
    name = f"{table} {reader.size_bytes} {modified_s}"
    return {
        "size_bytes": reader.size_bytes,
        "modified_s": modified_s,
        "n_parameters": sum(math.prod(tensor.shape) for tensor in tensors),
        "weights": sizes.most_common(1)[0][0] if sizes else "",
        "digest": hashlib.sha256(name.encode()).hexdigest(),
        "keys": _short_keys(reader),
    }


def _short_keys(reader: GGUFReader) -> dict[str, Any]:
    """Return numbers, flags and short texts, but not the vocabulary or templates."""
    found: dict[str, Any] = {}
    for key in reader.metadata:
        if key.startswith("tokenizer.chat_template") or reader.metadata.type_of(key).endswith("[]"):
            continue
        value = reader.metadata[key]
        kept = math.isfinite(value) if isinstance(value, float) else isinstance(value, bool | int | str)
        if kept and len(str(value)) <= _MAX_TEXT:
            found[key] = value
    return found


def abilities(tokenizer: Tokenizer) -> list[str]:
    """Return what a model can do besides completion: ``tools``, ``thinking`` and ``insert`` (filling gaps)."""
    found = []
    try:
        template = ChatTemplate.from_tokenizer(tokenizer)
        found.append("tools")  # without support in the template, tools go into the system message
        found += ["thinking"] if AnswerFormat.detect(template.source, tools="none").reasoning is not None else []
    except QuireError:  # no template, or an unusable one
        pass
    try:
        FillInTokens.of(tokenizer)
    except QuireError:
        return found
    return [*found, "insert"]
