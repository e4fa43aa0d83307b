"""What a model ends with, as its file says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..models.base import RANK
from .ranking import RankHead, rank_head

if TYPE_CHECKING:
    from ..gguf import GGUFReader, Metadata
    from ..models.base import Config
    from ..tokenizer import Tokenizer
    from .engine import Pooling

__all__ = ["ModelOutput", "output_of", "pooling_of"]

# Values of the key pooling_type.
_POOLING: dict[int, Pooling] = {1: "mean", 2: "cls", 3: "last", 4: "cls"}


@dataclass(frozen=True)
class ModelOutput:
    """What a model ends with: logits, an encoder's vectors, or scores of classes, with the labels of these."""

    is_encoder: bool
    scores_classes: bool
    tells_texts_apart: bool
    labels: tuple[str, ...]
    head: RankHead | None = None  # of a decoder that scores classes


def output_of(reader: GGUFReader, config: Config, tokenizer: Tokenizer | None) -> ModelOutput:
    """Raises as ``rank_head``."""
    labels = _labels_of(reader.metadata, config.arch)
    head = None if config.is_encoder else rank_head(reader, config.arch, tokenizer, labels)
    return ModelOutput(
        is_encoder=config.is_encoder,
        scores_classes=config.scores_classes or head is not None,
        tells_texts_apart=config.tells_texts_apart,
        labels=labels if head is None else head.labels,
        head=head,
    )


def pooling_of(metadata: Metadata, config: Config) -> Pooling | None:
    """Where the file names none, a decoder's last token, which has seen all others, and an encoder's mean."""
    kind = metadata.integer(f"{config.arch}.pooling_type", 0)
    if kind == RANK and not config.is_encoder:
        return "last"
    if kind != 0:
        return _POOLING.get(kind)
    if config.scores_classes:
        return "cls"
    return "mean" if config.is_encoder else "last"


def _labels_of(metadata: Metadata, arch: str) -> tuple[str, ...]:
    key = f"{arch}.classifier.output_labels"
    return tuple(label.decode(errors="replace") for label in metadata.strings(key)) if key in metadata else ()
