"""Vision encoders: models of image patches, one file per family, found by the projector's name in a GGUF file."""

from .base import VisionModel, load_vision, trace_encoder, trace_projector, vision_checkpoint_of

__all__ = ["VisionModel", "load_vision", "trace_encoder", "trace_projector", "vision_checkpoint_of"]
