"""llama.cpp's names for the stages of the sampling chain."""

from __future__ import annotations

from ...errors import RequestError
from ...params.stages import LLAMA_CPP_ORDER, STAGE_LETTERS, stage_named

__all__ = ["stages_of"]


def stages_of(given: list[str] | str) -> tuple[str, ...]:
    """Convert llama.cpp's names or letters of stages.  RequestError for an unknown name."""
    names = [STAGE_LETTERS.get(letter, letter) for letter in given] if isinstance(given, str) else given
    stages = tuple(map(stage_named, names))
    for stage in stages:
        if stage not in LLAMA_CPP_ORDER:
            raise RequestError(
                f"[sampling] samplers: unknown stage {stage!r:.40} (known: {', '.join(LLAMA_CPP_ORDER)})"
            )
    return stages
