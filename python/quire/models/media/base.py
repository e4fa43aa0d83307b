"""The interface of encoders of images and sounds, and how they are loaded and traced.

An encoder is a few *stages*.  Each is traced by itself, and maps input rows to as many output rows: rows of a vision
transformer's first stage are patches, of its last stage the language model's tokens.  Between stages, ``rows`` regroups
what one returned into the input of the next, in NumPy: a square of patches into a token, or the frames under a strided
convolution into a row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import ClassVar, Literal, Protocol

import numpy as np
import numpy.typing as npt

from ..._native.core import Tensor as Array
from ..._native.graph import Trace, Tracer
from ...checkpoints.mapping import Fields
from ...errors import UnsupportedError
from ...files.gguf import GGUFReader
from ...media import ImageProcessor, Layout, View
from ...media.audio import FeatureExtractor
from ...media.pixels import Floats
from ...media.video import Video
from ...nn import CacheSpec, Keys, Step, Tensor, Weights, select_rows
from .checkpoint import MediaCheckpoint

__all__ = ["Item", "Kind", "MediaModel", "RunStage", "Stage", "load_media", "media_checkpoints_of", "trace_stage"]

Kind = Literal["image", "audio", "video"]
# The section of each kind's keys, and its tensors.
SECTIONS: Mapping[Kind, tuple[str, tuple[str, ...]]] = {
    "image": ("vision", ("v.*", "mm.*")),
    "audio": ("audio", ("a.*", "mm.a.*")),
}

# The modules of ``clip.projector_type``.
PROJECTORS = {
    "clip": "clip",
    "gemma3": "gemma3",
    "gemma4a": "gemma4a",
    "gemma4ua": "gemma4ua",
    "gemma4uv": "gemma4uv",
    "gemma4v": "gemma4",
    "glm4v": "glm4v",
    "idefics3": "idefics3",
    "internvl": "internvl",
    "kimik25": "kimik25",
    "lfm2": "lfm2vl",
    "lightonocr": "pixtral",
    "llama4": "llama4",
    "mlp": "llava",
    "paddleocr": "paddleocr",
    "pixtral": "pixtral",
    "qwen2.5o": "qwen25omni",
    "qwen2.5vl_merger": "qwen2vl",
    "qwen2a": "qwen2a",
    "qwen2vl_merger": "qwen2vl",
    "qwen3a": "qwen3a",
    "qwen3vl_merger": "qwen3vl",
    "siglip": "siglip",
    "siglip2": "siglip",
    "ultravox": "ultravox",
    "voxtral": "voxtral",
}


@dataclass(frozen=True)
class Stage:
    """A part of an encoder that runs as a whole.

    Attributes:
        compute: Returns ``[rows, n_out]`` of a step's ``features``.
        patches_per_row: Patches of a view that a row stands for.
        more_rows: Rows besides, such as that of a class token.
        n_layer: Layers of attention.
        rows_per_sequence: Fewest rows that attend to each other apart from the others; 0: all rows of a view do.
    """

    compute: Callable[[Step], Tensor]
    patches_per_row: int = 1
    n_layer: int = 0
    more_rows: int = 0
    rows_per_sequence: int = 0


@dataclass(frozen=True)
class Item:
    """An image, a sound or a video as an encoder reads it, known without its pixels.

    Attributes:
        views: Returns the views, in the order of the prompt.
        n_patches: Patches of the largest view.
        n_tokens: Rows in the prompt.
        markup: What stands for the item in a prompt: texts, and numbers of consecutive rows.
        grid: Rows and columns of tokens that RoPE's sections rotate by; None: consecutive positions.
        steps: Positions in time of the grids of each number of rows in ``markup``, relative to the first.
        around: Texts that a raw prompt may have around the item's placeholder; None: the first and last of ``markup``.
    """

    views: Callable[[], Iterable[View]]
    n_patches: int
    n_tokens: int
    markup: Sequence[str | int]
    grid: tuple[int, int] | None
    steps: Sequence[int] = (0,)
    around: tuple[str, str] | None = None


class RunStage(Protocol):
    """Runs a stage."""

    def __call__(
        self,
        stage: str,
        features: Floats,
        axes: npt.NDArray[np.int32] | None = None,
        lengths: Sequence[int] | None = None,
    ) -> Floats:
        """Return the output rows of ``features``.

        Args:
            stage: A name in ``MediaModel.stages``.
            features: float32 [rows, n_in].
            axes: int32 [3, rows], RoPE positions by section; None: the rows' numbers.
            lengths: Rows of each sequence, which attends within itself; None: all rows are one sequence.
        """


def _no_videos() -> UnsupportedError:
    return UnsupportedError("[media] the model reads no videos")


class MediaModel(ABC):
    """An encoder of images or sounds.

    Attributes:
        kind: What it encodes.
        processor: The processor that the file describes.
        patch_dim: Numbers of a patch, as the processor orders them.
        n_out: Numbers of an output row: the language model's width, times 1 + its layers that images are added to.
        pad: Text of the placeholder token; the prompt has one per output row.
        video_pad: Placeholder of a video's rows; empty: the model reads no videos.
        template_text: The text of chat templates that ``markup`` replaces; empty: templates are given a mark as text,
            because they write parts of ``markup`` themselves.
        gives_vectors: An item's only row is its embedding, beside those of a text encoder; no model reads it.
        stages: The stages by name.
    """

    kind: ClassVar[Kind] = "image"
    gives_vectors: ClassVar[bool] = False
    pad: str = ""
    video_pad: str = ""
    template_text: ClassVar[str] = ""
    processor: ImageProcessor | FeatureExtractor
    patch_dim: int
    n_out: int
    stages: Mapping[str, Stage]

    def layout(self, data: npt.NDArray[np.generic]) -> Layout:
        """Return the grids of an item: of an image uint8 [height, width, 3], of a sound float32 [samples]."""
        assert isinstance(self.processor, ImageProcessor)
        return self.processor.layout(*data.shape[:2])

    def views(self, data: npt.NDArray[np.generic]) -> Sequence[View]:
        """Return the item's views, in the order of the prompt."""
        assert isinstance(self.processor, ImageProcessor)
        return self.processor.process(data.astype(np.uint8, copy=False)).views

    def markup(self, layout: Layout) -> Sequence[str | int]:
        """Return what stands for an item in a prompt: texts, and numbers of consecutive output rows."""
        return [sum(layout.n_tokens)]

    def token_grid(self, layout: Layout) -> tuple[int, int] | None:
        """Return the rows and columns of tokens that RoPE's sections rotate by.

        None: an image's tokens take consecutive positions, as text does.
        """
        return None

    def item(self, data: npt.NDArray[np.generic]) -> Item:
        """Return an image or a sound as the encoder reads it."""
        layout = self.layout(data)
        n_patches = max(rows * cols for rows, cols in layout.views)
        markup, grid = self.markup(layout), self.token_grid(layout)
        return Item(lambda: self.views(data), n_patches, sum(layout.n_tokens), markup, grid)

    def frames_of(self, n_frames: int, rate: float) -> Sequence[int]:
        """Return the frames to read of a video file with ``n_frames``, ``rate`` a second."""
        raise _no_videos()

    def video(self, video: Video) -> Item:
        """Return a video as the encoder reads it; its views' rows follow each other."""
        raise _no_videos()

    def assembled(self, rows: Sequence[Floats], layout: Layout) -> Floats:
        """Return the item's rows, of the rows of its views."""
        return np.concatenate(rows)

    @abstractmethod
    def rows(self, view: View, run: RunStage) -> Floats:
        """Return the output rows ``[tokens, n_out]`` of a view."""


