"""Qwen3.5 with experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from . import qwen35

MLP = {"moe_intermediate_size": 48, "shared_expert_intermediate_size": 48, "num_experts": 4, "num_experts_per_tok": 2}


def make() -> Any:
    return qwen35.make("Qwen3_5Moe", MLP)


FAMILY = replace(qwen35.FAMILY, make=make)
