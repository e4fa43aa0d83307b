"""llama.cpp's names for the stages of the sampling chain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import RequestError
from ...params.stages import LLAMA_CPP_ORDER, STAGE_LETTERS, stage_named

__all__ = ["stages_of", "with_last"]


def stages_of(given: list[str] | str) -> tuple[str, ...]:
    """Convert llama.cpp's names or letters of stages.  RequestError for an unknown name."""
    names = [STAGE_LETTERS.get(letter, letter) for letter in given] if isinstance(given, str) else given
    stages = tuple(map(stage_named, names))
    for stage in stages:
        if stage not in (*LLAMA_CPP_ORDER, "adaptive_p"):
            raise RequestError(
                f"[sampling] samplers: unknown stage {stage!r:.40} (known: {', '.join(LLAMA_CPP_ORDER)})"
            )
    return stages


def with_last(stages: tuple[str, ...], given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the stages with those at the end that draw by themselves in llama.cpp, as far as they are turned on."""
    last = {"adaptive_p": given.get("adaptive_target") is not None, "mirostat": bool(given.get("mirostat"))}
    return (*(stage for stage in stages if stage not in last), *(stage for stage, is_on in last.items() if is_on))
