"""Read images and sounds for a language model: run the encoders, cache their results, place them in the prompt.

A *row* is one embedding that the language model reads in place of a token's.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from .._native.graph import Executor
from ..errors import CapacityError, RequestError, ShapeError
from ..media import View
from ..media.image_processor import MAX_PATCHES
from ..media.pixels import Floats
from ..media.video import Video, decode_video
from ..models.media import Kind, MediaModel, Stage, trace_stage
from .media_places import Expansion, MediaRows, PromptMedia

if TYPE_CHECKING:
    from .._native.core import Device
    from .._native.kernels import KernelSet
    from ..params.engine_options import CacheDType

__all__ = ["MediaEncoder", "MediaInput", "MediaRows", "PromptMedia", "memory_of"]

PADDING = 2048  # patches by which images may exceed the limit that they are shrunk to
CACHE_BYTES = 256 << 20
FIRST_PATCHES = 1024


def memory_of(model: MediaModel, device: Device, kernels: Literal["auto", "stock", "cpu"]) -> int:
    """Return the bytes that an encoder takes for views of ``FIRST_PATCHES``, on the CPU without those of weights."""
    total = 0
    for stage in model.stages.values():
        n_rows, n_sequences = _limits(stage, FIRST_PATCHES)
        on_device, on_cpu = Executor.measure(
            trace_stage(stage, n_rows), device, n_blocks=1, kernels=kernels, max_rows=n_rows, max_sequences=n_sequences
        )
        total += on_cpu + sum(use["weights"] + use["compute"] for use in on_device)
    return total


def _limits(stage: Stage, n_patches: int) -> tuple[int, int]:
    """Return the most rows and sequences of a stage."""
    n_rows = -(-n_patches // stage.patches_per_row) + stage.more_rows
    return n_rows, -(-n_rows // stage.rows_per_sequence) if stage.rows_per_sequence else 1


class MediaEncoder:
    """An encoder on a device.  Not thread-safe."""

    def __init__(
        self,
        model: MediaModel,
        device: Device,
        *,
        max_patches: int = MAX_PATCHES + PADDING,
        threads: int = 0,
        kernels: Literal["auto", "stock", "cpu"] = "auto",
        kernel_set: KernelSet | None = None,
        kv_dtype: CacheDType = "f16",
        with_weights: Callable[[], MediaModel] | None = None,
    ) -> None:
        """Prepare an encoder.

        Args:
            model: The encoder; the file that it was read from must outlive it.
            device: Where it runs.
            max_patches: Patches of the largest view.  Memory grows with the largest view so far.
            threads: Threads on the CPU; 0 for one per core.
            kernels: As for ``Executor``.
            kernel_set: As for ``Executor``.
            kv_dtype: Type of keys and values.
            with_weights: Returns the encoder with its weights, if ``model`` has none; called for the first item.
        """
        self.model, self.max_patches = model, max_patches
        self._with_weights = with_weights
        self._made = partial(
            Executor,
            device=device,
            threads=threads,
            kernels=kernels,
            kernel_set=kernel_set,
            kv_dtype=kv_dtype,
            n_blocks=1,
        )  # fmt: skip
        self._stages: dict[str, Executor] = {}
        self._n_patches = 0

    def encode(self, view: View) -> Floats:
        """Return the rows ``[tokens, n_out]`` of one view.

        Raises:
            CapacityError: The view has more than ``max_patches``.
            ShapeError: The patches do not fit this model.
        """
        n = view.n_rows * view.n_cols
        if view.patches.shape != (n, self.model.patch_dim):
            raise ShapeError(
                f"[media] patches of shape {view.patches.shape} for {view.n_rows} rows of {view.n_cols}: "
                f"expected [{n}, {self.model.patch_dim}]"
            )
        self._prepare(n)
        return self.model.rows(view, self._run)

    def _prepare(self, n_patches: int) -> None:
        if n_patches > self.max_patches:
            raise CapacityError(f"[media] a view has {n_patches} patches: at most {self.max_patches} fit")
        if n_patches <= self._n_patches:
            return
        room = max(self._n_patches, FIRST_PATCHES)
        while room < n_patches:
            room *= 2
        room = min(room, self.max_patches)
        self._stages, self._n_patches = {}, 0  # gives the memory back first
        if self._with_weights is not None:
            self.model, self._with_weights = self._with_weights(), None
        team: Executor | None = None
        for name, stage in self.model.stages.items():
            n_rows, n_sequences = _limits(stage, room)
            made = self._made(trace_stage(stage, n_rows), max_rows=n_rows, max_sequences=n_sequences, team_of=team)
            team = team or (made if made.kernels == "cpu" else None)
            self._stages[name] = made
        self._n_patches = room

    def _run(
        self,
        stage: str,
        features: Floats,
        axes: npt.NDArray[np.int32] | None = None,
        lengths: Sequence[int] | None = None,
    ) -> Floats:
        n = len(features)
        lengths = [n] if lengths is None else lengths
        ends = np.cumsum(lengths).tolist()
        positions = [i for length in lengths for i in range(length)]
        return self._stages[stage].run(
            [0] * n, positions=positions, slots=[0] * n, logit_rows=list(range(n)), row_begin=[0, *ends],
            n_kv=list(lengths), tables=[[]] * len(lengths), features=np.ascontiguousarray(features, np.float32),
            axes=[] if axes is None else axes.reshape(-1).tolist(),
        )  # fmt: skip


class MediaInput:
    """Reads images and sounds for one language model.  Thread-safe: one item is encoded at a time."""

    def __init__(self, encoders: Mapping[Kind, MediaEncoder], token_of: Callable[[str], int]) -> None:
        """Join encoders with a tokenizer.

        Args:
            encoders: The encoders by what they encode.
            token_of: Returns the id of a placeholder token.
        """
        self.encoders = dict(encoders)
        if "image" in encoders and encoders["image"].model.video_pad:
            self.encoders["video"] = encoders["image"]
        # Most of them wait for one that encodes.
        self.threads = ThreadPoolExecutor(32, thread_name_prefix="quire-media")
        self.gives_vectors = any(encoder.model.gives_vectors for encoder in encoders.values())
        pads = {} if self.gives_vectors else {kind: encoder.model.pad for kind, encoder in encoders.items()}
        if "video" in self.encoders:
            pads["video"] = encoders["image"].model.video_pad
        self._pads = {kind: (pad, token_of(pad)) for kind, pad in pads.items()}
        self._encoding = threading.Lock()
        self._lock = threading.Lock()  # guards the rest; never held for long
        self._cache: OrderedDict[bytes, MediaRows] = OrderedDict()
        self._cached_bytes = 0

    @property
    def width(self) -> int:
        """Numbers of a row that the model reads; 0 for encoders of vectors beside those of texts."""
        return 0 if self.gives_vectors else max(encoder.model.n_out for encoder in self.encoders.values())

    @property
    def template_texts(self) -> Mapping[Kind, str]:
        """``MediaModel.template_text`` by the kind of items."""
        return {
            kind: text
            for kind, encoder in self.encoders.items()
            if kind != "video" and (text := encoder.model.template_text)
        }

    def read(self, kind: Kind, data: npt.NDArray[Any] | Video | bytes, room: int | None = None) -> MediaRows:
        """Encode an item, or take it from the cache.

        Args:
            kind: Which of them.
            data: An image uint8 [height, width, 3], a sound float32 [samples], a video or the bytes of its file.
            room: Tokens that are left for it in the context; None: any number.

        Raises:
            CapacityError: It has too many patches, or more tokens than there is room for.
            RequestError: The model does not accept images of this shape, or not this kind.
        """
        encoder = self.encoders.get(kind)
        if encoder is None:
            raise RequestError(f"the model has no encoder for {kind} input")
        model = encoder.model
        if isinstance(data, bytes):
            data = decode_video(data, model.frames_of)
        if isinstance(data, Video):
            item, content, layout = model.video(data), data.frames, None
            told = f"{kind} {model.processor!r} {data.times} {data.rate} {data.duration} {content.shape}".encode()
        else:
            item, content, layout = model.item(data), data, model.layout(data)
            told = f"{kind} {model.processor!r} {data.dtype} {data.shape}".encode()
        if item.n_patches > encoder.max_patches:
            shape = "x".join(str(n) for n in content.shape[:2])
            raise CapacityError(
                f"[media] the {kind} of {shape} has {item.n_patches} patches: at most {encoder.max_patches} fit"
            )
        if room is not None and item.n_tokens > room:
            raise CapacityError(
                f"[media] the {kind} takes {item.n_tokens} tokens: {max(room, 0)} are left of the context"
            )
        digest = hashlib.blake2b(told + b"\0" + np.ascontiguousarray(content).tobytes(), digest_size=32).digest()
        if (found := self._cached(digest)) is not None:
            return found
        with self._encoding:
            if (found := self._cached(digest)) is not None:  # somebody else asked for it, too
                return found
            views = [encoder.encode(view) for view in item.views()]
            # Encoding the first item opens the model with its weights.
            rows = np.concatenate(views) if layout is None else encoder.model.assembled(views, layout)
            found = MediaRows(kind, self._padded(rows), item.markup, item.grid, digest, item.steps, item.around)
            self._keep(found)
        return found

    def read_view(self, kind: Kind, view: View) -> MediaRows:
        """Encode a view that the caller has prepared, or take it from the cache."""
        encoder = self.encoders[kind]
        told = f"{kind} view {encoder.model.processor!r} {view.patches.shape}".encode()
        digest = hashlib.blake2b(told + b"\0" + view.patches.tobytes(), digest_size=32).digest()
        with self._encoding:
            if (found := self._cached(digest)) is None:
                rows = encoder.encode(view)
                found = MediaRows(kind, self._padded(rows), [len(rows)], None, digest)
                self._keep(found)
        return found

    def _cached(self, digest: bytes) -> MediaRows | None:
        with self._lock:
            if digest in self._cache:
                self._cache.move_to_end(digest)
            return self._cache.get(digest)

    def _padded(self, rows: Floats) -> Floats:
        missing = self.width - rows.shape[1]
        return np.pad(rows, ((0, 0), (0, missing))) if missing > 0 else rows

    def _keep(self, found: MediaRows) -> None:
        with self._lock:
            self._cache[found.digest] = found
            self._cached_bytes += found.rows.nbytes
            while self._cached_bytes > CACHE_BYTES and len(self._cache) > 1:
                self._cached_bytes -= self._cache.popitem(last=False)[1].rows.nbytes

    def placeholder(self, kind: Kind) -> str:
        """Return the text of the token that stands for rows of this kind."""
        return self._pads[kind][0]

    def surroundings(self, item: MediaRows) -> tuple[str, str]:
        """Return the texts that a prompt has before and after the rows of an item; empty for none."""
        first, last = item.markup[0], item.markup[-1]
        if item.around is not None:
            return item.around
        return first if isinstance(first, str) else "", last if isinstance(last, str) else ""

    def written(self, item: MediaRows) -> str:
        """Return what stands for an item in a prompt's text, with one placeholder for each run of rows."""
        return "".join(part if isinstance(part, str) else self._pads[item.kind][0] for part in item.markup)

    def expanded(self, ids: Sequence[int], items: Sequence[MediaRows]) -> tuple[list[int], PromptMedia]:
        """Repeat each placeholder once per row of its run; return the ids, and the rows with their places.

        Raises:
            RequestError: The number of placeholders differs from the number of runs.
        """
        for kind, (_, pad) in self._pads.items():  # a pad may be that of two kinds
            found = [item for item in items if self._pads[item.kind][1] == pad]
            n_runs = sum(isinstance(part, int) for item in found for part in item.markup)
            if (n_pads := ids.count(pad)) != n_runs:
                raise RequestError(f"[chat] the prompt has {n_pads} places for {n_runs} parts of {kind} input")
        made = Expansion(ids)
        for item in items:
            made.add(item, self._pads[item.kind][1])
        return made.finish()