def _classes_of(projector: str) -> Mapping[Kind, Callable[[Keys, Weights], MediaModel]]:
    """Return the classes of the encoders that have this projector, by what they encode."""
    if projector not in PROJECTORS:
        return {}
    classes = import_module(f".{PROJECTORS[projector]}", __package__).MODELS[projector]
    return {each.kind: each for each in (classes if isinstance(classes, tuple) else (classes,))}


def load_media(reader: GGUFReader, place: Callable[[Array], Array] = lambda tensor: tensor) -> dict[Kind, MediaModel]:
    """Read the encoders of an ``mmproj`` file; ``place`` moves a tensor to where they run.

    Raises:
        LoadError: A key or a tensor is missing or does not fit.
        UnsupportedError: The kind of a projector, a key or a tensor is unknown.
    """
    keys, weights = Keys(reader.metadata), Weights(reader, place)
    found: dict[Kind, MediaModel] = {}
    without_effect = ["has_*", "projector_type", "*.projector_type", "vision.image_size"]
    for kind, (section, tensors) in SECTIONS.items():
        projector = keys.text(f"{section}.projector_type", keys.text("projector_type", ""))
        makes = _classes_of(projector)
        if kind in makes:
            found[kind] = makes[kind](keys, weights)
            continue
        # llama.cpp's converter writes keys of both kinds into every file.
        without_effect.append(f"{section}.*")
        for name in tensors:
            weights.ignore(name, f"the {kind} encoder is unsupported")
    if not found:
        raise UnsupportedError(f"[clip] unsupported projector '{keys.text('projector_type', ''):.40}'")
    keys.finish(without_effect)
    weights.finish()
    return found


def media_checkpoints_of(name: str, config: Fields) -> Sequence[MediaCheckpoint]:
    """Return how checkpoints of a transformers class, with this config.json, are converted to ``mmproj`` files.

    The first is of images, if there are two.
    """
    found: dict[bool, MediaCheckpoint] = {}
    for module in dict.fromkeys(PROJECTORS.values()):
        table: Mapping[str, MediaCheckpoint | Sequence[MediaCheckpoint]] = import_module(f".{module}", __package__).HF
        entry = table.get(name, ())
        for mapping in (entry,) if isinstance(entry, MediaCheckpoint) else entry:
            if mapping.reads(config):
                found.setdefault(mapping.hears, mapping)
    if len(found) > 1:  # models of a class may lack one of them
        found = {hears: mapping for hears, mapping in found.items() if config.has(mapping.config)}
    if not found:
        raise UnsupportedError(f"[convert] the encoder of images or sounds of '{name:.80}' is unsupported")
    return [found[hears] for hears in sorted(found)]


def trace_stage(stage: Stage, n_rows: int, *, taps: bool = False) -> Trace:
    """Record a stage, for views of at most ``n_rows``; with ``taps``, the output of each layer can be read."""
    tracer = Tracer([CacheSpec()] * stage.n_layer)
    step = Step(tracer, n_rows, frozenset(range(stage.n_layer if taps else 0)))
    return tracer.finish_vectors(select_rows(stage.compute(step), step.logit_rows))
