"""The tools of a call of ``LLM.run``; this module imports nothing that takes long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..params.tool_options import ToolOptions

if TYPE_CHECKING:
    from .loop import Approve
    from .toolbox import ToolSource

__all__ = ["ToolUse"]


@dataclass(frozen=True)
class ToolUse:
    """The tools of a turn, who approves their calls, and their limits."""

    tools: Sequence[ToolSource]
    approve: Approve | None = None
    options: ToolOptions = field(default_factory=ToolOptions)
