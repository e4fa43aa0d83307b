"""Encoders of images and sounds, one file per family, found by the projector's name in a GGUF file."""

from .base import Item, Kind, MediaModel, RunStage, Stage, load_media, media_checkpoints_of, trace_stage

__all__ = ["Item", "Kind", "MediaModel", "RunStage", "Stage", "load_media", "media_checkpoints_of", "trace_stage"]
