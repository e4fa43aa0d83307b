"""Running texts through a model, several at a time, for their logits."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from .. import errors
from .._native.engine import Request
from ..engine.loading.loader import open_model
from ..engine.loading.opened_model import OpenedModel
from ..engine.loading.sizes import BLOCK_TOKENS
from ..errors import RequestError, UnsupportedError
from ..params.engine_options import EngineConfig

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ..tokenizer import Tokenizer

    Floats = npt.NDArray[np.float32]

__all__ = ["STEP_TOKENS", "Scorer"]

STEP_TOKENS = 512
# The most logit rows per step, so that they do not limit the size of steps; fewer for large vocabularies.
_MOST_LOGIT_ROWS, _MOST_LOGITS = 512, 1 << 25
_Self = TypeVar("_Self", bound="Scorer")


class Scorer:
    """Computes the logits of rows of tokens.  Use it in ``with``, or call ``close`` to release the memory.

    ``n_ctx`` is the most tokens in a row.
    """

    def __init__(self, opened: OpenedModel) -> None:
        """Take over an opened model.  Raises UnsupportedError for an encoder, which has no logits."""
        self._opened = opened
        if opened.output.is_encoder:
            self.close()
            raise UnsupportedError(f"[score] {opened.model_name} is an encoder: expected a model that generates text")
        self.n_ctx, self.n_vocab = opened.sizes.n_ctx, opened.n_vocab
        self._n_salts = 0

    @classmethod
    def open(
        cls: type[_Self],
        path: str | os.PathLike[str] | None,
        options: Mapping[str, Any],
        n_ctx: int,
        *,
        sums_inputs: bool = False,
    ) -> _Self:
        """Open a model, given as for ``LLM``, with ``options`` of ``EngineConfig``."""
        return cls(open_model(path, cls.sized(options, n_ctx), sums_inputs=sums_inputs))

    @staticmethod
    def sized(options: Mapping[str, Any], n_ctx: int) -> EngineConfig:
        """Return a configuration with just enough room for the rows of a step."""
        n_rows = max(1, STEP_TOKENS // n_ctx)
        config = EngineConfig(**{**options, "n_ctx": n_ctx})
        return replace(
            config,
            n_blocks=config.n_blocks or n_rows * (-(-n_ctx // BLOCK_TOKENS) + 1) + 1,
            max_sequences=config.max_sequences or _MOST_LOGIT_ROWS,
            max_step_tokens=config.max_step_tokens or STEP_TOKENS,
        )

    @property
    def opened(self) -> OpenedModel:
        """The opened model."""
        return self._opened

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer.  Raises UnsupportedError for a file without a vocabulary."""
        if self._opened.tokenizer is None:
            raise UnsupportedError(f"[score] {self._opened.model_name} has no vocabulary")
        return self._opened.tokenizer

    def logits(self, rows: Sequence[Sequence[int]], first: int | Sequence[int] = 0) -> Iterator[Floats]:
        """Yield the logits ``[n - first, n_vocab]`` of each row, from token ``first`` on, in order.

        Args:
            rows: Rows of tokens.
            first: One number for all rows, or one per row.

        Raises:
            RequestError: A row has more than ``n_ctx`` tokens.
            QuireError: A step failed.
        """
        firsts = [first] * len(rows) if isinstance(first, int) else first
        begin = n_tokens = 0
        for i, row in enumerate(rows):
            if n_tokens and n_tokens + len(row) > STEP_TOKENS:
                yield from self._together(rows[begin:i], firsts[begin:i])
                begin, n_tokens = i, 0
            n_tokens += len(row)
        yield from self._together(rows[begin:], firsts[begin:])

    def _together(self, rows: Sequence[Sequence[int]], firsts: Sequence[int]) -> list[Floats]:
        import numpy as np

        decoder = self._opened.decoder
        places: dict[int, int] = {}
        made = []
        for place, row in enumerate(rows):
            if not 0 < len(row) <= self.n_ctx:
                raise RequestError(f"[score] a text has {len(row)} tokens: expected 1 to {self.n_ctx}")
            # A new salt per row, so that no row is taken from the cache.
            self._n_salts += 1
            salt = self._n_salts.to_bytes(8, "little")
            places[decoder.submit(Request(row, salt=salt, prompt_logits=True))] = place
            made.append(np.empty((max(0, len(row) - firsts[place]), self.n_vocab), np.float32))
        n_left = len(places)
        while n_left:
            for event in decoder.wait(1.0):
                place = places[event.request_id]
                if event.kind == "error":
                    raise getattr(errors, event.error_kind or "InternalError")(event.error)
                if event.kind == "finish":
                    n_left -= 1
                if event.logits is not None:
                    at = event.first_position - firsts[place]
                    kept = event.logits.reshape(-1, self.n_vocab)[max(0, -at) :]
                    made[place][max(0, at) : max(0, at) + len(kept)] = kept
        return made

    def close(self) -> None:
        """Release the memory."""
        self._opened.decoder.close()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
