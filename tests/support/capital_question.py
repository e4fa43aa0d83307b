"""The question of all framework tests, and a form for answers."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

CAPITAL = "What is the capital of France?"
ANSWER = "The capital of France is Paris."


class Colour(BaseModel):
    """One of three colours."""

    model_config = ConfigDict(extra="forbid")
    colour: Literal["red", "green", "blue"]
