"""Convert Qwen3-Reranker, which is published as a causal model: two rows of its head become a classifier."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import LoadError
from ...tokenizer import Tokenizer
from ..mapping import Entry, Fields, Target
from ..reading.qwen3_reranker import YES_OR_NO, is_qwen3_reranker

if TYPE_CHECKING:
    from ..mapping import Array

__all__ = ["is_reranker", "reranker_entries", "reranker_head"]

RANK = 4  # the value of pooling_type


def is_reranker(folder: Path, config: Fields) -> bool:
    """Return whether the folder's name, configuration or README says so, the places llama.cpp's converter checks."""
    if config.value("architectures") != ["Qwen3ForCausalLM"]:
        return False
    readme = folder / "README.md"
    lines = readme.read_text(encoding="utf-8", errors="replace").splitlines() if readme.is_file() else []
    titles = [line for line in lines if line.startswith("# ")]
    return is_qwen3_reranker(folder.resolve().name, config.text("_name_or_path", ""), *titles)


def reranker_entries() -> list[Entry]:
    """Return the keys of a classifier with the labels yes and no."""
    return [("pooling_type", "u32", RANK), ("classifier.output_labels", "string[]", list(YES_OR_NO))]


def reranker_head(folder: Path, head: Callable[[], Array]) -> Target:
    """Return the classifier's matrix, two rows of ``head``.  Raises LoadError if the vocabulary lacks the labels."""
    tokenizer = Tokenizer.from_pretrained(folder)
    words = [tokenizer.encode(word, add_special=False) for word in YES_OR_NO]
    if any(len(ids) != 1 for ids in words):
        raise LoadError(f"[convert] the reranker's vocabulary has no tokens for {' and '.join(YES_OR_NO)}")
    rows = head()[[ids[0] for ids in words]]
    return Target("cls.output.weight", (), made=rows)
