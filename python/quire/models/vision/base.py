"""The interface of vision encoders, and how they are loaded and traced.

An encoder is two traces.  The first, the encoder proper, has one row per patch and returns hidden states.  The second,
the projector, has one row per image token: it joins the hidden states of neighbouring patches and returns embeddings
for the language model.  Neighbouring patches follow each other in memory, so joining them is a reshape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Protocol

from ..._native.core import Tensor as Array
from ..._native.graph import Trace, Tracer
from ...errors import UnsupportedError
from ...files.gguf import GGUFReader
from ...media import ImageProcessor
from ...media.pixels import Floats
from ...nn import CacheSpec, Keys, Step, Tensor, Weights, select_rows
from .checkpoint import VisionCheckpoint

__all__ = ["VisionModel", "load_vision", "trace_encoder", "trace_projector", "vision_checkpoint_of"]

# The files of ``clip.projector_type``.
PROJECTORS = {"qwen3vl_merger": "qwen3vl"}


class VisionModel(Protocol):
    """A family's encoder.

    Attributes:
        n_layer: Layers of the encoder.
        dim: Numbers of a hidden state.
        patch_dim: Numbers of a patch, as the family's image processor orders them.
        patch_size: A patch's side in pixels.
        merge: Patches along each side of the square that becomes one token.
        n_out: Size of a token's embedding: the language model's width, times 1 + its layers that images are added to.
        pad: Text of the placeholder token; the prompt has one per image token.
        markup: Text that stands for an image in a prompt; it has one ``pad``.
        processor: The image processor that the file describes.
        taps: Layers whose hidden states the projector reads besides the last layer's, ascending.
    """

    n_layer: int
    dim: int
    patch_dim: int
    patch_size: int
    merge: int
    n_out: int
    pad: str
    markup: str
    processor: ImageProcessor
    taps: Sequence[int]

    def inputs(self, patches: Floats, n_rows: int, n_cols: int) -> Floats:
        """Return the encoder's input row of each patch, ``[patches, n_in]``."""

    def encode(self, step: Step) -> Tensor:
        """Return hidden states ``[patches, dim]`` of ``step.features``."""

    def project(self, step: Step) -> Tensor:
        """Return tokens ``[tokens, n_out]``.

        ``step.features`` holds the hidden states of each token's patches side by side: the last layer's, then those
        of each layer of ``taps``.
        """


def load_vision(reader: GGUFReader, place: Callable[[Array], Array] = lambda tensor: tensor) -> VisionModel:
    """Read the vision encoder of an ``mmproj`` file; ``place`` moves a tensor to where the encoder runs.

    Raises:
        LoadError: A key or a tensor is missing or does not fit.
        UnsupportedError: The projector's kind, a key or a tensor is unknown.
    """
    keys, weights = Keys(reader.metadata), Weights(reader, place)
    kind = keys.text("vision.projector_type", keys.text("projector_type", ""))
    if kind not in PROJECTORS:
        raise UnsupportedError(f"[clip] unsupported projector '{kind:.40}'")
    model: VisionModel = import_module(f".{PROJECTORS[kind]}", __package__).MODEL(keys, weights)
    # llama.cpp's converter writes these for every file; audio has an encoder of its own.
    keys.finish(["has_*", "audio.*", "projector_type", "vision.projector_type", "vision.image_size"])
    weights.ignore("a.*", "it is an audio encoder's")
    weights.ignore("mm.a.*", "it is an audio encoder's")
    weights.finish()
    return model


def vision_checkpoint_of(name: str) -> VisionCheckpoint:
    """Return how checkpoints of a transformers class are converted to ``mmproj`` files."""
    for module in dict.fromkeys(PROJECTORS.values()):
        table: Mapping[str, VisionCheckpoint] = import_module(f".{module}", __package__).HF
        if name in table:
            return table[name]
    raise UnsupportedError(f"[convert] the vision encoder of '{name:.80}' is unsupported")


def trace_encoder(model: VisionModel, n_patches: int) -> Trace:
    """Record the encoder, for images of at most ``n_patches``."""
    tracer = Tracer([CacheSpec()] * model.n_layer)
    step = Step(tracer, n_patches, frozenset(model.taps))
    return tracer.finish_vectors(select_rows(model.encode(step), step.logit_rows))


def trace_projector(model: VisionModel, n_tokens: int) -> Trace:
    """Record the projector, for images of at most ``n_tokens``."""
    tracer = Tracer([])
    step = Step(tracer, n_tokens)
    return tracer.finish_vectors(select_rows(model.project(step), step.logit_rows))
