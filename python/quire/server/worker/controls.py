"""Pause, sleep and new weights of the worker's model."""

from __future__ import annotations

from typing import Any

from ...engine.controls import ModelControls

__all__ = ["control"]


def control(model: ModelControls, verb: str, values: dict[str, Any]) -> object:
    """Do what ``quire.server.routes.model_controls`` asks for, and return the state."""
    if verb == "pause":
        model._pause_all(values["mode"])
        if values["clears"]:
            model._reset_prefix_cache()
    elif verb == "resume":
        model._resume_all()
    elif verb == "sleep":
        model._sleep(values["level"])
    elif verb == "wake_up":
        model._wake_up(values["tags"])
    elif verb == "update_weights":
        model._update_weights(values["path"])
    elif verb == "reset_prefix_cache":
        model._reset_prefix_cache()
    return {"is_paused": model.is_paused, "is_sleeping": model.is_sleeping}
