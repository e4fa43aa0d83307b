"""MiniMax M2: ``<minimax:tool_call>`` around ``<invoke>`` tags."""

from __future__ import annotations

from quire.chat.tools.invoke_xml import InvokeXml

FORMAT = InvokeXml(
    name="minimax",
    starts=("<minimax:tool_call>",),
    ends=("</minimax:tool_call>",),
)
