"""Model architectures, one file each.  README.md tells how to add one."""

from .registry import ARCHITECTURES, LoadedModel, load_model

__all__ = ["ARCHITECTURES", "LoadedModel", "load_model"]
