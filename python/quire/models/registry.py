"""Find the file of an architecture, and load a model with it.

A model file declares the names it handles as literals: ``ARCHES``, values of GGUF's ``general.architecture``, and the
keys of ``HF``, transformers' classes.  They are read from the source, so only the file that is needed is imported.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ..errors import LoadError, UnsupportedError
from ..files.gguf import GGUFReader, Metadata
from ..nn import Adapter, CacheSpec, Fusion, Keys, Predictor, Trace, Weights
from ..nn.steering import Steering
from .base import INNER_ENCODER, WITHOUT_EFFECT, Config, Decoder, Model, trace, trace_predictor

if TYPE_CHECKING:
    from .._native.core import Tensor
    from .._native.parallel import RankGroup
    from ..checkpoints.mapping import Checkpoint
    from .eagle3 import LoadedHead

_Maker = Callable[[Keys, Weights, int], Model]
_HERE = Path(__file__).parent


@cache
def _source(module: Path) -> str:
    return module.read_text(encoding="utf-8")


@cache
def _names(module: Path, variable: str) -> list[str]:
    """Return the strings of a module's tuple, or the keys of its dictionary."""
    if variable not in _source(module):
        return []
    for statement in ast.parse(_source(module)).body:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        if not isinstance(statement, ast.Assign) or not isinstance(target, ast.Name) or target.id != variable:
            continue
        value = statement.value
        items = value.keys if isinstance(value, ast.Dict) else value.elts if isinstance(value, ast.Tuple) else []
        return [item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)]
    return []


@cache
def _index(variable: str) -> Mapping[str, str]:
    """Map each name to the module that declares it."""
    return {name: path.stem for path in sorted(_HERE.glob("*.py")) for name in _names(path, variable)}


@cache
def _declaring(variable: str, name: str) -> str | None:
    """Return the module that declares a name; parses only files with the name in them, for a quick start."""
    files = (path for path in sorted(_HERE.glob("*.py")) if f'"{name}"' in _source(path))
    return next((path.stem for path in files if name in _names(path, variable)), None)


@dataclass(frozen=True)
class Architecture:
    """A supported architecture: its ``name`` in GGUF files and the ``classes`` of transformers' checkpoints."""

    name: str
    description: str
    classes: tuple[str, ...]


def supported() -> list[Architecture]:
    """Return all architectures, by name."""
    classes: dict[str, list[str]] = {name: [] for name in architectures()}
    for name in sorted(_index("HF")):
        classes[checkpoint_of(name).arch].append(name)
    index = _index("ARCHES")
    return [Architecture(name, _description(index[name]), tuple(found)) for name, found in classes.items()]


def _description(module: str) -> str:
    """Return the first line of a model file, which names the models that use it."""
    text = ast.get_docstring(ast.parse(_source(_HERE / f"{module}.py")))
    return (text or "").split("\n", 1)[0].rstrip(".")


def architectures() -> list[str]:
    """Return every supported value of ``general.architecture``."""
    return sorted(_index("ARCHES"))


def model_file(arch: str) -> str | None:
    """Return the module of an architecture: the file with its name, or the one that lists it."""
    likely = _HERE / f"{arch.replace('-', '_')}.py"
    names = ("ARCHES", "GENERIC")
    if arch.replace("-", "_").isidentifier() and likely.is_file() and any(arch in _names(likely, n) for n in names):
        return likely.stem
    return _declaring("ARCHES", arch)


def checkpoint_classes() -> list[str]:
    """Return every class of transformers whose checkpoints can be converted."""
    return sorted(_index("HF"))


def checkpoint_of(name: str) -> Checkpoint:
    """Return how checkpoints of transformers' class ``name`` are converted.

    Raises:
        UnsupportedError: The class is unknown; the message lists those that are known.
    """
    for variable in ("HF_HEADS", "HF"):
        if file := _declaring(variable, name):
            module = import_module(f".{file}", __package__)
            return cast("Mapping[str, Checkpoint]", vars(module)[variable])[name]
    expected = ", ".join(checkpoint_classes())
    raise UnsupportedError(f"[convert] unsupported architecture '{name}': expected one of {expected}")


def checkpoints_of(arch: str) -> list[Checkpoint]:
    """Return how the checkpoints of all classes are converted that an architecture's module declares."""
    module = model_file(arch)
    return [checkpoint_of(name) for name, found in sorted(_index("HF").items()) if found == module]


