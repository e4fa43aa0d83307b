"""Seed-OSS: the tags of Qwen3-Coder in ``<seed:tool_call>``, without line ends around values."""

from __future__ import annotations

from quire.chat.tools.arguments import Lines
from quire.chat.tools.call_syntax import CallSyntax
from quire.chat.tools.qwen3_coder import FunctionTags

_START, _END = "<seed:tool_call>", "</seed:tool_call>"

FORMAT = FunctionTags(
    name="seed_oss",
    starts=(_START, "<function="),
    end=_END,
    lines=Lines.BOTH,
    hints=((_START,),),
    syntaxes=(
        CallSyntax(
            f"{_START}\n<function={{name}}>\n{{arguments}}</function>\n{_END}",
            separator="{space}",
            trigger=_START,
            argument="<parameter={key}>{value}</parameter>\n",
        ),
    ),
)
