"""Finding the file of an architecture, and loading a model by it.

A model file says in literals what it answers to: ``ARCHES``, the values of GGUF's ``general.architecture``, and the
keys of ``HF``, transformers' classes.  They are read from the source, so that only the file asked for is imported.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ..errors import LoadError, UnsupportedError
from ..files.gguf import GGUFReader, Metadata
from ..nn import Adapter, CacheSpec, Fusion, Keys, Predictor, Trace, Weights
from .base import WITHOUT_EFFECT, Config, Decoder, Model, trace, trace_predictor

if TYPE_CHECKING:
    from .._native.core import Tensor
    from ..checkpoints.mapping import Checkpoint
    from .eagle3 import LoadedHead

_Maker = Callable[[Keys, Weights, int], Model]
_HERE = Path(__file__).parent


@cache
def _names(module: Path, variable: str) -> list[str]:
    """The strings of a module's tuple, or the keys of its dictionary."""
    for statement in ast.parse(module.read_text(encoding="utf-8")).body:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        if not isinstance(statement, ast.Assign) or not isinstance(target, ast.Name) or target.id != variable:
            continue
        value = statement.value
        items = value.keys if isinstance(value, ast.Dict) else value.elts if isinstance(value, ast.Tuple) else []
        return [item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)]
    return []


@cache
def _index(variable: str) -> Mapping[str, str]:
    """Which module declares which name."""
    return {name: path.stem for path in sorted(_HERE.glob("*.py")) for name in _names(path, variable)}


@dataclass(frozen=True)
class Architecture:
    """What Quire supports: ``name`` in GGUF files, and transformers' ``classes`` of checkpoints."""

    name: str
    description: str
    classes: tuple[str, ...]


def supported() -> list[Architecture]:
    """Every architecture, by name."""
    classes: dict[str, list[str]] = {name: [] for name in architectures()}
    for name in sorted(_index("HF")):
        classes[checkpoint_of(name).arch].append(name)
    index = _index("ARCHES")
    return [Architecture(name, _description(index[name]), tuple(found)) for name, found in classes.items()]


def _description(module: str) -> str:
    """The first line of a model file, which names the models that use it."""
    text = ast.get_docstring(ast.parse((_HERE / f"{module}.py").read_text(encoding="utf-8")))
    return (text or "").split("\n", 1)[0].rstrip(".")


def architectures() -> list[str]:
    """Every ``general.architecture`` that a file here answers to."""
    return sorted(_index("ARCHES"))


def model_file(arch: str) -> str | None:
    """The module of an architecture: the file of its name, or the one that lists it."""
    likely = _HERE / f"{arch.replace('-', '_')}.py"
    if arch.replace("-", "_").isidentifier() and likely.is_file() and arch in _names(likely, "ARCHES"):
        return likely.stem
    return _index("ARCHES").get(arch)


def checkpoint_classes() -> list[str]:
    """Every class of transformers whose checkpoints are converted."""
    return sorted(_index("HF"))


def checkpoint_of(name: str) -> Checkpoint:
    """How checkpoints of transformers' class ``name`` are converted.  UnsupportedError lists what there is."""
    heads = _index("HF_HEADS")
    variable = "HF_HEADS" if name in heads else "HF"
    index = _index(variable)
    if name not in index:
        raise UnsupportedError(f"[convert] the architecture must be one of {', '.join(sorted(index))} but is '{name}'")
    module = import_module(f".{index[name]}", __package__)
    return cast("Mapping[str, Checkpoint]", vars(module)[variable])[name]


def checkpoints_of(arch: str) -> list[Checkpoint]:
    """How checkpoints are converted whose files may be of an architecture, by all of transformers' classes."""
    module = model_file(arch)
    return [checkpoint_of(name) for name, found in sorted(_index("HF").items()) if found == module]


