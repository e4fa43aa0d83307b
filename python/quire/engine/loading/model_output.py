"""Read from the file what a model puts out: logits, vectors, or scores of classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import LoadError
from ...models.base import PROBLEM_TYPES, RANK
from .ranking import HEAD, RankHead, mean_head, rank_head

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ...files.gguf import GGUFReader, Metadata
    from ...models.base import Config
    from ...tokenizer import Tokenizer
    from ..engine import Pooling

__all__ = ["ModelOutput", "output_of", "pooling_of"]

# Values of the key pooling_type.
_POOLING: dict[int, Pooling] = {1: "mean", 2: "cls", 3: "last", 4: "cls"}


@dataclass(frozen=True)
class ModelOutput:
    """The output of a model: logits, an encoder's vectors, or scores of classes with their labels.

    ``problem_type``: one of ``PROBLEM_TYPES``, or empty if the file names none.  ``scores_tokens``: the classes are of
    each token.
    """

    is_encoder: bool
    scores_classes: bool
    tells_texts_apart: bool
    labels: tuple[str, ...]
    problem_type: str = ""
    head: RankHead | None = None  # if classes are scored outside the model
    score_pooling: Pooling = "cls"  # for class scores
    scores_tokens: bool = False

    def shown(self, scores: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return scores ``[n, n_classes]`` as transformers' pipeline shows them.

        Exclusive classes get the softmax; others, or a single class, their sigmoids.  A ``regression`` stays as it is.
        """
        import numpy as np

        if self.problem_type == "regression":
            return scores
        exact = scores.astype(np.float64)
        if self.problem_type == "multi_label_classification" or scores.shape[-1] == 1:
            made = 1 / (1 + np.exp(-exact.clip(-700, 700)))
        else:
            made = np.exp(exact - exact.max(axis=-1, keepdims=True))
            made /= made.sum(axis=-1, keepdims=True)
        shown: npt.NDArray[np.float32] = made.astype(np.float32)
        return shown


def output_of(reader: GGUFReader, config: Config, tokenizer: Tokenizer | None) -> ModelOutput:
    """Return the output of a model.  Raises as ``rank_head``, and LoadError for an unknown problem type."""
    metadata, labels = reader.metadata, _labels_of(reader.metadata, config.arch)
    pooling: Pooling = "cls"
    of_tokens = config.scores_tokens
    if not config.is_encoder:
        head, pooling = rank_head(reader, config.arch, tokenizer, labels), "last"
        of_tokens = head is not None and metadata.flag(f"{config.arch}.classifier.per_token", False)
    elif has_mean_head(reader, config):
        head, pooling = mean_head(reader, config.arch, config.dim, labels), "mean"
    else:
        head = None
        if config.scores_classes and metadata.flag(f"{config.arch}.classifier.late", False):
            pooling = "mean"
    return ModelOutput(
        is_encoder=config.is_encoder,
        scores_classes=config.scores_classes or (head is not None and not of_tokens),
        tells_texts_apart=config.tells_texts_apart,
        labels=labels if head is None else head.labels,
        problem_type=_problem_type(metadata, config.arch),
        head=head,
        score_pooling=pooling,
        scores_tokens=of_tokens,
    )


def has_mean_head(reader: GGUFReader, config: Config) -> bool:
    """Return whether an encoder's file has a classifier of the mean of all tokens, which the model leaves out."""
    if config.scores_classes or config.scores_tokens or HEAD not in reader:
        return False
    return reader.metadata.integer(f"{config.arch}.pooling_type", RANK) == RANK


def pooling_of(metadata: Metadata, config: Config) -> Pooling | None:
    """Return the file's pooling, or None if unknown.  Default: the last token for decoders, the mean for encoders."""
    if (own := metadata.text("quire.embedding.pooling", "")) not in ("", "max"):
        raise LoadError(f"[loader] unknown quire.embedding.pooling '{own:.40}': expected max")
    if own == "max":
        return "max"
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


def _problem_type(metadata: Metadata, arch: str) -> str:
    key = f"{arch}.classifier.problem_type"
    found = metadata.text(key, "")
    if found not in ("", *PROBLEM_TYPES):
        raise LoadError(f"[{arch}] unknown problem type '{found:.40}' in '{key}': expected {', '.join(PROBLEM_TYPES)}")
    return found
