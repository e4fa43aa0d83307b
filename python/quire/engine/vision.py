"""Read images for a language model: run the vision encoder, cache its results, place them in the prompt.

A *row* is one embedding that the language model reads in place of a token's.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from .._native.graph import Executor
from ..errors import CapacityError, RequestError, ShapeError
from ..media import ImageProcessor, View
from ..media.pixels import Floats
from ..models.vision import load_vision, trace_encoder, trace_projector
from ..models.vision.grids import merged_places

if TYPE_CHECKING:
    from .._native.core import Device
    from ..files.gguf import GGUFReader
    from ..media.decode import Rgb

__all__ = ["MediaRows", "PromptMedia", "Vision", "VisionEncoder"]

CACHE_BYTES = 256 << 20


class VisionEncoder:
    """The vision encoder of an ``mmproj`` file on a device.  Not thread-safe."""

    def __init__(
        self,
        reader: GGUFReader,
        device: Device,
        *,
        max_patches: int = 4096,
        threads: int = 0,
        kernels: Literal["auto", "stock", "cpu"] = "auto",
    ) -> None:
        """Load the encoder.

        Args:
            reader: The ``mmproj`` file; it must outlive the encoder.
            device: Where the encoder runs.
            max_patches: Patches of the largest image.
            threads: Threads on the CPU; 0 for one per core.
            kernels: As for ``Executor``.
        """
        self.model = load_vision(reader)
        square = self.model.merge**2
        self._encoder = Executor(
            trace_encoder(self.model, max_patches), device, n_blocks=1, threads=threads, kernels=kernels,
            max_rows=max_patches, max_sequences=1,
        )  # fmt: skip
        shares = self._encoder if self._encoder.kernels == "cpu" else None
        self._projector = Executor(
            trace_projector(self.model, max_patches // square), device, n_blocks=1, threads=threads, kernels=kernels,
            max_rows=max_patches // square, max_sequences=1, team_of=shares,
        )  # fmt: skip
        self.max_patches = max_patches

    def encode(self, view: View) -> Floats:
        """Return the rows ``[tokens, n_out]`` of one view.

        Raises:
            CapacityError: The view has more than ``max_patches``.
            ShapeError: The patches do not fit this model.
        """
        model, n = self.model, view.n_rows * view.n_cols
        if view.patches.shape != (n, model.patch_dim) or view.n_rows % model.merge or view.n_cols % model.merge:
            raise ShapeError(
                f"[vision] patches of shape {view.patches.shape} for {view.n_rows} rows of {view.n_cols}: "
                f"expected [{n}, {model.patch_dim}]"
            )
        if n > self.max_patches:
            raise CapacityError(f"[vision] the image has {n} patches: at most {self.max_patches} fit")
        rows, cols = merged_places(view.n_rows, view.n_cols, model.merge)
        axes = np.concatenate([np.zeros_like(rows), rows, cols])
        states = _run(self._encoder, model.inputs(view.patches, view.n_rows, view.n_cols), axes.tolist())
        square = model.merge**2
        merged = [states, *(self._encoder.tap(layer, n) for layer in model.taps)]
        # Patches of a square follow each other, so a reshape joins their hidden states into a token's.
        tokens = np.concatenate([x.reshape(n // square, square * model.dim) for x in merged], axis=1)
        return _run(self._projector, tokens, [])


def _run(executor: Executor, features: Floats, axes: list[int]) -> Floats:
    n = len(features)
    every = list(range(n))
    return executor.run(
        [0] * n, positions=every, slots=[0] * n, logit_rows=every, row_begin=[0, n], n_kv=[n], tables=[[]], axes=axes,
        features=features,
    )  # fmt: skip


@dataclass(frozen=True)
class MediaRows:
    """An encoded image.

    Attributes:
        rows: float32 [tokens, n_out].
        grid: Rows and columns of tokens.
        digest: Hash, 32 bytes, of the pixels and the image processor's settings.
    """

    rows: Floats
    grid: tuple[int, int]
    digest: bytes


@dataclass(frozen=True)
class PromptMedia:
    """The images of a prompt; see ``native.Request``.

    Attributes:
        spans: For each image: the position of its first row, its digest and its rows.
        places: int32 [3, tokens], RoPE positions in time, height and width; None: the positions in the prompt.
    """

    spans: Sequence[tuple[int, bytes, Floats]]
    places: npt.NDArray[np.int32] | None


class Vision:
    """Reads images for one language model.  Thread-safe: one image is encoded at a time."""

    def __init__(self, encoder: VisionEncoder, processor: ImageProcessor, pad_id: int, markup: str) -> None:
        """Join an encoder with its image processor.

        Args:
            encoder: The encoder.
            processor: The image processor of the same checkpoint.
            pad_id: The placeholder token; the prompt has one per row.
            markup: Text that stands for an image in a prompt; it has one ``pad_id``.
        """
        self.encoder, self.processor, self.pad_id, self.markup = encoder, processor, pad_id, markup
        self._lock = threading.Lock()
        self._cache: OrderedDict[bytes, MediaRows] = OrderedDict()
        self._cached_bytes = 0

    @property
    def width(self) -> int:
        """Size of a row."""
        return self.encoder.model.n_out

    def read(self, image: Rgb) -> MediaRows:
        """Encode an image, or take it from the cache: uint8 [height, width, 3].

        Raises:
            CapacityError: The image has too many patches.
            RequestError: The model does not accept images of this shape.
        """
        height, width = image.shape[:2]
        layout = self.processor.layout(height, width)
        n_patches = max(rows * cols for rows, cols in layout.views)
        if n_patches > self.encoder.max_patches:
            raise CapacityError(
                f"[vision] the image of {width}x{height} pixels has {n_patches} patches: "
                f"at most {self.encoder.max_patches} fit"
            )
        told = f"{self.processor!r} {height}x{width}".encode()
        digest = hashlib.blake2b(told + b"\0" + np.ascontiguousarray(image).tobytes(), digest_size=32).digest()
        with self._lock:
            if digest in self._cache:
                self._cache.move_to_end(digest)
                return self._cache[digest]
            (view,) = self.processor.process(image).views
            merge = self.encoder.model.merge
            found = MediaRows(self.encoder.encode(view), (view.n_rows // merge, view.n_cols // merge), digest)
            self._keep(found)
        return found

    def _keep(self, found: MediaRows) -> None:
        self._cache[found.digest] = found
        self._cached_bytes += found.rows.nbytes
        while self._cached_bytes > CACHE_BYTES and len(self._cache) > 1:
            self._cached_bytes -= self._cache.popitem(last=False)[1].rows.nbytes

    def expanded(self, ids: Sequence[int], images: Sequence[MediaRows]) -> tuple[list[int], PromptMedia]:
        """Repeat each ``pad_id`` once per row of its image; return the ids, and the rows with their places.

        Raises:
            RequestError: The number of ``pad_id`` differs from the number of images.
        """
        if (n_pads := ids.count(self.pad_id)) != len(images):
            raise RequestError(f"[chat] the prompt has {n_pads} places for {len(images)} images")
        made: list[int] = []
        spans: list[tuple[int, bytes, Floats]] = []
        places: list[npt.NDArray[np.int32]] = []
        next_place = begin = 0

        def add_text(text: Sequence[int]) -> None:
            nonlocal next_place
            made.extend(text)
            places.append(np.tile(np.arange(next_place, next_place + len(text), dtype=np.int32), (3, 1)))
            next_place += len(text)

        for image in images:
            end = ids.index(self.pad_id, begin)
            add_text(ids[begin:end])
            begin = end + 1
            spans.append((len(made), image.digest, image.rows))
            made += [self.pad_id] * len(image.rows)
            rows, cols = np.mgrid[0 : image.grid[0], 0 : image.grid[1]].astype(np.int32).reshape(2, -1)
            places.append(np.stack([np.zeros_like(rows), rows, cols]) + np.int32(next_place))
            next_place += max(image.grid)
        add_text(ids[begin:])
        return made, PromptMedia(spans, np.concatenate(places, axis=1))
