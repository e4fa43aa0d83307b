"""Heads of encoders: class scores of a text or of each token, and sentence-transformers' dense layers."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import LoadError, UnsupportedError
from ..nn import Embedding, Keys, LayerNorm, Tensor, Weights, activate, add_weight, tanh
from .base import RANK, Layer

ONE_TOKEN = (2, 3)  # values of pooling_type: the first token, the last token
DENSE = ("dense_2", "dense_3")  # tensors of sentence-transformers' modules, with GGUF's numbers
MEAN, CLS = 1, 2  # values of classifier.pooling_type: the mean of all tokens, the first token
ACTIVATIONS: dict[str, Layer] = {
    "tanh": tanh,
    "gelu": lambda x: activate(x, "gelu"),
    "relu": lambda x: activate(x, "relu"),
}


@dataclass(frozen=True)
class Classes:
    """The classes that an encoder's classifier scores.

    Attributes:
        n: Number of classes; 0: the output is vectors.
        per_token: The classes are of tokens, not of the text.
    """

    n: int = 0
    per_token: bool = False

    @classmethod
    def read(cls, keys: Keys, weights: Weights, pooling: int = CLS) -> Classes:
        """Read the keys; ``pooling`` is the default of ``classifier.pooling_type``.

        A file with a classifier outputs its scores, unless its pooling is one of vectors.  A classifier on the mean of
        all tokens is computed after pooling, outside the model (``engine.loading.pooled_head``).
        """
        has_head, per_token = weights.has("cls.output.weight"), keys.flag("classifier.per_token", False)
        if per_token and not has_head:
            raise LoadError(f"[{keys.arch}] classifier.per_token is true, but the file has no classifier")
        kind = keys.integer("pooling_type", 0 if per_token or not has_head else RANK)
        if kind == RANK and not has_head:
            raise LoadError(f"[{keys.arch}] pooling_type is {RANK}, but the file has no classifier")
        if not per_token and kind != RANK:
            keys.without_effect("classifier.*")
            weights.ignore("cls.*", "pooling_type asks for vectors")
            return cls()
        is_late = keys.flag("classifier.late", False)  # the mean is of the scores of all tokens
        if not per_token and is_on_mean(keys, pooling) and not is_late:
            keys.without_effect("classifier.activation")
            weights.ignore("cls.*", "class scores are computed from the mean, outside the model")
            return cls()
        return cls(weights.n_rows("cls.output.weight"), per_token)


NO_CLASSES = Classes()


def is_on_mean(keys: Keys, default: int = CLS) -> bool:
    """Return whether a classifier scores the mean of all tokens, not the first one."""
    pooling = keys.integer("classifier.pooling_type", default)
    if pooling not in (MEAN, CLS):
        key = keys.full("classifier.pooling_type")
        raise UnsupportedError(f"[{keys.arch}] unsupported '{key}': {pooling} (expected {MEAN} or {CLS})")
    return pooling == MEAN


class Classifier:
    """Class scores of each row; ``cls`` is an optional hidden layer, such as BERT's pooler."""

    def __init__(
        self, keys: Keys, weights: Weights, dim: int, classes: Classes, *, activation: str = "tanh", eps: float = 1e-5
    ) -> None:
        kind = keys.text("classifier.activation", activation)
        if kind not in ACTIVATIONS:
            expected = ", ".join(ACTIVATIONS)
            raise UnsupportedError(f"[{keys.arch}] unsupported classifier.activation '{kind}': expected {expected}")
        self.dense = weights.linear("cls", dim, dim, bias=None) if weights.has("cls.weight") else None
        self.activation = ACTIVATIONS[kind]
        has_norm = weights.has("cls.norm.weight")
        self.norm: LayerNorm | None = weights.layer_norm("cls.norm", dim, eps) if has_norm else None
        self.out = weights.linear("cls.output", dim, classes.n, bias=None)

    def __call__(self, x: Tensor) -> Tensor:
        if self.dense is not None:
            x = self.activation(self.dense(x))
        return self.out(x if self.norm is None else self.norm(x))


class DenseHeads:
    """Dense layers that sentence-transformers applies after pooling, if the file has any.

    Here they are applied to each token before pooling.  The result is the same, because they are linear and pooling is
    a mean; a layer with an activation requires pooling of a single token.
    """

    def __init__(self, keys: Keys, weights: Weights, dim: int) -> None:
        self.layers: list[Layer] = []
        for name in DENSE:
            kind = keys.text(f"{name}_activation", "identity")
            if kind not in ("identity", "tanh"):
                raise UnsupportedError(
                    f"[{keys.arch}] unsupported {name}_activation '{kind}': expected identity or tanh"
                )
            if kind != "identity" and keys.integer("pooling_type", 0) not in ONE_TOKEN:
                raise UnsupportedError(f"[{keys.arch}] {name}_activation {kind} needs pooling of a single token")
            n_in, n_out = keys.integer(f"{name}_feat_in", 0), keys.integer(f"{name}_feat_out", 0)
            if not weights.has(f"{name}.weight"):
                continue
            rows = weights.n_rows(f"{name}.weight")
            if n_in not in (0, dim) or n_out not in (0, rows):
                raise LoadError(
                    f"[{keys.arch}] {name}_feat_in is {n_in}, {name}_feat_out {n_out}: expected {dim} and {rows}"
                )
            self.layers.append(weights.linear(name, dim, rows, bias=None))
            if kind == "tanh":
                self.layers.append(tanh)
            dim = rows

    def __call__(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class MaskedHead:
    """The logits of a masked token in place of each row, from which sparse vectors are made (SPLADE)."""

    def __init__(self, weights: Weights, dim: int, eps: float, embedding: Embedding) -> None:
        n_vocab = weights.n_rows("mlm.output.bias")
        self.dense, self.norm = weights.linear("mlm", dim, dim, bias=None), weights.layer_norm("mlm.norm", dim, eps)
        is_tied = not weights.has("mlm.output.weight")
        self.out = embedding.as_head() if is_tied else weights.linear("mlm.output", dim, n_vocab)
        self.bias = weights.tensor("mlm.output.bias", (n_vocab,), vector=True)

    def __call__(self, x: Tensor) -> Tensor:
        return add_weight(self.out(self.norm(activate(self.dense(x), "gelu"))), self.bias)


def head_of(
    keys: Keys, weights: Weights, dim: int, classes: Classes, *, activation: str = "tanh", eps: float = 1e-5
) -> Layer:
    """Return the classifier of an encoder's file, or its dense layers.

    Args:
        keys: The file's keys.
        weights: The file's weights.
        dim: The width of the encoder's rows.
        classes: What the classifier scores, if anything.
        activation: The activation of the classifier's hidden layer, unless the file names one.
        eps: The epsilon of the classifier's norm.
    """
    if classes.n:
        return Classifier(keys, weights, dim, classes, activation=activation, eps=eps)
    return DenseHeads(keys, weights, dim)
