"""Model architectures, one file each.  README.md tells how to add one."""

from .registry import LoadedModel, architectures, checkpoint_of, load_model

__all__ = ["LoadedModel", "architectures", "checkpoint_of", "load_model"]
