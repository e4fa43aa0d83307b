"""Recognize EAGLE-3 heads, which draft tokens from a model's hidden states."""

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
    """Return whether the draft is a head instead of a model.

    UnsupportedError for other kinds of heads, and if ``speculation`` asks for something else.
    """
    if config.draft is None:
        return False
    path = Path(config.draft)
    found = _is_head(path)
    if not found and config.speculation == "eagle":
        raise UnsupportedError(f"[speculation] {path.name} is a model, but 'eagle' needs an EAGLE-3 head")
    if found and config.speculation in ("draft", "mtp"):
        raise UnsupportedError(
            f"[speculation] {path.name} is an EAGLE-3 head: use 'eagle' or 'auto' in place of '{config.speculation}'"
        )
    return found


def _is_head(path: Path) -> bool:
    if path.is_file():
        return is_head(GGUFReader(path).metadata)
    if not (path / "config.json").is_file():
        return False  # opening it reports the error
    if head_class(flattened(read_json(path / "config.json", "draft"))) is not None:
        return True
    if any(path.glob("model.safetensors*")) and "fc.weight" in SafetensorsFolder(path):
        raise UnsupportedError(
            f"[draft] {path.name} looks like a head of EAGLE-1 or 2 ('fc.weight' without 'draft_vocab_size'): "
            "only models and EAGLE-3 heads are supported"
        )
    return False


def check_tokens(name: str, reader: GGUFReader, tokenizer: Tokenizer | None) -> None:
    """Check that the head's vocabulary, if its file has one, is the model's.  UnsupportedError if not."""
    if tokenizer is None or "tokenizer.ggml.tokens" not in reader.metadata:
        return
    own, others = Tokenizer.from_gguf(Path(reader.path)).vocabulary.texts, tokenizer.vocabulary.texts
    for i, (one, other) in enumerate(zip(own, others, strict=False)):
        if one != other:
            raise UnsupportedError(
                f"[draft] {name} has another tokenizer than the model: token {i} is {one!r:.40} in the head and "
                f"{other!r:.40} in the model"
            )