@dataclass(frozen=True)
class LoadedModel:
    """A model with its weights in place."""

    model: Model

    @property
    def config(self) -> Config:
        return self.model.config

    @property
    def cache(self) -> list[CacheSpec]:
        """What each layer keeps."""
        return self.model.cache()

    @property
    def predictor(self) -> Predictor | None:
        """What predicts later tokens, where the file has it and it was asked for."""
        return self.model.predictor if isinstance(self.model, Decoder) else None

    def trace(self, n_ctx: int | None = None, taps: Iterable[int] = (), *, fusion: Fusion | None = None) -> Trace:
        """The forward pass for contexts of at most ``n_ctx`` tokens; None: as many as the model was trained on.

        ``fusion``: of a head that reads this model's hidden states; it is then read instead of a predictor.
        """
        has_predictor = self.predictor is not None and fusion is None
        n_ctx = n_ctx or self.config.n_ctx_train
        return trace(self.model, n_ctx, taps, has_predictor=has_predictor, fusion=fusion)

    def trace_predictor(self, n_ctx: int) -> Trace:
        """The predictor's pass."""
        assert self.predictor is not None
        return trace_predictor(self.predictor, n_ctx)


def n_vocab_of(reader: GGUFReader) -> int:
    """Rows of the token embedding.  LoadError when the file's other words on it disagree."""
    shape = reader.tensor_info("token_embd.weight").shape
    if len(shape) != 2:
        raise LoadError(f"[weights] tensor 'token_embd.weight' must have 2 dimensions but is {list(shape)}")
    n_vocab = shape[0]
    metadata = reader.metadata
    if "tokenizer.ggml.tokens" in metadata and (n := len(metadata.strings("tokenizer.ggml.tokens"))) != n_vocab:
        raise LoadError(f"[gguf] the vocabulary must have as many tokens as the embedding, {n_vocab}, but has {n}")
    return n_vocab


def is_head(metadata: Metadata) -> bool:
    """Whether a file holds a head, which proposes tokens for another model."""
    return metadata.text("general.architecture") in _index("HEADS")


def load_head(reader: GGUFReader, model: LoadedModel) -> LoadedHead:
    """The head of ``model`` that a file holds.

    LoadError for keys and tensors that do not fit, UnsupportedError for a head of another model, by its sizes, and for
    what is not known.
    """
    config = model.config
    if not isinstance(model.model, Decoder) or config.decoder_start is not None or config.is_encoder:
        raise UnsupportedError(
            f"[draft] a head must be for a decoder of the usual frame but the model is {config.arch}"
        )
    module = import_module(f".{_index('HEADS')[reader.metadata.text('general.architecture')]}", __package__)
    return cast("Callable[[GGUFReader, Decoder], LoadedHead]", vars(module)["load_head"])(reader, model.model)


def _maker(metadata: Metadata) -> _Maker:
    arch = metadata.text("general.architecture")
    if is_head(metadata):
        raise UnsupportedError(
            f"[models] the file must hold a model but holds a head ({arch}), which proposes tokens for one: give it as "
            f"the draft of its model"
        )
    module = model_file(arch)
    if module is None:
        raise UnsupportedError(f"[models] the architecture must be one of {', '.join(architectures())} but is '{arch}'")
    return cast("_Maker", vars(import_module(f".{module}", __package__))["MODEL"])


def load_model(
    reader: GGUFReader,
    place: Callable[[Tensor], Tensor] = lambda tensor: tensor,
    adapters: Sequence[Adapter] = (),
    *,
    predicts: bool = False,
) -> LoadedModel:
    """Declare the weights of the file's architecture and trace its forward pass.

    ``place`` puts each tensor where the model runs (default: where the reader has it).  ``adapters`` add up.
    ``predicts``: a layer that predicts later tokens is wanted, where the file has one that Quire knows.  Raises
    UnsupportedError for an architecture that Quire does not know, listing those it knows, for a key of the architecture
    that its model does not know, and for what an adapter would change that cannot be; LoadError for keys and tensors
    that do not fit, an adapter's too.
    """
    for adapter in adapters:
        adapter.check(reader.metadata.text("general.architecture"))
    _maker(reader.metadata)  # before anything of the file is asked for
    return model_of(reader.metadata, Weights(reader, place, adapters, predicts=predicts), n_vocab_of(reader))


def model_of(metadata: Metadata, weights: Weights, n_vocab: int) -> LoadedModel:
    """The model whose keys these are, with weights that may come from elsewhere.  Raises as ``load_model``."""
    keys = Keys(metadata)
    model = _maker(metadata)(keys, weights, n_vocab)
    if not model.config.is_encoder:
        weights.ignore("cls.output.*", "scores of classes are made of hidden states")
    keys.finish(WITHOUT_EFFECT)
    weights.finish()
    return LoadedModel(model)
