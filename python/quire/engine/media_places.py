"""Place the rows of images, sounds and videos in a prompt.

A *row* is one embedding that the language model reads in place of a token's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..media.pixels import Floats
from ..models.media import Kind

__all__ = ["Expansion", "MediaRows", "PromptMedia"]


@dataclass(frozen=True)
class MediaRows:
    """An encoded image, sound or video.

    Attributes:
        kind: Which of them.
        rows: float32 [tokens, n_out].
        markup: What stands for it in a prompt; see ``MediaModel.markup``.
        grid: Rows and columns of tokens that RoPE's sections rotate by; None: consecutive positions.
        digest: Hash, 32 bytes, of the content and the processor's settings.
        steps, around: See ``Item``.
    """

    kind: Kind
    rows: Floats
    markup: Sequence[str | int]
    grid: tuple[int, int] | None
    digest: bytes
    steps: Sequence[int] = (0,)
    around: tuple[str, str] | None = None


@dataclass(frozen=True)
class PromptMedia:
    """The images and sounds of a prompt; see ``native.Request``.

    Attributes:
        spans: For each run of consecutive rows: the position of its first row, its digest and its rows.
        places: int32 [3, tokens], RoPE positions in time, height and width; None: the positions in the prompt.
        ends: Positions behind images and sounds where recurrent layers keep their state for other questions: behind
            the first, with which a conversation may have begun, and the last three.
        is_causal: Whether the rows of each span see earlier ones only, also where those of images see all of theirs.
    """

    spans: Sequence[tuple[int, bytes, Floats]]
    places: npt.NDArray[np.int32] | None
    ends: Sequence[int]
    is_causal: Sequence[bool] = ()


class Expansion:
    """A prompt in the making: ``ids`` with placeholders repeated."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids, self._begin = ids, 0
        self._made: list[int] = []
        self._spans: list[tuple[int, bytes, Floats]] = []
        self._places: list[npt.NDArray[np.int32]] = []
        self._next_place = 0
        self._has_grids = False
        self._ends: list[int] = []
        self._is_causal: list[bool] = []

    def add(self, item: MediaRows, pad: int) -> None:
        at = 0
        for i, n_rows in enumerate(part for part in item.markup if isinstance(part, int)):
            end = self._ids.index(pad, self._begin)
            self._add_text(self._ids[self._begin : end])
            self._begin = end + 1
            digest = hashlib.blake2b(item.digest + i.to_bytes(4, "little"), digest_size=32).digest()
            self._spans.append((len(self._made), digest, item.rows[at : at + n_rows]))
            self._is_causal.append(item.kind == "audio")
            if item.grid is None:
                self._add_text([pad] * n_rows)
            else:
                self._made += [pad] * n_rows
                self._add_grid(*item.grid, item.steps)
            at += n_rows
        self._ends.append(len(self._made))

    def finish(self) -> tuple[list[int], PromptMedia]:
        self._add_text(self._ids[self._begin :])
        places = np.concatenate(self._places, axis=1) if self._has_grids else None
        ends = [*self._ends[:1], *self._ends[1:][-3:]]
        return self._made, PromptMedia(self._spans, places, ends, self._is_causal)

    def _add_text(self, text: Sequence[int]) -> None:
        self._made += text
        end = self._next_place + len(text)
        self._places.append(np.tile(np.arange(self._next_place, end, dtype=np.int32), (3, 1)))
        self._next_place = end

    def _add_grid(self, n_rows: int, n_cols: int, steps: Sequence[int]) -> None:
        times, rows, cols = np.mgrid[0 : len(steps), 0:n_rows, 0:n_cols].astype(np.int32).reshape(3, -1)
        times = np.asarray(steps, np.int32)[times]
        self._places.append(np.stack([times, rows, cols]) + np.int32(self._next_place))
        self._next_place += max(n_rows, n_cols)
        self._has_grids = True
