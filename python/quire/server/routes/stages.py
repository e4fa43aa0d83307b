"""llama.cpp's names for the stages of the sampling chain."""

from __future__ import annotations

from ...errors import RequestError

__all__ = ["LLAMA_CPP_ORDER", "stages_of"]

LLAMA_CPP_ORDER = (
    "penalties", "dry", "top_n_sigma", "top_k", "tfs_z", "typical_p", "top_p", "min_p", "xtc", "temperature",
)  # fmt: skip
_LETTERS = {
    "e": "penalties", "d": "dry", "s": "top_n_sigma", "k": "top_k", "y": "typical_p", "p": "top_p", "m": "min_p",
    "x": "xtc", "t": "temperature",
}  # fmt: skip
_SPELLINGS = {"typ_p": "typical_p", "typical": "typical_p", "temp": "temperature", "top-n-sigma": "top_n_sigma"}


def stages_of(given: list[str] | str) -> tuple[str, ...]:
    """Convert llama.cpp's names or letters of stages.  RequestError for an unknown name."""
    names = [_LETTERS.get(letter, letter) for letter in given] if isinstance(given, str) else given
    stages = tuple(_SPELLINGS.get(name, name) for name in names)
    for stage in stages:
        if stage not in LLAMA_CPP_ORDER:
            raise RequestError(
                f"[sampling] samplers: unknown stage {stage!r:.40} (known: {', '.join(LLAMA_CPP_ORDER)})"
            )
    return stages
