"""What the commands take from the outside."""

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
    """What a command needs, where that is not what the options say."""

    n_ctx: int | None = None
    n_blocks: int | None = None
    max_sequences: int | None = None


def _open(options: ModelOptions, sizes: Sizes) -> LLM:
    import logging
    import os

    from ..engine import LLM

    # What the engine warns of is a remark like the command's own.
    logging.basicConfig(
        format="quire: %(message)s", level="INFO" if os.environ.get("QUIRE_LOG") == "debug" else "WARNING"
    )
    wanted = {name: value for name, value in asdict(sizes).items() if value is not None}
    path = None if options.path is None else located(options.path)
    return LLM(path, **{**options.config(), **wanted})


@dataclass(frozen=True)
class Session:
    """How a command gets its model; a test gives another ``opener``."""

    opener: Callable[[ModelOptions, Sizes], LLM] = _open

    def open(self, options: ModelOptions, sizes: Sizes | None = None) -> LLM:
        """The model of the options; says on standard error when it is the package's own."""
        if options.path is None:
            note("no model given (-m): using the small one in the package")
        return self.opener(options, sizes or Sizes())


def model_path(path: str | None) -> Path:
    """The file or folder of a command that reads it without running it."""
    if path is not None:
        return located(path)
    from ..engine.loader import packaged_model

    note("no model given: using the small one in the package")
    return packaged_model()


def open_tokenizer(path: str | None) -> Tokenizer:
    """The tokenizer of a model, of which nothing else is read."""
    from ..tokenizer import Tokenizer

    source = model_path(path)
    return Tokenizer.from_pretrained(source) if source.is_dir() else Tokenizer.from_gguf(source)
