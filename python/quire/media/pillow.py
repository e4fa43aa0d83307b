"""Pillow, imported when the first image arrives."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ..errors import UnsupportedError

__all__ = ["Bitmap", "pillow"]

# A PIL.Image.Image; Pillow may be absent when types are checked.
Bitmap = Any


def pillow() -> ModuleType:
    """Return the module PIL.Image.

    Raises:
        UnsupportedError: Pillow is not installed.
    """
    try:
        import PIL.Image
    except ImportError:
        raise UnsupportedError('images need Pillow: pip install "quire-llm[media]"') from None
    module: ModuleType = PIL.Image
    return module
