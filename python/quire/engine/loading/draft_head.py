"""Heads of EAGLE-3, which propose tokens of a model's own hidden states."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ...checkpoints.mapping import flattened, head_class, read_json
from ...errors import UnsupportedError
from ...files.gguf import GGUFReader
from ...files.safetensors import SafetensorsFolder
from ...models import is_head
from ...tokenizer import Tokenizer

if TYPE_CHECKING:
    from ...params.engine_options import EngineConfig

__all__ = ["check_tokens", "draft_is_head"]


def draft_is_head(config: EngineConfig) -> bool:
    """Whether the draft is a head and no model.  UnsupportedError for heads of another kind, and where ``speculation``
    asks for something else."""
    if config.draft is None:
        return False
    path = Path(config.draft)
    found = _is_head(path)
    if not found and config.speculation == "eagle":
        raise UnsupportedError(f"[speculation] {path.name} must be a head of EAGLE-3 for 'eagle' but is a model")
    if found and config.speculation in ("draft", "mtp"):
        raise UnsupportedError(
            f"[speculation] {path.name} must be a model for '{config.speculation}' but is a head, for 'eagle' or 'auto'"
        )
    return found


def _is_head(path: Path) -> bool:
    if path.is_file():
        return is_head(GGUFReader(path).metadata)
    if not (path / "config.json").is_file():
        return False  # whoever opens it tells
    if head_class(flattened(read_json(path / "config.json", "draft"))) is not None:
        return True
    if any(path.glob("model.safetensors*")) and "fc.weight" in SafetensorsFolder(path):
        raise UnsupportedError(
            f"[draft] {path.name} must be a model or a head of EAGLE-3 but has 'fc.weight' without 'draft_vocab_size', "
            f"as heads of EAGLE-1 and 2 have"
        )
    return False


def check_tokens(name: str, reader: GGUFReader, tokenizer: Tokenizer | None) -> None:
    """UnsupportedError where the head's file has a vocabulary that is not the model's."""
    if tokenizer is None or "tokenizer.ggml.tokens" not in reader.metadata:
        return
    own, others = Tokenizer.from_gguf(Path(reader.path)).vocabulary.texts, tokenizer.vocabulary.texts
    for i, (one, other) in enumerate(zip(own, others, strict=False)):
        if one != other:
            raise UnsupportedError(
                f"[draft] {name} must have the model's tokenizer but token {i} is {one!r:.40} there and "
                f"{other!r:.40} here"
            )