@dataclass(frozen=True)
class LoadedModel:
    """A model with its weights.

    ``products``: the matrices that adapters can change, with the factor of their products.
    """

    model: Model
    products: Mapping[str, float] = field(default_factory=dict)

    @property
    def config(self) -> Config:
        return self.model.config

    @property
    def cache(self) -> list[CacheSpec]:
        """Return what each layer keeps."""
        return self.model.cache()

    @property
    def predictor(self) -> Predictor | None:
        """Return the layer that predicts later tokens, if the file has one and it was requested."""
        return self.model.predictor if isinstance(self.model, Decoder) else None

    def trace(
        self,
        n_ctx: int | None = None,
        taps: Iterable[int] = (),
        *,
        fusion: Fusion | None = None,
        media_width: int = 0,
        steering: Steering | None = None,
    ) -> Trace:
        """Record the forward pass.

        Args:
            n_ctx: The longest context; None: the trained length.
            taps: Layers after which the hidden state can be read.
            fusion: The fusion of a head that reads this model's hidden states; the head replaces the predictor.
            media_width: Numbers of a row that an image puts in place of a token's embedding; 0: text only.
            steering: Control vectors.
        """
        has_predictor = self.predictor is not None and fusion is None
        n_ctx = n_ctx or self.config.n_ctx_train
        return trace(
            self.model, n_ctx, taps, has_predictor=has_predictor, fusion=fusion, media_width=media_width,
            steering=steering,
        )  # fmt: skip

    def trace_predictor(self, n_ctx: int) -> Trace:
        """Record the predictor's forward pass."""
        assert self.predictor is not None
        return trace_predictor(self.predictor, n_ctx)


def n_vocab_of(reader: GGUFReader) -> int:
    """Return the number of rows of the token embedding.

    Raises:
        LoadError: The file's vocabulary has another size.
    """
    shape = reader.tensor_info("token_embd.weight").shape
    if len(shape) != 2:
        raise LoadError(f"[weights] tensor 'token_embd.weight' has shape {list(shape)}: expected 2 dimensions")
    n_vocab = shape[0]
    metadata = reader.metadata
    if "tokenizer.ggml.tokens" in metadata and (n := len(metadata.strings("tokenizer.ggml.tokens"))) != n_vocab:
        raise LoadError(f"[gguf] the vocabulary has {n} tokens, but the embedding has {n_vocab}")
    return n_vocab


def is_head_name(arch: str) -> bool:
    """Return whether files with this ``general.architecture`` hold a head, which proposes tokens for another model."""
    return _declaring("HEADS", arch) is not None


def is_head(metadata: Metadata) -> bool:
    """Return whether a file holds a head, which proposes tokens for another model."""
    return is_head_name(metadata.text("general.architecture"))


def load_head(reader: GGUFReader, model: LoadedModel) -> LoadedHead:
    """Load a head for ``model``.

    Raises:
        LoadError: Keys or tensors do not fit.
        UnsupportedError: The head's sizes belong to another model, or it has unknown options.
    """
    config = model.config
    if not isinstance(model.model, Decoder) or config.decoder_start is not None or config.is_encoder:
        raise UnsupportedError(f"[draft] heads are unsupported for architecture {config.arch}")
    module = import_module(f".{_declaring('HEADS', reader.metadata.text('general.architecture'))}", __package__)
    return cast("Callable[[GGUFReader, Decoder], LoadedHead]", vars(module)["load_head"])(reader, model.model)


def _maker(metadata: Metadata) -> _Maker:
    arch = metadata.text("general.architecture")
    if is_head(metadata):
        raise UnsupportedError(
            f"[models] the file holds a head ({arch}), not a model: use it as the draft of its model"
        )
    module = model_file(arch)
    if module is None:
        expected = ", ".join(architectures())
        raise UnsupportedError(f"[models] unsupported architecture '{arch}': expected one of {expected}")
    return cast("_Maker", vars(import_module(f".{module}", __package__))["MODEL"])


def load_model(
    reader: GGUFReader,
    place: Callable[[Tensor], Tensor] = lambda tensor: tensor,
    adapters: Sequence[Adapter] = (),
    *,
    predicts: bool = False,
    group: RankGroup | None = None,
) -> LoadedModel:
    """Load the model of a file.

    Args:
        reader: The file.
        place: Moves each tensor to where the model runs (default: it stays where the reader has it).
        adapters: Low-rank adapters; their products add up.
        predicts: Use the layer that predicts later tokens, if the file has one that Quire supports.
        group: The ranks that split the model, if ``reader`` has a share of it (``nn.shares``).

    Raises:
        UnsupportedError: The architecture is unknown (the message lists those that are known), one of its keys is
            unsupported, or an adapter changes a tensor that cannot be changed.
        LoadError: Keys or tensors of the file or of an adapter do not fit.
    """
    for adapter in adapters:
        adapter.check(reader.metadata.text("general.architecture"))
    _maker(reader.metadata)  # first, so that an unknown architecture is the first error
    return model_of(
        reader.metadata, Weights(reader, place, adapters, predicts=predicts, group=group), n_vocab_of(reader)
    )


def model_of(metadata: Metadata, weights: Weights, n_vocab: int) -> LoadedModel:
    """Return the model with these keys and weights, which may come from another source; raises as ``load_model``."""
    keys = Keys(metadata)
    model = _maker(metadata)(keys, weights, n_vocab)
    if not model.config.is_encoder:
        weights.ignore("cls.*", "class scores are computed from hidden states, outside the model")
    for pattern in ("sparse_head.*", "multi_head.*", "pooled_*"):
        weights.ignore(pattern, "vectors of other kinds are computed from hidden states, outside the model")
    for pattern in INNER_ENCODER:
        weights.ignore(pattern, "it belongs to an encoder that Ollama keeps in the file of the text model")
    keys.finish(WITHOUT_EFFECT)
    weights.finish()
    return LoadedModel(model, weights.products)
