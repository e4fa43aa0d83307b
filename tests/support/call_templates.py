"""Small templates that write calls like published models, for formats without a published template here."""

from __future__ import annotations

__all__ = ["END", "FORMS", "START"]

START, END = "<|im_start|>assistant\n", "<|im_end|>"
_VALUE = "{{ v if v is string else v | tojson }}"
_PLAIN_VALUE = "{{ v if v is string else (v | tojson if v is mapping or v is iterable else v) }}"
_JSON = "{{ f.arguments | tojson }}"
_OBJECT = '{"name": "{{ f.name }}", "arguments": ' + _JSON + "}"
_PYTHON = (
    "{{ f.name }}({% for k, v in f.arguments.items() %}{{ k }}={{ VALUE }}{{ ', ' if not loop.last }}{% endfor %})"
)
_M3 = "]<]minimax[>["


def _turns(call: str) -> str:
    return (
        "{{ tools | length if tools }}{% for message in messages %}"
        "{{ '<|im_start|>' + message.role + '\n' + (message.content or '') }}"
        "{% for call in message.tool_calls or [] %}{% set f = call.function %}"
        + call
        + "{% endfor %}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )


def _each(argument: str) -> str:
    return "{% for k, v in f.arguments.items() %}" + argument + "{% endfor %}"


_CALLS: dict[str, tuple[str, str]] = {
    "hermes": ("hermes", f"<tool_call>{{{{ '\n' }}}}{_OBJECT}{{{{ '\n' }}}}</tool_call>"),
    "granite 3": ("granite", f"<|tool_call|>[{_OBJECT}]"),
    "phi 4 mini": ("phi4", f"<|tool_call|>[{_OBJECT}]<|/tool_call|>"),
    "phi 4 mini, functools": ("phi4", f"functools[{_OBJECT}]"),
    "apriel": ("apriel", f"<tool_calls>[{_OBJECT}]</tool_calls>"),
    "minimax m1": ("apriel", f"<tool_calls>{{{{ '\n' }}}}{_OBJECT}{{{{ '\n' }}}}</tool_calls>"),
    "qwen 3.5": (
        "qwen3_coder",
        "<tool_call>{{ '\n' }}<function={{ f.name }}>{{ '\n' }}"
        + _each("<parameter={{ k }}>{{ '\n' }}" + _VALUE + "{{ '\n' }}</parameter>{{ '\n' }}")
        + "</function>{{ '\n' }}</tool_call>",
    ),
    "qwen 3 coder, python words": (
        "qwen3_coder",
        "<tool_call>{{ '\n' }}<function={{ f.name }}>{{ '\n' }}"
        + _each("<parameter={{ k }}>{{ '\n' }}" + _PLAIN_VALUE + "{{ '\n' }}</parameter>{{ '\n' }}")
        + "</function>{{ '\n' }}</tool_call>",
    ),
    "qwen 3 coder, no opener": (
        "qwen3_coder",
        "<function={{ f.name }}>{{ '\n' }}"
        + _each("<parameter={{ k }}>{{ '\n' }}" + _VALUE + "{{ '\n' }}</parameter>{{ '\n' }}")
        + "</function>{{ '\n' }}</tool_call>",
    ),
    "seed oss": (
        "seed_oss",
        "<seed:tool_call>{{ '\n' }}<function={{ f.name }}>{{ '\n' }}"
        + _each("<parameter={{ k }}>" + _VALUE + "</parameter>{{ '\n' }}")
        + "</function>{{ '\n' }}</seed:tool_call>",
    ),
    "glm 4.6": (
        "glm",
        "<tool_call>{{ f.name }}{{ '\n' }}"
        + _each("<arg_key>{{ k }}</arg_key>{{ '\n' }}<arg_value>" + _VALUE + "</arg_value>{{ '\n' }}")
        + "</tool_call>",
    ),
    "minimax m2": (
        "minimax",
        "<minimax:tool_call>{{ '\n' }}<invoke name=\"{{ f.name }}\">{{ '\n' }}"
        + _each('<parameter name="{{ k }}">' + _VALUE + "</parameter>{{ '\n' }}")
        + "</invoke>{{ '\n' }}</minimax:tool_call>",
    ),
    "minimax m3": (
        "minimax_m3",
        f'{_M3}<tool_call>{{{{ "\n" }}}}{_M3}<invoke name="{{{{ f.name }}}}">'
        + _each(f"{_M3}<{{{{ k }}}}>{_VALUE}{_M3}</{{{{ k }}}}>")
        + f"{_M3}</invoke>{{{{ '\n' }}}}{_M3}</tool_call>",
    ),
    "solar": (
        "solar",
        "<|tool_calls|><|tool_call:begin|>{{ call.id }}<|tool_call:name|>{{ f.name }}<|tool_call:args|>"
        + _JSON
        + "<|tool_call:end|><|calls|>",
    ),
    "gigachat 3": ("gigachat", "<|message_sep|>{{ '\n\n' }}function call<|role_sep|>{{ '\n' }}" + _OBJECT),
    "command r": (
        "command_r",
        'Action:{{ "\n" }}```json{{ "\n" }}[{"tool_name": "{{ f.name }}", "parameters": ' + _JSON + "}]```",
    ),
    "function gemma": (
        "gemma",
        "<start_function_call>call:{{ f.name ~ '{' }}"
        + "{% for k, v in f.arguments.items() %}{{ k }}:{{ '<escape>' + v + '<escape>' if v is string else v | tojson }}"
        + "{{ ',' if not loop.last }}{% endfor %}}<end_function_call>",
    ),
    "gemma 4, plain quotes inside": (
        "gemma",
        "<|tool_call>call:{{ f.name ~ '{' }}"
        + "{% for k, v in f.arguments.items() %}{{ k }}:{{ '<|\"|>' + v + '<|\"|>' if v is string else v | tojson }}"
        + "{{ ',' if not loop.last }}{% endfor %}}<tool_call|>",
    ),
    "lfm 2": ("lfm2", f"<|tool_call_start|>[{_PYTHON.replace('VALUE', 'v | tojson')}]<|tool_call_end|>"),
    "llama 4": ("pythonic", f"[{_PYTHON.replace('VALUE', 'v | tojson')}]"),
    "olmo 3": ("pythonic", f"<function_calls>{_PYTHON.replace('VALUE', 'v | tojson')}</function_calls>"),
    "gemma 3": ("pythonic", f'```tool_code{{{{ "\n" }}}}{_PYTHON.replace("VALUE", "v | tojson")}{{{{ "\n" }}}}```'),
    "deepseek v3": (
        "deepseek",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ f.name }}{{ '\n' }}```json{{ '\n' }}"
        + _JSON
        + "{{ '\n' }}```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    "deepseek v3.1": (
        "deepseek",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ f.name }}<｜tool▁sep｜>"
        + _JSON
        + "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    "kimi k2": (
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.{{ f.name }}:0<|tool_call_argument_begin|>"
        + _JSON
        + "<|tool_call_end|><|tool_calls_section_end|>",
    ),
    "gpt-oss": (
        "harmony",
        "<|channel|>commentary to=functions.{{ f.name }} <|constrain|>json<|message|>" + _JSON + "<|call|>",
    ),
    "mistral, call ids": ("mistral", "[TOOL_CALLS]{{ f.name }}[CALL_ID]{{ call.id }}[ARGS]" + _JSON),
    "mistral, list": ("mistral", f"[TOOL_CALLS][{_OBJECT}]"),
    "llama 3, function tags": ("llama3", "<function={{ f.name }}>" + _JSON + "</function>"),
    "llama 3.1": ("llama3", '{"name": "{{ f.name }}", "parameters": ' + _JSON + "}"),
    "functionary": ("functionary", "{{ f.name }}{{ '\n' }}" + _JSON),
    "bare json": ("bare_json", _OBJECT),
}
FORMS = {label: (name, _turns(call)) for label, (name, call) in _CALLS.items()}
"""By label: the format's name and the template's source."""
