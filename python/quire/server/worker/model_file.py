"""What a model's file says of itself, for lists of models."""

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

if TYPE_CHECKING:
    from ...tokenizer import Tokenizer

__all__ = ["abilities", "describe"]

_MAX_TEXT = 4096


def describe(path: Path) -> dict[str, Any]:
    """Size, date, number of parameters, the type of most weights, and the file's keys but for lists and long texts.

    ``digest`` names the file as it lies there: it is made of its table of tensors, its size and its date, not of all
    its bytes, which would take a second for each gigabyte.  A folder has a size and a date only.
    """
    if path.is_dir():
        files = [file.stat() for file in path.iterdir() if file.is_file()]
        newest = max((file.st_mtime for file in files), default=path.stat().st_mtime)
        return {"size_bytes": sum(file.st_size for file in files), "modified_s": newest}
    state = path.stat() if path.is_file() else None  # of what is no file, the reader tells what is wrong
    return _described_file(path, *((state.st_mtime, state.st_size) if state is not None else (0.0, 0)))


@lru_cache(maxsize=8)
def _described_file(path: Path, modified_s: float, size_bytes: int) -> dict[str, Any]:
    """The same of a file in this state: lists of models ask often, and reading its vocabulary takes a while."""
    reader = GGUFReader(path)
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
    """Numbers, flags and short texts; the vocabulary and templates are told elsewhere."""
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
    """What a model can do beside going on: of ``tools``, ``thinking`` and ``insert`` (filling gaps)."""
    found = []
    try:
        template = ChatTemplate.from_tokenizer(tokenizer)
        found.append("tools")  # where the template knows none, they are told in the system's message
        found += ["thinking"] if AnswerFormat.detect(template.source, tools="none").reasoning is not None else []
    except QuireError:  # there is no template, or one that no chat can be answered with
        pass
    try:
        FillInTokens.of(tokenizer)
    except QuireError:
        return found
    return [*found, "insert"]
