"""Heads that are computed after pooling, outside the model: matrices, activations and norms on one vector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..._native.quant import dequantize
from ...errors import LoadError, UnsupportedError

if TYPE_CHECKING:
    from typing import TypeAlias

    import numpy as np
    import numpy.typing as npt

    from ...files.gguf import GGUFReader

    Array: TypeAlias = npt.NDArray[np.float32]

__all__ = ["ACTIVATIONS", "Hidden", "hidden_of", "matrix"]


def _gelu(x: Array) -> Array:
    import math

    import numpy as np

    halves = np.vectorize(math.erf, otypes=[np.float64])(x.astype(np.float64) / math.sqrt(2.0))
    made: Array = (0.5 * x * (1.0 + halves)).astype(np.float32)
    return made


def _tanh(x: Array) -> Array:
    import numpy as np

    return np.tanh(x)


def _relu(x: Array) -> Array:
    import numpy as np

    made: Array = np.maximum(x, np.float32(0))
    return made


def _sigmoid(x: Array) -> Array:
    import numpy as np

    made: Array = (1 / (1 + np.exp(-x.astype(np.float64).clip(-700, 700)))).astype(np.float32)
    return made


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "identity": lambda x: x,
    "tanh": _tanh,
    "relu": _relu,
    "gelu": _gelu,
    "sigmoid": _sigmoid,
}


@dataclass(frozen=True)
class Hidden:
    """A matrix ``[n_out, n_in]``, perhaps a bias, an activation and perhaps a layer norm."""

    weights: Array
    bias: Array | None
    activation: Callable[[Array], Array]
    norm: tuple[Array, Array | None, float] | None = None

    def __call__(self, x: Array) -> Array:
        """Return ``[n, n_out]`` from vectors ``[n, n_in]``."""
        import numpy as np

        y: Array = x @ self.weights.T
        y = self.activation(y if self.bias is None else y + self.bias)
        if self.norm is None:
            return y
        weights, bias, eps = self.norm
        exact = y.astype(np.float64)
        centred = exact - exact.mean(axis=-1, keepdims=True)
        made = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps) * weights
        normed: Array = (made if bias is None else made + bias).astype(np.float32)
        return normed


def matrix(reader: GGUFReader, name: str, shape: tuple[int, ...]) -> Array:
    """Return a tensor's values.  LoadError if its shape is another."""
    found = tuple(reader.tensor_info(name).shape)
    if found != shape:
        raise LoadError(f"[loader] tensor '{name}' has shape {list(found)}: expected {list(shape)}")
    values: Array = dequantize(reader.tensor(name)).reshape(shape)
    return values


def _vector(reader: GGUFReader, name: str, n: int) -> Array | None:
    return matrix(reader, name, (n,)) if name in reader else None


def hidden_of(
    reader: GGUFReader, name: str, n_in: int, *, activation: str, eps: float | None = None, n_out: int | None = None
) -> Hidden:
    """Return the layer of tensor ``name``.

    Args:
        reader: The file.
        name: The matrix, without ``.weight``.
        n_in: Width of the vectors.
        activation: The name of the activation.
        eps: The epsilon of the norm, which is ``name.norm`` if the file has it.
        n_out: Rows of the matrix; None: as many as it has.

    Raises:
        LoadError: A shape does not fit.
        UnsupportedError: The activation is unknown.
    """
    if activation not in ACTIVATIONS:
        expected = ", ".join(ACTIVATIONS)
        raise UnsupportedError(f"[loader] unsupported activation '{activation:.40}' of '{name}': expected {expected}")
    n_out = n_out or reader.tensor_info(f"{name}.weight").shape[0]
    scale = _vector(reader, f"{name}.norm.weight", n_out) if eps is not None else None
    norm = None if scale is None else (scale, _vector(reader, f"{name}.norm.bias", n_out), eps or 0.0)
    return Hidden(
        matrix(reader, f"{name}.weight", (n_out, n_in)),
        _vector(reader, f"{name}.bias", n_out),
        ACTIVATIONS[activation],
        norm,
    )
