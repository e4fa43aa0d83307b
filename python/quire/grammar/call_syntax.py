"""How wire formats of tool calls write arguments, for grammars that make a model write them.

The formats are those that ``quire.chat.tools`` reads, under its names.  Another is added by an entry of
``CALL_SYNTAXES``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

__all__ = ["CALL_SYNTAXES", "CallSyntax", "Notation"]


class Notation(Enum):
    """What arguments are written in."""

    JSON = "json"
    PYTHON = "python"
    """``key=value``, as Python's literals or JSON."""
    MARKED = "marked"
    """``key:value``, strings between marks."""


@dataclass(frozen=True)
class CallSyntax:
    """Calls are ``opening``, ``call`` with ``separator`` between them, ``closing``.

    In ``call``, ``{name}`` and ``{arguments}`` stand for the two, ``{number}`` for the call's number, ``{id}`` for nine
    letters and digits, ``{id_member}`` for a member of a JSON object with such, or nothing; everywhere, ``{space}`` for
    white space, or nothing.  ``separator`` None: there is one call only.  ``trigger``: the beginning of ``opening``, or
    of each ``call``, that tells calls from other text wherever it stands; empty where calls are the whole answer.
    ``content``: what stands before and behind an answer that is text; ``joint``: between such text and calls behind it.
    ``reasoning``: what stands before and behind messages of reasoning, where that is no business of tags.  ``hint``:
    only templates that have this text write so.  ``argument``: how each argument is written where they are not one JSON
    object; in it ``{key}`` stands for its name, ``{value}`` for its text, ``{is_text}`` for whether that is one of a
    string, and ``{type}`` for the name of its type.  ``value_start``: what such a text must not begin with.  ``lead``:
    what may stand before ``opening`` where there is no text.  ``notation``: of all arguments together; ``string_mark``:
    on both sides of its strings; ``end``: what never stands in them.
    """

    call: str
    opening: str = ""
    closing: str = ""
    separator: str | None = None
    trigger: str = ""
    content: tuple[str, str] | None = None
    joint: str | None = None
    reasoning: tuple[str, str] | None = None
    hint: str = ""
    argument: str = ""
    value_start: str = ""
    lead: str = ""
    notation: Notation = Notation.JSON
    string_mark: str = ""
    end: str = ""


_OBJECT = '{"name": "{name}", "arguments": {arguments}}'

