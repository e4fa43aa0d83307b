"""Wire formats of tool calls, one module each, parsed while the answer arrives."""

from __future__ import annotations

import importlib

from quire.chat.tools.calls import ToolFormat
from quire.errors import RequestError

__all__ = ["TOOL_FORMATS", "tool_format"]

TOOL_FORMATS = (
    "muse",
    "harmony",
    "solar",
    "kimi_k3",
    "kimi_k2",
    "deepseek_dsml",
    "deepseek",
    "minimax_m3",
    "minimax",
    "hunyuan",
    "glm",
    "seed_oss",
    "qwen3_coder",
    "minicpm",
    "gemma",
    "lfm2",
    "command_r",
    "mistral",
    "functionary",
    "nemotron",
    "apertus",
    "gigachat",
    "granite",
    "phi4",
    "apriel",
    "hermes",
    "pythonic",
    "llama3",
    "bare_json",
)
"""Names, in the order in which they are tried: those with marks of their own first."""


def tool_format(name: str) -> ToolFormat:
    """Return a format by its name.  RequestError if it is unknown."""
    if name not in TOOL_FORMATS:
        known = ", ".join(TOOL_FORMATS)
        raise RequestError(f"[chat] unknown tool_format {name!r:.80}: expected auto, none or one of {known}")
    # Imported on use: one model needs one format of many.
    form: ToolFormat = importlib.import_module(f"quire.chat.tools.{name}").FORMAT
    return form
