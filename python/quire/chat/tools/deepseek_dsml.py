"""DeepSeek V3.2 and V4: ``invoke`` tags whose names begin with a mark; ``string`` says whether a value is text."""

from __future__ import annotations

from quire.chat.tools.call_syntax import CallSyntax
from quire.chat.tools.invoke_xml import InvokeXml

_MARK = "｜DSML｜"

FORMAT = InvokeXml(
    name="deepseek_dsml",
    starts=(f"<{_MARK}function_calls>", f"<{_MARK}tool_calls>"),
    ends=(f"</{_MARK}function_calls>", f"</{_MARK}tool_calls>"),
    prefix=_MARK,
    marks=(_MARK,),
    hints=(("｜DSML｜",),),
    syntaxes=tuple(
        CallSyntax(
            '<｜DSML｜invoke name="{name}">{space}{arguments}</｜DSML｜invoke>\n',
            f"<｜DSML｜{block}>\n",
            f"</｜DSML｜{block}>",
            separator="",
            trigger=f"<｜DSML｜{block}>",
            hint=f"{block}>",
            argument='<｜DSML｜parameter name="{key}" string="{is_text}">{value}</｜DSML｜parameter>\n',
        )
        for block in ("function_calls", "tool_calls")
    ),
)