CALL_SYNTAXES: Mapping[str, tuple[CallSyntax, ...]] = {
    "hermes": (CallSyntax(f"<tool_call>\n{_OBJECT}\n</tool_call>", separator="{space}", trigger="<tool_call>"),),
    "llama3": (CallSyntax('{"name": "{name}", "parameters": {arguments}}', separator="; "),),
    "mistral": (
        CallSyntax(
            "[TOOL_CALLS]{name}[CALL_ID]{id}[ARGS]{arguments}",
            separator="",
            trigger="[TOOL_CALLS]",
            hint="[CALL_ID]",
        ),
        CallSyntax("[TOOL_CALLS]{name}[ARGS]{arguments}", separator="", trigger="[TOOL_CALLS]", hint="[ARGS]"),
        CallSyntax(
            '{"name": "{name}", "arguments": {arguments}{id_member}}',
            "[TOOL_CALLS][",
            "]",
            separator=", ",
            trigger="[TOOL_CALLS]",
        ),
    ),
    "functionary": (CallSyntax("{name}\n{arguments}", separator="{space}>>>", content=("all\n", ""), joint=">>>"),),
    "command_r": (
        CallSyntax(
            '{"tool_call_id": "{number}", "tool_name": "{name}", "parameters": {arguments}}',
            "<|START_ACTION|>[{space}",
            "{space}]<|END_ACTION|>",
            separator=",{space}",
            content=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
            hint="<|START_RESPONSE|>",
        ),
        CallSyntax(
            '{"tool_call_id": "{number}", "tool_name": "{name}", "parameters": {arguments}}',
            "<|START_ACTION|>[{space}",
            "{space}]<|END_ACTION|>",
            separator=",{space}",
            content=("<|START_TEXT|>", "<|END_TEXT|>"),
            hint="<|START_TEXT|>",
        ),
        CallSyntax(
            '{"tool_name": "{name}", "parameters": {arguments}}',
            "Action: ```json\n[{space}",
            "{space}]```",
            separator=",{space}",
            content=("", ""),
        ),
    ),
    "deepseek": (
        CallSyntax(
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>",
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁end｜>",
            separator="\n",
            trigger="<｜tool▁calls▁begin｜>",
            hint="```json",
        ),
        CallSyntax(
            "<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>",
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁end｜>",
            separator="",
            trigger="<｜tool▁calls▁begin｜>",
        ),
    ),
    "granite": (CallSyntax(_OBJECT, "<|tool_call|>[", "]", separator=", ", trigger="<|tool_call|>"),),
    "harmony": (
        CallSyntax(
            "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}",
            content=("<|channel|>final<|message|>", ""),
            reasoning=("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
        ),
    ),
    "kimi_k2": (
        CallSyntax(
            "<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>",
            "<|tool_calls_section_begin|>",
            "<|tool_calls_section_end|>",
            separator="",
            trigger="<|tool_calls_section_begin|>",
        ),
    ),
    "phi4": (
        CallSyntax(_OBJECT, "<|tool_call|>[", "]<|/tool_call|>", ", ", "<|tool_call|>", hint="<|/tool_call|>"),
        CallSyntax(_OBJECT, "functools[", "]", separator=", ", trigger="functools"),
    ),
    "nemotron": (CallSyntax(_OBJECT, "<TOOLCALL>[", "]</TOOLCALL>", separator=", ", trigger="<TOOLCALL>"),),
    "apertus": (
        CallSyntax(
            '{"{name}": {arguments}}',
            "<|tools_prefix|>[",
            "]<|tools_suffix|>",
            separator=", ",
            trigger="<|tools_prefix|>",
        ),
    ),
    "gigachat": (CallSyntax(f"<|function_call|>{_OBJECT}", trigger="<|function_call|>"),),
    "bare_json": (CallSyntax(_OBJECT),),
    "qwen3_coder": (
        CallSyntax(
            "<tool_call>\n<function={name}>\n{arguments}</function>\n</tool_call>",
            separator="{space}",
            trigger="<tool_call>",
            argument="<parameter={key}>\n{value}\n</parameter>\n",
        ),
    ),
    "glm": (
        CallSyntax(
            "<tool_call>{name}{space}{arguments}</tool_call>",
            separator="{space}",
            trigger="<tool_call>",
            argument="<arg_key>{key}</arg_key>{space}<arg_value>{value}</arg_value>{space}",
        ),
    ),
    "hunyuan": (
        CallSyntax(
            "<tool_call:opensource>{name}<tool_sep:opensource>{space}{arguments}</tool_call:opensource>",
            "<tool_calls:opensource>{space}",
            "{space}</tool_calls:opensource>",
            separator="{space}",
            trigger="<tool_calls:opensource>",
            argument="<arg_key:opensource>{key}</arg_key:opensource>{space}"
            "<arg_value:opensource>{value}</arg_value:opensource>{space}",
        ),
    ),
    "minimax": (
        CallSyntax(
            '<invoke name="{name}">\n{arguments}</invoke>\n',
            "<minimax:tool_call>\n",
            "</minimax:tool_call>",
            separator="",
            trigger="<minimax:tool_call>",
            argument='<parameter name="{key}">{value}</parameter>\n',
        ),
    ),
    "deepseek_dsml": tuple(
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
    "lfm2": (
        CallSyntax(
            "{name}({arguments})",
            "<|tool_call_start|>[",
            "]<|tool_call_end|>",
            separator=", ",
            trigger="<|tool_call_start|>",
            notation=Notation.PYTHON,
        ),
    ),
    "pythonic": (
        CallSyntax(
            "<function_calls>{name}({arguments})</function_calls>",
            separator="{space}",
            trigger="<function_calls>",
            hint="<function_calls>",
            notation=Notation.PYTHON,
        ),
        CallSyntax("{name}({arguments})", "[", "]", separator=", ", notation=Notation.PYTHON),
    ),
    "gemma": (
        CallSyntax(
            "<start_function_call>call:{name}{{arguments}}<end_function_call>",
            separator="{space}",
            trigger="<start_function_call>",
            hint="<start_function_call>",
            notation=Notation.MARKED,
            string_mark="<escape>",
            end="<end_function_call>",
        ),
        CallSyntax(
            "<|tool_call>call:{name}{{arguments}}<tool_call|>",
            separator="{space}",
            trigger="<|tool_call>",
            notation=Notation.MARKED,
            string_mark='<|"|>',
            end="<tool_call|>",
        ),
    ),
    "kimi_k3": (
        CallSyntax(
            '<|open|>call tool="{name}" index="{number}"<|sep|>{arguments}<|close|>call<|sep|>',
            "<|open|>tools<|sep|>",
            "<|close|>tools<|sep|><|close|>message<|sep|>",
            separator="",
            content=("<|open|>response<|sep|>", "<|close|>response<|sep|>"),
            joint="<|close|>response<|sep|>",
            argument='<|open|>argument key="{key}" type="{type}"<|sep|>{value}<|close|>argument<|sep|>',
            lead="<|open|>response<|sep|><|close|>response<|sep|>",
        ),
    ),
    "minicpm": (
        CallSyntax(
            '<function name="{name}">{arguments}</function>',
            separator="{space}",
            trigger='<function name="',
            argument='<param name="{key}">{value}</param>{space}',
            value_start="<![CDATA[",
        ),
    ),
    "muse": (
        CallSyntax(
            ' to={name}<|message|><atem:function_calls>\n<atem:invoke name="{name}">\n{arguments}</atem:invoke>\n'
            "</atem:function_calls>",
            separator="<|eom|><|start|>assistant",
            content=(" to=user<|message|>", ""),
            joint="<|eom|><|start|>assistant",
            reasoning=(" to=self<|message|>", "<|eom|><|start|>assistant"),
            argument='<atem:parameter name="{key}">{value}</atem:parameter>\n',
        ),
    ),
}
