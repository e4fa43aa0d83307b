"""Chat templates for Mistral's own tokenizer files, which have none: mistral-common builds prompts in Python.

Versions differ in where the system prompt and the tools stand, and in how calls and their results are written.
"""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["VERSIONS", "mistral_template"]

VERSIONS = ("v3", "v7", "v7m1", "v11", "v13")
_TEXT = """\
{%- macro text_of(content) -%}
{%- if content is string -%}{{ content }}
{%- else -%}
{%- for part in content or [] -%}
{%- if part.type == 'text' -%}
{{- '\\n\\n' if not loop.first and loop.previtem.type == 'text' }}{{ part.text }}
{%- elif part.type in ('image', 'image_url') -%}IMAGE_MARK
{%- else -%}{{ raise_exception('unsupported part of a message: ' ~ part.type) }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
"""
_BEGIN = """\
{{- bos_token -}}
{%- set turns = namespace(n=0, last=0, system='') -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}{%- set turns.last = turns.last + 1 -%}{%- endif -%}
SYSTEM_FIRST
{%- endfor -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}
{%- set turns.n = turns.n + 1 -%}
{%- if tools and turns.n == TOOLS_TURN -%}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{%- endif -%}
[INST]
SYSTEM_INSIDE
{{- text_of(message.content) -}}
[/INST]
{%- elif message.role == 'assistant' -%}
THOUGHT
{{- text_of(message.content) -}}
{%- if message.tool_calls -%}
CALLS
{%- endif -%}
{{- eos_token -}}
{%- elif message.role == 'tool' -%}
RESULT
SYSTEM_TURN
{%- else -%}{{ raise_exception('unsupported role: ' ~ message.role) }}
{%- endif -%}
{%- endfor -%}"""
_COLLECTED = """\
{%- if message.role == 'system' -%}
{%- set turns.system = turns.system ~ ('\\n\\n' if turns.system else '') ~ text_of(message.content) -%}
{%- endif -%}"""
_INSIDE = "{%- if turns.system and turns.n == turns.last -%}{{ turns.system ~ '\\n\\n' }}{%- endif -%}"
_SYSTEM_TURN = "{%- elif message.role == 'system' -%}[SYSTEM_PROMPT]{{ text_of(message.content) }}[/SYSTEM_PROMPT]"
_ARGUMENTS = (
    "(call.function.arguments or '{}') if call.function.arguments is string else call.function.arguments | tojson"
)
_LISTED_CALLS = f"""\
[TOOL_CALLS][
{{%- for call in message.tool_calls -%}}
{{{{- ', ' if not loop.first -}}}}
{{{{- '{{"name": ' ~ call.function.name | tojson ~ ', "arguments": ' ~ ({_ARGUMENTS}) -}}}}
{{{{- ', "id": ' ~ (call.id or '') | tojson ~ '}}' -}}}}
{{%- endfor -%}}
]"""
_SINGLE_CALLS = f"""\
{{%- for call in message.tool_calls -%}}
[TOOL_CALLS]{{{{ call.function.name }}}}CALL_ID[ARGS]{{{{ {_ARGUMENTS} }}}}
{{%- endfor -%}}"""
_CALL_ID = "[CALL_ID]{{ call.id or '' }}"
_RESULTS = {
    "v3": "[TOOL_RESULTS]{{ {'content': text_of(message.content), 'call_id': message.tool_call_id or ''} | tojson -}}"
    "\n[/TOOL_RESULTS]",
    "v7": "[TOOL_RESULTS]{{ message.tool_call_id or '' }}[TOOL_CONTENT]{{ text_of(message.content) }}[/TOOL_RESULTS]",
    "v13": "[TOOL_RESULTS]{{ text_of(message.content) }}[/TOOL_RESULTS]",
}
_THOUGHT = "{%- if message.reasoning_content -%}[THINK]{{ message.reasoning_content }}[/THINK]{%- endif -%}"


def mistral_template(version: str, marks: Collection[str]) -> str | None:
    """Return the template for a version of the tokenizer and its control tokens; None for unknown versions."""
    if version not in VERSIONS:
        return None
    is_early, is_listed, is_last = version == "v3", version in ("v3", "v7", "v7m1"), version == "v13"
    calls = _LISTED_CALLS if is_listed else _SINGLE_CALLS.replace("CALL_ID", "" if is_last else _CALL_ID)
    parts = {
        "SYSTEM_FIRST": _COLLECTED if is_early else "",
        "SYSTEM_INSIDE": _INSIDE if is_early else "",
        "SYSTEM_TURN": "{%- elif message.role == 'system' -%}" if is_early else _SYSTEM_TURN,
        "TOOLS_TURN": "1" if is_last else "turns.last",
        "THOUGHT": _THOUGHT if "[THINK]" in marks else "",
        "CALLS": calls,
        "RESULT": _RESULTS["v13" if is_last else "v3" if is_early else "v7"],
    }
    lines = _BEGIN.split("\n")
    filled = "\n".join(line for line in (parts.get(line, line) for line in lines) if line)
    text = _TEXT.replace("IMAGE_MARK", "[IMG]" if "[IMG]" in marks else "")
    return (text + filled).replace("TOOLS_TURN", parts["TOOLS_TURN"])
