"""How commands open models; tests replace this."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .fetching import located
from .text import note

if TYPE_CHECKING:
    from ..engine import LLM
    from ..tokenizer import Tokenizer
    from .model_options import ModelOptions

__all__ = ["Session", "Sizes", "model_path", "open_tokenizer"]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes that a command sets itself, overriding the options."""

    n_ctx: int | None = None
    n_blocks: int | None = None
    max_sequences: int | None = None


def _open(options: ModelOptions, sizes: Sizes) -> LLM:
    import logging
    import os

    from ..engine import LLM

    # Show the engine's warnings like the command's own notes.
    logging.basicConfig(
        format="quire: %(message)s", level="INFO" if os.environ.get("QUIRE_LOG") == "debug" else "WARNING"
    )
    wanted = {name: value for name, value in asdict(sizes).items() if value is not None}
    path = None if options.path is None else located(options.path, projector=options.wants_projector)
    return LLM(path, **{**options.config(), **wanted})


@dataclass(frozen=True)
class Session:
    """Opens models for commands; tests use another ``opener``."""

    opener: Callable[[ModelOptions, Sizes], LLM] = _open

    def open(self, options: ModelOptions, sizes: Sizes | None = None) -> LLM:
        """Open the model of the options, with a note if it is the package's own."""
        if options.path is None:
            note("no model given (-m): using the small one in the package")
        return self.opener(options, sizes or Sizes())


def model_path(path: str | None) -> Path:
    """Return the model file or folder for a command that reads it without running it."""
    if path is not None:
        return located(path, projector=False)
    from ..engine.loading.loader import packaged_model

    note("no model given: using the small one in the package")
    return packaged_model()


def open_tokenizer(path: str | None) -> Tokenizer:
    """Open a model's tokenizer without reading anything else of it."""
    from ..tokenizer import Tokenizer

    source = model_path(path)
    return Tokenizer.from_pretrained(source) if source.is_dir() else Tokenizer.from_gguf(source)
