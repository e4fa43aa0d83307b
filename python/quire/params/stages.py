"""Names of the stages of the sampling chain in other programs."""

from __future__ import annotations

from collections.abc import Mapping

from .sampling import DEFAULT_SAMPLERS

__all__ = ["LLAMA_CPP_ORDER", "STAGE_LETTERS", "stage_named"]

_LLAMA_CPP = ("penalties", "dry", "top_n_sigma", "top_k", "tfs_z", "typical_p", "top_p", "min_p", "xtc", "temperature")
# Stages that llama.cpp lacks go before the temperature, which it applies last; mirostat is no stage there, and
# adaptive_p comes after all others.
_OWN = tuple(stage for stage in DEFAULT_SAMPLERS if stage not in (*_LLAMA_CPP, "adaptive_p", "mirostat"))

LLAMA_CPP_ORDER = (*_LLAMA_CPP[:-1], *_OWN, _LLAMA_CPP[-1])
"""The stages in llama.cpp's default order."""

STAGE_LETTERS: Mapping[str, str] = {
    "e": "penalties", "d": "dry", "s": "top_n_sigma", "k": "top_k", "y": "typical_p", "p": "top_p", "m": "min_p",
    "x": "xtc", "t": "temperature",
}  # fmt: skip
"""The stages by llama.cpp's letters."""

_SPELLINGS = {
    "typ_p": "typical_p",
    "typ": "typical_p",
    "typical": "typical_p",
    "temp": "temperature",
    "nucleus": "top_p",
}


def stage_named(text: str) -> str:
    """Return the stage for any of llama.cpp's spellings; other text is returned normalized."""
    name = text.strip().lower().replace("-", "_")
    return _SPELLINGS.get(name, name)
