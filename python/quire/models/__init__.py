"""Model architectures, one file each.  README.md tells how to add one."""

from .registry import Architecture, LoadedModel, architectures, checkpoint_of, checkpoints_of, load_model, supported

__all__ = ["Architecture", "LoadedModel", "architectures", "checkpoint_of", "checkpoints_of", "load_model", "supported"]
