"""Pause, sleep and new weights of the worker's model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...engine.controls import ModelControls
    from .protocol import Open

__all__ = ["control", "restore_controls"]


def restore_controls(model: ModelControls, opened: Open) -> None:
    """Pause a model and put it to sleep, as the worker before was."""
    if opened.paused:
        model._pause_all("keep")
    if opened.asleep:
        model._sleep(1)
        model._controls.asleep = set(opened.asleep)


def control(model: ModelControls, verb: str, values: dict[str, Any]) -> object:
    """Do what ``quire.server.routes.model_controls`` asks for, and return the state."""
    if verb == "pause":
        model._pause_all(values["mode"])
        if values["clears"]:
            model._reset_prefix_cache()
    elif verb == "resume":
        model._resume_all()
    elif verb == "sleep":
        model._sleep(values["level"], values["mode"])
    elif verb == "wake_up":
        model._wake_up(values["tags"])
    elif verb == "update_weights":
        model._update_weights(values["path"])
    elif verb == "reset_prefix_cache":
        model._reset_prefix_cache()
    asleep = sorted(model._controls.asleep)
    return {"is_paused": model.is_paused, "is_sleeping": model.is_sleeping, "asleep": asleep}
