"""Tool calls on the wire: one module for each format, named like it, all of them read while the answer comes."""

from __future__ import annotations

import importlib

from quire.chat.tools.calls import ToolFormat
from quire.errors import RequestError

__all__ = ["TOOL_FORMATS", "detect_tools", "tool_format"]

TOOL_FORMATS: dict[str, tuple[tuple[str, ...], ...]] = {
    "muse": (("atem:function_calls",),),
    "harmony": (("<|channel|>", "<|message|>", "<|start|>"),),
    "kimi_k3": (("<|open|>", "<|close|>", "<|sep|>"),),
    "kimi_k2": (("<|tool_call_begin|>", "<|tool_call_argument_begin|>"),),
    "deepseek_dsml": (("｜DSML｜",),),
    "deepseek": (("<｜tool▁calls▁begin｜>",),),
    "minimax": (("minimax:tool_call",),),
    "hunyuan": (("<tool_sep", "<arg_key", ":opensource"),),
    "glm": (("<tool_call>", "<arg_key>"),),
    "qwen3_coder": (("<function=", "<parameter="),),
    "minicpm": (("<function name=", "<param name="),),
    "gemma": (("<|tool_call>",), ("<start_function_call>",)),
    "lfm2": (("<|tool_call_start|>",),),
    "command_r": (("<|START_ACTION|>",), ("Action:", "<|CHATBOT_TOKEN|>")),
    "mistral": (("[TOOL_CALLS]",),),
    "functionary": ((">>>all\n",), (">>>all\\n",)),
    "nemotron": (("<TOOLCALL>",),),
    "apertus": (("<|tools_prefix|>",),),
    "gigachat": (("<|function_call|>", "<|role_sep|>"),),
    "granite": (("<|tool_call|>", "<|start_of_role|>"),),
    "phi4": (("<|tool_call|>", "<|/tool_call|>"), ("functools",), ("<|tool|>", "<|/tool|>")),
    "hermes": (("<tool_call>", "</tool_call>", "arguments"),),
    "pythonic": (("<|python_start|>",), ("```tool_code",), ("<function_calls>", "<functions>", "<|im_start|>")),
    "llama3": (("<|python_tag|>",), ("<|start_header_id|>", '"parameters"')),
    "bare_json": (),
}
"""Names, each with groups of texts: a chat template of the format has all of one group.  In the order in which they are
tried: those with marks of their own first."""


def detect_tools(template: str) -> ToolFormat | None:
    """The format that a chat template's source shows, or None."""
    for name, groups in TOOL_FORMATS.items():
        if any(all(hint in template for hint in group) for group in groups):
            return tool_format(name)
    return None


def tool_format(name: str) -> ToolFormat:
    """A format by its name.  Raises RequestError for an unknown one."""
    if name not in TOOL_FORMATS:
        known = ", ".join(TOOL_FORMATS)
        raise RequestError(f"[chat] tool_format must be auto, none or one of {known} but is {name!r:.80}")
    # Only what is used is imported: a template of one model needs one format of many.
    form: ToolFormat = importlib.import_module(f"quire.chat.tools.{name}").FORMAT
    return form
