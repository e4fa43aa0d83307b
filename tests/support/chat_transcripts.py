"""Answers of models in each call format, as their publishers define it, with the expected messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

PROPERTIES = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "exact": {"type": "boolean"},
    "tags": {"type": "array"},
    "at": {"type": ["string", "null"]},
    "code": {"type": "string"},
}


def tool(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": PROPERTIES, "required": []}
    return {"type": "function", "function": {"name": name, "description": f"Tells {name}.", "parameters": parameters}}


TOOLS = [tool("weather"), tool("clock"), tool("get-time.v2")]
PARIS = {"city": "Paris", "days": 2}
FULL = {"city": 'São "P"\n{}\\', "days": 2, "exact": True, "tags": [1, {"a": None}], "at": None}
# FULL as JSON text, with escapes for non-ASCII characters.
FULL_JSON = '{"city": "S\\u00e3o \\"P\\"\\n{}\\\\", "days": 2, "exact": true, "tags": [1, {"a": null}], "at": null}'


@dataclass(frozen=True)
class Transcript:
    """``calls`` are names with arguments as values, or as text if they must be preserved as written."""

    format: str
    text: str
    calls: list[tuple[str, Any]] = field(default_factory=list)
    content: str = ""
    reasoning: str = ""
    tags: str = "none"
    prompt: str = ""
    ids: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()

    @property
    def definitions(self) -> list[dict[str, Any]]:
        return [*TOOLS, *map(tool, self.tools)]


def both(format: str, one: str, two: str, **more: Any) -> list[Transcript]:
    """Return a single call with every kind of value, and content before two calls."""
    return [
        Transcript(format, one, [("weather", FULL)], **more),
        Transcript(format, two, [("weather", PARIS), ("clock", {})], "Let me see.", **more),
    ]


def json_pair(format: str, start: str, end: str, key: str = "arguments") -> list[Transcript]:
    """Return transcripts of a format with an object per call between marks."""
    return both(
        format,
        f'{start}{{"name": "weather", "{key}": {FULL_JSON}}}{end}',
        f'Let me see.\n{start}{{"name": "weather", "{key}": {{"city": "Paris", "days": 2}}}}{end}\n'
        f'{start}{{"name": "clock", "{key}": {{}}}}{end}',
    )


def list_pair(format: str, start: str, end: str) -> list[Transcript]:
    """Return transcripts of a format with a list of calls between marks."""
    return both(
        format,
        f'{start}[{{"name": "weather", "arguments": {FULL_JSON}}}]{end}',
        f'Let me see.{start}[{{"name": "weather", "arguments": {{"city": "Paris", "days": 2}}}}, '
        f'{{"arguments": {{}}, "name": "clock"}}]{end}',
    )


THINK = {"tags": "think", "reasoning": "Hm, a < b?\n\nYes."}
TEXT_VALUE = 'São "P"\n{}\\'
CODER = (
    f"<tool_call>\n<function=weather>\n<parameter=city>\n{TEXT_VALUE}\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
    '<parameter=exact>\nTrue\n</parameter>\n<parameter=tags>\n[1, {"a": null}]\n</parameter>\n'
    "<parameter=at>\nnull\n</parameter>\n</function>\n</tool_call>"
)
GLM_VALUES = {"city": TEXT_VALUE, "days": "2", "exact": "true", "tags": '[1, {"a": null}]', "at": "null"}


def glm_call(suffix: str = "", line: str = "\n") -> str:
    tail = suffix + ">"
    values = "".join(
        f"<arg_key{tail}{key}</arg_key{tail}{line}<arg_value{tail}{value}</arg_value{tail}{line}"
        for key, value in GLM_VALUES.items()
    )
    separator = f"<tool_sep{tail}" if suffix else ""
    return f"<tool_call{tail}weather{separator}{line}{values}</tool_call{tail}"


def invoke(prefix: str = "", says: bool = False) -> tuple[str, str]:
    """Return an invocation with every kind of value, and two small ones."""

    def parameter(key: str, value: str, text: bool) -> str:
        mark = f' string="{str(text).lower()}"' if says else ""
        return f'<{prefix}parameter name="{key}"{mark}>{value}</{prefix}parameter>\n'

    full = "".join(parameter(key, value, key == "city") for key, value in GLM_VALUES.items())
    small = parameter("city", "Paris", True) + parameter("days", "2", False)
    begin, end = f'<{prefix}invoke name="', f"</{prefix}invoke>\n"
    return f'{begin}weather">\n{full}{end}', f'{begin}weather">\n{small}{end}{begin}clock">\n{end}'


def k3(tag: str, body: str, attributes: str = "") -> str:
    return f"<|open|>{tag}{attributes}<|sep|>{body}<|close|>{tag}<|sep|>"


def k3_call(name: str, number: int, arguments: list[tuple[str, str, str]]) -> str:
    body = "".join(k3("argument", value, f' key="{key}" type="{kind}"') for key, kind, value in arguments)
    return k3("call", body, f' tool="{name}" index="{number}"')


M3 = "]<]minimax[>["


def m3(tag: str, *parts: str) -> str:
    """Return an argument of MiniMax M3, or a part of one."""
    return f"{M3}<{tag}>{''.join(parts)}{M3}</{tag}>"


def m3_call(name: str, *arguments: str) -> str:
    return f'{M3}<invoke name="{name}">{"".join(arguments)}{M3}</invoke>\n'


def solar_call(id: str, name: str, arguments: str) -> str:
    return f"<|tool_call:begin|>{id}<|tool_call:name|>{name}<|tool_call:args|>{arguments}<|tool_call:end|>"


DEEPSEEK_CALL = "<｜tool▁call▁begin｜>{}<｜tool▁sep｜>{}<｜tool▁call▁end｜>"


def deepseek(*calls: tuple[str, str]) -> str:
    body = "\n".join(DEEPSEEK_CALL.format(kind, arguments) for kind, arguments in calls)
    return f"<｜tool▁calls▁begin｜>{body}<｜tool▁calls▁end｜>"


def kimi(*calls: tuple[str, str]) -> str:
    body = "".join(
        f"<|tool_call_begin|>{id}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>" for id, arguments in calls
    )
    return f"<|tool_calls_section_begin|>{body}<|tool_calls_section_end|>"


PARIS_JSON = '{"city": "Paris", "days": 2}'
ANALYSIS = "<|channel|>analysis<|message|>Hm, a < b?\n\nYes.<|end|><|start|>assistant"
REASONED = {"reasoning": "Hm, a < b?\n\nYes."}
GEMMA_VALUES = 'city:{0}São "P"\n{{}}\\{0},days:2,exact:true,tags:[1,{{a:null}}],at:null'

TRANSCRIPTS: list[Transcript] = [
    *json_pair("hermes", "<tool_call>\n", "\n</tool_call>"),
    Transcript(
        "hermes",
        "<think>\nHm, a < b?\n\nYes.\n</think>\n\n<tool_call>\n"
        '{"name": "weather", "arguments": "{\\"city\\": \\"Paris\\", \\"days\\": 2}"}\n</tool_call>',
        [("weather", PARIS_JSON)],
        **THINK,
    ),
    Transcript(
        "hermes",
        'Hm, a < b?\n\nYes.\n</think>\nLet me see.\n<tool_call>\n{"name": "clock"}',
        [("clock", {})],
        "Let me see.",
        prompt="<|im_start|>assistant\n<think>\n",
        **THINK,
    ),
    Transcript(
        "hermes",
        '<tool_call>{"name": "weather", "arguments": {"city": "</tool_call>", "n": 1e400, "n": 0.10}}</tool_call>',
        [("weather", '{"city": "</tool_call>", "n": 1e400, "n": 0.10}')],
    ),
    *list_pair("nemotron", "<TOOLCALL>", "</TOOLCALL>"),
    *list_pair("granite", "<|tool_call|>", ""),
    *list_pair("granite", "<tool_call>", ""),
    *list_pair("phi4", "<|tool_call|>", "<|/tool_call|>"),
    *list_pair("phi4", "functools", ""),
    Transcript(
        "gigachat", f'Hi.<|function_call|>{{"name": "weather", "arguments": {FULL_JSON}}}', [("weather", FULL)], "Hi."
    ),
    *both(
        "apertus",
        f'<|tools_prefix|>[{{"weather": {FULL_JSON}}}]<|tools_suffix|>',
        f'Let me see.<|tools_prefix|>[{{"weather": {PARIS_JSON}}}, {{"clock": {{}}}}]<|tools_suffix|>',
    ),
    *both(
        "command_r",
        f'<|START_ACTION|>[\n    {{"tool_call_id": "0", "tool_name": "weather", "parameters": {FULL_JSON}}}\n]<|END_ACTION|>',
        "<|START_RESPONSE|>Let me see.<|END_RESPONSE|><|START_ACTION|>[\n"
        f'    {{"tool_call_id": "0", "tool_name": "weather", "parameters": {PARIS_JSON}}},\n'
        '    {"tool_call_id": "1", "tool_name": "clock", "parameters": {}}\n]<|END_ACTION|>',
    ),
    Transcript(
        "command_r",
        "<|START_THINKING|>Hm, a < b?\n\nYes.<|END_THINKING|><|START_TEXT|>It is.<|END_TEXT|>",
        content="It is.",
        reasoning=THINK["reasoning"],
        tags="command_r",
    ),
    Transcript(
        "command_r",
        f'Action: ```json\n[{{"tool_name": "weather", "parameters": {PARIS_JSON}}}]\n```',
        [("weather", PARIS)],
    ),
    *both(
        "command_r",
        f'Action:\n```json\n[\n    {{\n        "tool_name": "weather",\n        "parameters": {FULL_JSON}\n    }}\n]```\n',
        f'Let me see.\nAction:```json\n[{{"tool_name": "weather", "parameters": {PARIS_JSON}}},\n'
        '{"tool_name": "clock", "parameters": {}}]```',
    ),
    Transcript("command_r", "Action: look out of the window.", content="Action: look out of the window."),
    *list_pair("apriel", "<tool_calls>", "</tool_calls>"),
    *both(
        "apriel",
        f'<tool_calls>\n{{"name": "weather", "arguments": {FULL_JSON}}}\n</tool_calls>',
        f'Let me see.\n<tool_calls>\n{{"name": "weather", "arguments": {PARIS_JSON}}}\n'
        '{"name": "clock", "arguments": {}}\n</tool_calls>',
    ),
    Transcript(
        "apriel",
        "Here are my reasoning steps:\nHm, a < b?\n\nYes.\n[BEGIN FINAL RESPONSE]\nIt is.",
        content="It is.",
        reasoning=THINK["reasoning"],
        tags="apriel",
    ),
    *both(
        "solar",
        f"<|think|>Hm, a < b?\n\nYes.<|end|><|begin|>assistant<|tool_calls|>{solar_call('a1b2c3d4e5', 'weather', FULL_JSON)}"
        "<|calls|>",
        "<|think|>Hm, a < b?\n\nYes.<|end|><|begin|>assistant<|content|>Let me see.<|end|><|begin|>assistant<|tool_calls|>"
        f"{solar_call('a1b2c3d4e5', 'weather', PARIS_JSON)}{solar_call('f1b2c3d4e5', 'clock', '{}')}<|calls|>",
        ids=("a1b2c3d4e5",),
        **REASONED,
    ),
    Transcript(
        "solar", "<|think|>Hm, a < b?\n\nYes.<|end|><|begin|>assistant<|content|>It is.", content="It is.", **REASONED
    ),
    *both(
        "minimax_m3",
        f"{M3}<tool_call>\n"
        + m3_call(
            "weather",
            m3("city", TEXT_VALUE),
            m3("days", "2"),
            m3("exact", "true"),
            m3("tags", m3("item", "1"), m3("item", m3("a", "null"))),
            m3("at", "null"),
        )
        + f"{M3}</tool_call>",
        f"Let me see.{M3}<tool_call>\n{m3_call('weather', m3('city', 'Paris'), m3('days', '2'))}{m3_call('clock')}{M3}</tool_call>",
    ),
    Transcript(
        "minimax_m3",
        f"</mm:think>{M3}<tool_call>\n{m3_call('weather', m3('city', 'a <b> & c'), m3('tags'))}{M3}</tool_call>",
        [("weather", {"city": "a <b> & c", "tags": []})],
        tags="minimax",
    ),
    *both(
        "seed_oss",
        CODER.replace("tool_call>", "seed:tool_call>").replace(f">\n{TEXT_VALUE}\n<", f">{TEXT_VALUE}<"),
        "Let me see.\n\n<seed:tool_call>\n<function=weather>\n<parameter=city>Paris</parameter>\n"
        "<parameter=days>2</parameter>\n</function>\n</seed:tool_call>\n<seed:tool_call>\n<function=clock>\n</function>\n"
        "</seed:tool_call>",
    ),
    Transcript(
        "gigachat",
        f'Hi.<|message_sep|>\n\nfunction call<|role_sep|>\n{{"name": "weather", "arguments": {FULL_JSON}}}',
        [("weather", FULL)],
        "Hi.",
    ),
    Transcript("gigachat", "It is.<|message_sep|>\n\n", content="It is."),
    *list_pair("mistral", "[TOOL_CALLS]", ""),
    *both(
        "mistral",
        f"[TOOL_CALLS]weather[ARGS]{FULL_JSON}",
        f"Let me see.[TOOL_CALLS]weather[ARGS]{PARIS_JSON}[TOOL_CALLS]clock[ARGS]{{}}",
    ),
    Transcript(
        "mistral",
        f"[THINK]Hm, a < b?\n\nYes.[/THINK][TOOL_CALLS]weather[CALL_ID]aB3dE6gH9[ARGS]{PARIS_JSON}[TOOL_CALLS]clock{{}}",
        [("weather", PARIS), ("clock", {})],
        reasoning=THINK["reasoning"],
        tags="mistral",
        ids=("aB3dE6gH9",),
    ),
    Transcript("llama3", f'{{"name": "weather", "parameters": {FULL_JSON}}}', [("weather", FULL)]),
    Transcript(
        "llama3",
        f'{{"name": "weather", "parameters": {PARIS_JSON}}}; {{"name": "clock", "parameters": {{}}}}',
        [("weather", PARIS), ("clock", {})],
    ),
    Transcript(
        "llama3",
        f'Let me see.<|python_tag|>{{"type": "function", "name": "weather", "parameters": {PARIS_JSON}}}',
        [("weather", PARIS)],
        "Let me see.",
    ),
    Transcript(
        "llama3",
        '<|python_tag|>brave_search.call(query="weather in \\"Paris\\"")',
        [("brave_search", {"query": 'weather in "Paris"'})],
    ),
    Transcript(
        "llama3",
        "<|python_tag|>import math\nprint(math.pi)",
        [("python", {"city": "import math\nprint(math.pi)"})],
        tools=("python",),
    ),
    Transcript("llama3", f"<function=weather>{PARIS_JSON}</function>", [("weather", PARIS)]),
    Transcript("llama3", '{"answer": 42, "name": "x"}', content='{"answer": 42, "name": "x"}'),
    Transcript("bare_json", f'[{{"name": "weather", "arguments": {PARIS_JSON}}}]', [("weather", PARIS)]),
    Transcript(
        "bare_json",
        f'Let me see.\n```json\n{{"name": "weather", "arguments": {PARIS_JSON}}}\n```',
        [("weather", PARIS)],
        "Let me see.",
    ),
    Transcript(
        "pythonic",
        "[weather(city='S\\xe3o \"P\"\\n{}\\\\', days=2, exact=True, tags=[1, {'a': None}], at=None)]",
        [("weather", FULL)],
    ),
    Transcript(
        "pythonic",
        'Let me see.\n<|python_start|>[weather(city="Paris", days=2), clock()]<|python_end|>',
        [("weather", PARIS), ("clock", {})],
        "Let me see.",
    ),
    Transcript("pythonic", "```tool_code\nprint(weather(city='Paris', days=2))\n```", [("weather", PARIS)]),
    Transcript("pythonic", "[1] says so.", content="[1] says so."),
    *both(
        "lfm2",
        "<|tool_call_start|>[weather(city='S\\xe3o \"P\"\\n{}\\\\', days=2, exact=True, tags=[1, {'a': None}], at=None)]"
        "<|tool_call_end|>",
        'Let me see.<|tool_call_start|>[weather(city="Paris", days=2), clock()]<|tool_call_end|>',
    ),
    *list_pair("lfm2", "<|tool_call_start|>", "<|tool_call_end|>"),
    *both(
        "gemma",
        "<|tool_call>call:weather{" + GEMMA_VALUES.format('<|"|>') + "}<tool_call|>",
        'Let me see.<|tool_call>call:weather{city:<|"|>Paris<|"|>,days:2}<tool_call|><|tool_call>call:clock{}<tool_call|>',
    ),
    Transcript(
        "gemma",
        "<start_function_call>call:weather{" + GEMMA_VALUES.format("<escape>") + "}<end_function_call>",
        [("weather", FULL)],
    ),
    Transcript(
        "gemma",
        "<|channel>thought\nHm, a < b?\n\nYes.\n<channel|>It is.",
        content="It is.",
        reasoning=THINK["reasoning"],
        tags="gemma",
    ),
    *both(
        "qwen3_coder",
        CODER,
        "Let me see.\n\n<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n2\n"
        "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=clock>\n</function>\n</tool_call>",
    ),
    Transcript("qwen3_coder", CODER.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"), [("weather", FULL)]),
    *both(
        "minicpm",
        f'<function name="weather"><param name="city"><![CDATA[{TEXT_VALUE}]]></param><param name="days">2</param>'
        '<param name="exact">True</param><param name="tags">[1, {\'a\': None}]</param><param name="at">null</param></function>',
        'Let me see.\n<function name="weather"><param name="city">Paris</param><param name="days">2</param></function>\n'
        '<function name="clock"></function>',
    ),
    *both(
        "glm",
        glm_call(),
        "Let me see.\n<tool_call>weather<arg_key>city</arg_key><arg_value>Paris</arg_value><arg_key>days</arg_key>"
        "<arg_value>2</arg_value></tool_call><tool_call>clock</tool_call>",
    ),
    Transcript("glm", "<think>Hm, a < b?\n\nYes.</think>" + glm_call(line=""), [("weather", FULL)], **THINK),
    *both(
        "hunyuan",
        f"<tool_calls:opensource>\n{glm_call(':opensource')}\n</tool_calls:opensource>",
        "Let me see.<tool_calls:opensource>\n<tool_call:opensource>weather<tool_sep:opensource>\n"
        "<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>Paris</arg_value:opensource>\n"
        "<arg_key:opensource>days</arg_key:opensource>\n<arg_value:opensource>2</arg_value:opensource>\n"
        "</tool_call:opensource>\n<tool_call:opensource>clock<tool_sep:opensource>\n</tool_call:opensource>\n"
        "</tool_calls:opensource>",
    ),
    *both(
        "minimax",
        f"<minimax:tool_call>\n{invoke()[0]}</minimax:tool_call>",
        f"Let me see.\n<minimax:tool_call>\n{invoke()[1]}</minimax:tool_call>",
    ),
    *both(
        "deepseek_dsml",
        f"<｜DSML｜function_calls>\n{invoke('｜DSML｜', True)[0]}</｜DSML｜function_calls>",
        f"Let me see.\n\n<｜DSML｜tool_calls>\n{invoke('｜DSML｜', True)[1]}</｜DSML｜tool_calls>",
    ),
    *both(
        "muse",
        " to=self<|message|>Hm, a < b?\n\nYes.<|eom|><|start|>assistant to=weather<|message|>"
        f"<atem:function_calls>\n{invoke('atem:')[0]}</atem:function_calls>",
        " to=self<|message|>Hm, a < b?\n\nYes.<|eom|><|start|>assistant to=user<|message|>Let me see.<|eom|>"
        f"<|start|>assistant to=weather<|message|><atem:function_calls>\n{invoke('atem:')[1]}</atem:function_calls>",
        **REASONED,
    ),
    *both(
        "deepseek",
        deepseek(("function", f"weather\n```json\n{FULL_JSON}\n```")),
        "Let me see."
        + deepseek(("function", f"weather\n```json\n{PARIS_JSON}\n```"), ("function", "clock\n```json\n{}\n```")),
    ),
    *both(
        "deepseek",
        deepseek(("weather", FULL_JSON)),
        "Let me see." + deepseek(("weather", PARIS_JSON), ("clock", "{}")),
    ),
    Transcript(
        "kimi_k2",
        "Let me see." + kimi(("functions.weather:0", PARIS_JSON), ("functions.get-time.v2:1", "{}")),
        [("weather", PARIS), ("get-time.v2", {})],
        "Let me see.",
        ids=("functions.weather:0", "functions.get-time.v2:1"),
    ),
    Transcript("kimi_k2", kimi(("functions.weather:0", FULL_JSON)), [("weather", FULL)]),
    *both(
        "kimi_k3",
        k3(
            "tools",
            k3_call(
                "weather",
                1,
                [
                    ("city", "string", TEXT_VALUE),
                    ("days", "number", "2"),
                    ("exact", "boolean", "true"),
                    ("tags", "array", '[1, {"a": null}]'),
                    ("at", "null", "null"),
                ],
            ),
        )
        + "<|close|>message<|sep|>",
        k3("response", "Let me see.")
        + k3(
            "tools",
            k3_call("weather", 1, [("city", "string", "Paris"), ("days", "number", "2")]) + k3_call("clock", 2, []),
        )
        + "<|close|>message<|sep|>",
    ),
    Transcript(
        "kimi_k3",
        "Hm, a < b?\n\nYes.<|close|>think<|sep|>" + k3("response", "It is."),
        content="It is.",
        reasoning=THINK["reasoning"],
        tags="kimi_k3",
        prompt="<|open|>think<|sep|>",
    ),
    Transcript("functionary", f"weather\n{FULL_JSON}", [("weather", FULL)]),
    Transcript(
        "functionary",
        f"all\nLet me see.>>>weather\n{PARIS_JSON}\n>>>clock\n{{}}",
        [("weather", PARIS), ("clock", {})],
        "Let me see.",
    ),
    Transcript("functionary", "all\nIt is >>> 3.", content="It is >>> 3."),
    Transcript("functionary", ">>>python\nprint(1 > 0)\n", [("python", {"code": "print(1 > 0)\n"})]),
    *both(
        "harmony",
        f"{ANALYSIS}<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{FULL_JSON}<|call|>",
        f"{ANALYSIS}<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant to=functions.weather"
        f"<|channel|>commentary json<|message|>{PARIS_JSON}<|call|><|start|>assistant<|channel|>commentary "
        "to=functions.clock <|constrain|>json<|message|>{}",
        **REASONED,
    )[:1],
    Transcript(
        "harmony",
        f"{ANALYSIS}<|channel|>final<|message|>It is.<|return|>",
        content="It is.",
        **REASONED,
    ),
    Transcript(
        "harmony",
        f"{ANALYSIS}<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant to=functions.weather"
        f"<|channel|>commentary json<|message|>{PARIS_JSON}",
        [("weather", PARIS)],
        "Let me see.",
        **REASONED,
    ),
]

# Malformed calls, whose text is returned completely as content.
BROKEN = {
    "hermes": [
        '<tool_call>\n{"name": "weather", "arguments": {"city": Paris}}\n</tool_call>',
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}\n</tool_call>',
        '<tool_call>\n{"name": "weather", "arguments": [1]}\n</tool_call>',
        '<tool_call>\n{"name": "", "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "a b", "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "weather", "arguments": {"x": NaN}}\n</tool_call>',
        '<tool_call>\n{"name": "weather", "arguments": {"x": "a\nb"}}\n</tool_call>',
        '<tool_call>\n{"name": "weather", "arguments": {"x": "\\q"}}\n</tool_call>',
        '<tool_call>\n{"arguments": {}}\n</tool_call>',
        "<tool_call>\n[]\n</tool_call>",
        "<tool_call>\n</tool_call>",
        "<tool_call>\n",
        "<tool_call",
        "<tool_call><tool_call><tool_call>",
        '<tool_call>{"name": "weather", "arguments": ' + '{"a": ' * 100 + "1" + "}" * 101 + "</tool_call>",
        '<tool_call>{"name": "weather", "arguments": {"a": 1' + "0" * 5000 + "}}</tool_call>",
        "a < b, </tool_call> and <tool_calls>",
    ],
    "mistral": [
        "[TOOL_CALLS]",
        "[TOOL_CALLS][]",
        "[TOOL_CALLS]weather[ARGS]",
        "[TOOL_CALLS]weather[ARGS][1]",
        "[TOOL_CALLS] [ARGS]{}",
    ],
    "llama3": [
        '{"name": "weather"}',
        '{"name": "weather", "parameters": 5}',
        "{",
        "<|python_tag|>",
        "<|python_tag|>f(",
        "<function=x>",
    ],
    "pythonic": [
        "[weather(city=open('x'))]",
        "[weather(1)]",
        "[weather(city=1, city=2)]",
        "[f(x=1",
        "[]",
        "[weather(x='\\ud8')]",
        "[f(x=1e999)]",
    ],
    "lfm2": [
        "<|tool_call_start|>[f(x=-)]<|tool_call_end|>",
        "<|tool_call_start|><|tool_call_end|>",
        "<|tool_call_start|>[]",
    ],
    "gemma": [
        '<|tool_call>call:f{a:<|"|>x}<tool_call|>',
        "<|tool_call>call:{}<tool_call|>",
        "<|tool_call>call:f{a:" + "[" * 99,
    ],
    "qwen3_coder": [
        "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</function>\n</tool_call>",
        "<tool_call>\n<function=>\n</function>\n</tool_call>",
        "<function=weather><parameter=a>1</parameter><parameter=a>2</parameter></function>",
    ],
    "glm": [
        "<tool_call>weather<arg_key>city</arg_key></tool_call>",
        "<tool_call>weather<arg_key>city</arg_key><arg_value>Paris",
        "<tool_call>{}</tool_call>",
    ],
    "minicpm": ['<function name="f"><param name="a">1</function>', '<function name="f">x', '<function name="'],
    "minimax": [
        "<minimax:tool_call></minimax:tool_call>",
        '<minimax:tool_call><invoke name="f"><parameter name="a">1</invoke>',
    ],
    "deepseek": [
        "<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n[]\n```",
    ],
    "kimi_k2": [
        "<|tool_calls_section_begin|><|tool_calls_section_end|>",
        "<|tool_call_begin|>f:0<|tool_call_argument_begin|>x",
    ],
    "kimi_k3": ["<|open|>tools<|sep|><|open|>call tool=x<|sep|>"],
    "functionary": ["weather\n[1]", "no recipient here", "weather\n{"],
    "harmony": [
        "<|channel|>other<|message|>x",
        "<|channel|>commentary to=functions.f<|message|>no JSON<|call|>",
        "plain text",
    ],
    "apertus": [
        '<|tools_prefix|>[{"weather": 1}]<|tools_suffix|>',
        "<|tools_prefix|>[1]",
        "<|tools_prefix|>{}<|tools_suffix|>",
    ],
    "command_r": ['<|START_ACTION|>[{"tool_name": 1}]<|END_ACTION|>'],
    "bare_json": ["[1, 2]", '{"a": 1}', "```json\n{}\n```"],
}
