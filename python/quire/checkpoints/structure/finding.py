"""Find out how a transformers class computes: record it, describe it, and learn the names of its tensors."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
import transformers

from ...errors import LoadError, QuireError, UnsupportedError
from ..reading.fields import MAX_LAYERS
from .describing import Describer, Description
from .document import Document
from .naming import Form, forms_of, stored_state, template
from .observed import class_of, made, observe, run, text

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

TOLERANCE = 1e-4  # for logits, relative to the largest
_LONG, _ROWS = 768, 16  # tokens of the long text, and those whose logits are compared
_SMALL = 64 << 20  # weights of a model that is checked with all its layers


@dataclass(frozen=True)
class Sample:
    """A small model of a class: its tensors as checkpoints store them, texts, and the class's last logits of each."""

    document: Document  # with the sample's sizes and windows
    tensors: Mapping[str, npt.NDArray[np.float32]]
    texts: list[list[int]]
    logits: list[npt.NDArray[np.float32]]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    level, log = transformers.logging.get_verbosity(), logging.getLogger("transformers")
    was = log.disabled
    transformers.logging.set_verbosity_error()
    threads = torch.get_num_threads()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers.logging.set_verbosity(level)
        log.disabled = was
        torch.set_num_threads(threads)


def config_of(values: Mapping[str, object], name: str) -> Any:
    """Return transformers' configuration; code of the model's folder is never run."""
    model_type = values.get("model_type")
    if not isinstance(model_type, str) or model_type not in transformers.CONFIG_MAPPING:
        own = ", and Quire does not run code that lies in a model's folder" if values.get("auto_map") else ""
        raise UnsupportedError(
            f"[fallback] unsupported architecture '{name}': neither Quire nor transformers {transformers.__version__} "
            f"has model_type {model_type!r}{own}"
        )
    _check_layers(values)
    return transformers.CONFIG_MAPPING[model_type].from_dict(dict(values))


def _check_layers(values: Mapping[str, object]) -> None:
    """Raise LoadError for too many layers, before transformers makes anything for each."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            _check_layers(value)
        elif isinstance(value, int) and ("layer" in key or key == "depth") and value > MAX_LAYERS:
            raise LoadError(f"[fallback] '{key}' of config.json is {value}: expected at most {MAX_LAYERS}")


def find(values: Mapping[str, object], name: str) -> tuple[Document, Sample]:
    """Return what a class computes, and a sample of it to check that with.

    Raises:
        UnsupportedError: transformers lacks the class, or a part of it is unknown; the message names the part.
    """
    with _quiet():
        try:
            return _find(values, name)
        except QuireError:
            raise
        except Exception as error:  # transformers' code may fail in any way
            raise UnsupportedError(
                f"[fallback] unsupported architecture '{name}': transformers' code fails: {type(error).__name__}: "
                f"{error!s:.300}"
            ) from error


def _find(values: Mapping[str, object], name: str) -> tuple[Document, Sample]:
    config = config_of(values, name)
    inner = config.get_text_config(decoder=True)
    config = config if type(inner) is type(config) else inner
    kind = class_of(config, name)
    seen = observe(kind, config)
    description = Describer(seen).describe()
    n_layer = len(seen.recorder.layers)
    order = description.program["layers"]
    n_needed = 1 + max(order.index(i) for i in set(order)) if order else 1
    size = sum(one.numel() for one in seen.model.parameters())
    part = seen if size <= _SMALL or n_needed == n_layer else observe(kind, config, n_needed)
    short = Describer(replace(part, windows={one: one for one in part.windows})).describe()
    if part is not seen:
        _same(Describer(part).describe(), description, n_needed)
    stored = stored_state(part.model)
    forms = forms_of(part.model, stored)
    plain = made(kind, part.model.config, "eager")
    long = text(min(_sizes(part.model, short, part.model.config)["n_ctx"], _LONG), part.model.config.vocab_size)
    with torch.no_grad():
        # Some classes leave out scores of long texts, unless they have seen a short one.
        of_long = run(plain, long)[0, -_ROWS:]
        logits = run(plain, part.ids)
    difference = float((logits - part.logits).abs().max() / logits.abs().max())
    if not difference <= TOLERANCE:
        raise UnsupportedError(
            f"[fallback] unsupported attention of {kind.__name__}: it differs from plain attention "
            f"(logits by {difference:.1e})"
        )
    document = replace(_document(seen.model, description, forms), sizes=_sizes(seen.model, description, config))
    sample = _document(part.model, short, forms)
    tensors = {key: one.float().contiguous().numpy() for key, one in stored.items()}
    texts = [part.ids[0].tolist(), long[0].tolist()]
    return document, Sample(sample, tensors, texts, [one.float().numpy() for one in (logits[0], of_long)])


def _same(part: Description, whole: Description, n: int) -> None:
    """Raise UnsupportedError unless a model of the first layers is described like those layers of the whole one."""
    kinds = [whole.program["kinds"][i] for i in whole.program["layers"][:n]]
    first = [part.program["kinds"][i] for i in part.program["layers"]]
    if first != kinds or any(part.program[key] != whole.program[key] for key in ("input", "output", "rotations")):
        raise UnsupportedError("[fallback] unsupported model: its layers differ with the number of layers")


def _document(model: Any, description: Description, forms: Mapping[str, Sequence[Form]]) -> Document:
    kind, config = type(model), model.config
    own = dict(model.named_parameters(remove_duplicate=False))
    used = {source.name for source in description.sources.values()}
    by_identity: dict[int, list[str]] = {}
    for name, one in own.items():
        by_identity.setdefault(id(one), []).append(name)
    aliases = {name: [one for one in by_identity[id(own[name])] if one != name] for name in used if name in own}
    unused = sorted({template(name) for name in model.state_dict() if name not in used})
    return Document(
        kind=kind.__name__,
        program=description.program,
        sources={name: asdict(source) for name, source in description.sources.items()},
        forms={name: [asdict(one) for one in each] for name, each in forms.items()},
        aliases={name: others for name, others in aliases.items() if others},
        unused=unused,
        ignored=sorted(getattr(kind, "_keys_to_ignore_on_load_unexpected", None) or []),
        sizes=_sizes(model, description, config),
    )


def _sizes(model: Any, description: Description, config: Any) -> dict[str, int]:
    n_ctx = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None) or 2048
    table = description.sources.get("position_embd.weight")
    if table is not None:  # its first rows may be no positions
        n_rows = dict(model.named_parameters(remove_duplicate=False))[table.name].shape[0]
        n_ctx = min(n_ctx, n_rows - (table.rows or {}).get("begin", 0))
    n_layer = len(description.program["layers"])
    return {
        "n_layer": n_layer, "dim": int(config.hidden_size), "n_ctx": int(n_ctx), "n_vocab": int(config.vocab_size)
    }  # fmt: skip
