"""MiniMax M2: ``<minimax:tool_call>`` around ``<invoke>`` tags."""

from __future__ import annotations

from quire.chat.tools.call_syntax import CallSyntax
from quire.chat.tools.invoke_xml import InvokeXml

FORMAT = InvokeXml(
    name="minimax",
    starts=("<minimax:tool_call>",),
    ends=("</minimax:tool_call>",),
    hints=(("minimax:tool_call",),),
    syntaxes=(
        CallSyntax(
            '<invoke name="{name}">\n{arguments}</invoke>\n',
            "<minimax:tool_call>\n",
            "</minimax:tool_call>",
            separator="",
            trigger="<minimax:tool_call>",
            argument='<parameter name="{key}">{value}</parameter>\n',
        ),
    ),
)
