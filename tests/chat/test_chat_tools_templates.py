"""Detection and parsing of tool-call formats, compared with the chat templates that write them.

Oracle: a template's rendering of a turn with calls, on which its model was trained.  ``QUIRE_TEMPLATES`` may list more
folders of templates, separated as in ``PATH``.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from quire.chat import AnswerFormat, AnswerParser, ChatMessage, ChatTemplate, parse_answer
from quire.chat.detection import detect_tools, tool_support
from quire.chat.reply import joined
from quire.chat.tools import tool_format
from quire.errors import QuireError

pytestmark = pytest.mark.python_only

DETECTED = {
    "Apertus-8B-Instruct.jinja": ("apertus", "apertus"),
    "Bielik-11B-v3.0-Instruct.jinja": ("hermes", "think"),
    "Cohere2MoE.jinja": ("command_r", "command_r"),
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use.jinja": ("command_r", "command_r"),
    "GLM-4.7-Flash.jinja": ("glm", "think"),
    "GigaChat3.1-10B-A1.8B.jinja": ("gigachat", None),
    "Kimi-K2-Instruct.jinja": ("kimi_k2", None),
    "Kimi-K3.jinja": ("kimi_k3", "kimi_k3"),
    "LFM2.5-8B-A1B.jinja": ("lfm2", "think"),
    "MiMo-VL.jinja": ("hermes", None),
    "MiniMax-M2.jinja": ("minimax", "think"),
    "Mistral-Small-3.2-24B-Instruct-2506.jinja": ("mistral", None),
    "NVIDIA-Nemotron-Nano-v2.jinja": ("nemotron", "think"),
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use.jinja": ("hermes", None),
    "Qwen-Qwen2.5-7B-Instruct.jinja": ("hermes", None),
    "Qwen3-Coder.jinja": ("qwen3_coder", None),
    "Reka-Edge.jinja": ("hermes", "think"),
    "StepFun3.5-Flash.jinja": ("qwen3_coder", "think"),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B.jinja": ("deepseek", "think"),
    "deepseek-ai-DeepSeek-V3.2.jinja": ("deepseek_dsml", "think"),
    "deepseek-ai-DeepSeek-V4.jinja": ("deepseek_dsml", "think"),
    "google-gemma-2-2b-it.jinja": (None, None),
    "google-gemma-4-31B-it.jinja": ("gemma", "gemma"),
    "ibm-granite-granite-4.0.jinja": ("hermes", None),
    "inclusionai-ling-3.0-flash.jinja": ("glm", "think"),
    "llama-cpp-rwkv-world.jinja": (None, "think"),
    "meetkai-functionary-medium-v3.2.jinja": ("functionary", None),
    "meta-llama-Llama-3.2-3B-Instruct.jinja": ("llama3", None),
    "microsoft-Phi-3.5-mini-instruct.jinja": (None, None),
    "mistralai-Mistral-Nemo-Instruct-2407.jinja": ("mistral", None),
    "muse-glimmer.jinja": ("muse", None),
    "openbmb-MiniCPM5-1B.jinja": ("minicpm", "think"),
    "poolside-Laguna-XS-2.1.jinja": ("glm", "think"),
    "tencent-Hy3.jinja": ("hunyuan", "think_opensource"),
    "unsloth-mistral-Devstral-Small-2507.jinja": ("mistral", None),
    # Templates of other publishers, in the folders of QUIRE_TEMPLATES.
    "Apriel-1.6-15b-Thinker-fixed.jinja": ("apriel", "apriel"),
    "ByteDance-Seed-OSS.jinja": ("seed_oss", "seed_think"),
    "CohereForAI-c4ai-command-r-plus-tool_use.jinja": ("command_r", None),
    "GLM-4.6.jinja": ("glm", "think"),
    "GigaChat3-10B-A1.8B.jinja": ("gigachat", None),
    "HuggingFaceTB-SmolLM3-3B.jinja": (None, "think"),
    "Kimi-K2-Thinking.jinja": ("kimi_k2", "think"),
    "LFM2-8B-A1B.jinja": ("lfm2", None),
    "LFM2.5-Instruct.jinja": ("lfm2", "think"),
    "MiniMax-M1.jinja": ("apriel", None),
    "MiniMax-M3.jinja": ("minimax_m3", "minimax"),
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.jinja": ("qwen3_coder", "think"),
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use.jinja": ("hermes", None),
    "Qwen-QwQ-32B.jinja": ("hermes", "think"),
    "Qwen-Qwen3-0.6B.jinja": ("hermes", "think"),
    "Qwen3.5-4B.jinja": ("qwen3_coder", "think"),
    "Spark2.5.jinja": ("glm", "think"),
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B.jinja": ("deepseek", "think"),
    "deepseek-ai-DeepSeek-V3.1.jinja": ("deepseek", "think"),
    "deepseek-ai-DeepSeek-V4-Flash-0731.jinja": ("deepseek_dsml", "think"),
    "google-gemma-4-31B-it-interleaved.jinja": ("gemma", "gemma"),
    "ibm-granite-granite-3.3-2B-Instruct.jinja": ("granite", "think"),
    "ibm-granite-granite-4.1.jinja": ("hermes", None),
    "llama-cpp-deepseek-r1.jinja": ("deepseek", "think"),
    "meetkai-functionary-medium-v3.1.jinja": ("llama3", None),
    "meta-llama-Llama-3.1-8B-Instruct.jinja": ("llama3", None),
    "meta-llama-Llama-3.3-70B-Instruct.jinja": ("llama3", None),
    "mistralai-Ministral-3-14B-Reasoning-2512.jinja": ("mistral", "mistral"),
    "moonshotai-Kimi-K2.jinja": ("kimi_k2", None),
    "openai-gpt-oss-120b.jinja": ("harmony", None),
    "poolside-Laguna-S-2.1.jinja": ("glm", "think"),
    "poolside-Laguna-XS.2.jinja": ("glm", "think"),
    "unsloth-Apriel-1.5.jinja": ("apriel", "apriel"),
    "upstage-Solar-Open-100B.jinja": ("solar", None),
}
ENDS_OF_TURNS = re.compile(
    r"(<\|im_end\|>\n?|<\|END_OF_TURN_TOKEN\|>.*|<\|message_sep\|>\n\n|<\|end_of_msg\|>|\[e~\[\n|</s>|<SPECIAL_12>\n\n|\n\n<sep>"
    r"|<｜end▁of▁sentence｜>.*|<\|end_of_text\|>\n|<\|tool_response>|<\|role_end\|>|<\|eot_id\|>|<\|eot\|>|</assistant>\n"
    r"|<｜hy_eos:opensource｜>|<seed:eos>|<end_of_sentence>\n|\n<\|end\|>\n|<turn\|>\n|<\|eom_id\|>"
    r"|(?<=```)\n<\|START_OF_TURN_TOKEN\|>.*)$",
    re.DOTALL,
)
# Templates that write no calls, or that the sandbox stops.
WITHOUT_CALLS = {
    "Kimi-K2-Instruct.jinja",
    "Kimi-K2-Thinking.jinja",
    "LFM2-8B-A1B.jinja",
    "LFM2.5-Instruct.jinja",
    "ibm-granite-granite-3.3-2B-Instruct.jinja",
    "llama-cpp-deepseek-r1.jinja",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B.jinja",
}
PLAIN_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Tells {name}.",
            "parameters": {
                "type": "object",
                "properties": {
                    key: {"type": kind, "description": "A value."}
                    for key, kind in [("city", "string"), ("days", "integer"), ("exact", "boolean")]
                },
                "required": [],
            },
        },
    }
    for name in ("weather", "clock")
]
# The beginning of a call, if it is not a mark that only calls have.
BEGINNINGS = {
    "llama3": ('{"name"', "<function="),
    "gigachat": ("<|function_call|>", "<|message_sep|>\n\nfunction call"),
    "functionary": ("weather\n",),
    "muse": (" to=weather",),
    "kimi_k3": ("<|open|>tools<|sep|>",),
}
CALLS = [
    {
        "id": f"call0000{i}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
    for i, (name, arguments) in enumerate(
        [("weather", {"city": "Paris & <co>", "days": 2, "exact": True}), ("clock", {})]
    )
]


def source_of(shared: Path, name: str) -> str:
    folders = [shared / "templates", *map(Path, filter(None, os.environ.get("QUIRE_TEMPLATES", "").split(os.pathsep)))]
    for folder in folders:
        if (folder / name).exists():
            return (folder / name).read_text(encoding="utf-8")
    pytest.skip(f"test data is absent: {name}")


@pytest.mark.parametrize("name", sorted(DETECTED))
def test_formats_are_detected_from_templates(shared: Path, name: str) -> None:
    form = AnswerFormat.detect(source_of(shared, name))
    assert (form.tools and form.tools.name, form.reasoning and form.reasoning.name) == DETECTED[name]


def written_answers(source: str) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return the assistant's turns with two calls and with one, as a template writes them, and their calls."""
    form = detect_tools(source)
    assert form is not None
    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}, keeps_turns=True)
    user = {"role": "user", "content": "How is it?"}
    answers = []
    for calls in (CALLS, CALLS[:1]):
        try:
            written = template.render(
                [user, {"role": "assistant", "content": "", "tool_calls": calls}], PLAIN_TOOLS, False
            )
        except QuireError:
            continue  # refuses two calls at once, or any
        if "Paris & <co>" not in written:
            continue
        answer = written[written.index("How is it?") :]
        starts = BEGINNINGS.get(form.name, form.starts)
        answer = answer[min(i for start in starts if (i := answer.find(start)) >= 0) :]
        for _ in range(3):
            answer = ENDS_OF_TURNS.sub("", answer)
        # Some templates write the first call alone.
        answers.append((answer, calls if "clock" in answer else calls[:1]))
    return answers


def meaning(message: ChatMessage) -> list[tuple[str, Any]]:
    return [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls]


@pytest.mark.parametrize("name", sorted(name for name, (tools, _) in DETECTED.items() if tools))
def test_calls_written_by_templates_are_parsed(shared: Path, name: str) -> None:
    """A round trip through every published template.

    A call as the template writes it for the model is parsed like an answer: whole, in two pieces, and cut at every place.
    """
    source = source_of(shared, name)
    form = AnswerFormat(None, detect_tools(source))
    answers = written_answers(source)
    assert answers or name in WITHOUT_CALLS
    for answer, calls in answers:
        expected = [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
        whole = parse_answer(answer, form, PLAIN_TOOLS)
        assert meaning(whole) == expected
        assert not (whole.content or "").strip()
        for n in range(len(answer)):
            parser = AnswerParser(form, PLAIN_TOOLS)
            assert meaning(joined([parser.feed(answer[:n]), parser.feed(answer[n:]), parser.finish()])) == expected
            cut = parse_answer(answer[:n], form, PLAIN_TOOLS, cut=True)
            assert not (cut.content or "").strip(), answer[:n]
            functions = [call.function for call in cut.tool_calls]
            sources = [call.function for call in whole.tool_calls]
            assert [f.name for f in functions] == [f.name for f in sources[: len(functions)]]
            assert all(a.arguments == b.arguments for a, b in zip(functions[:-1], sources, strict=False))
            if functions:
                assert sources[len(functions) - 1].arguments.startswith(functions[-1].arguments), answer[:n]


# Formats without a published template at hand


def turns(call: str, before: str = "", between: str = "", behind: str = "", end: str = "<|im_end|>") -> str:
    """Return a template that writes calls in this form."""
    return (
        "{{ tools | length if tools }}{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' + (message.content or '') }}"
        "{%- if message.tool_calls %}" + before + "{%- for call in message.tool_calls %}"
        "{%- set f = call.function %}" + call + ("{%- if not loop.last %}" + between + "{%- endif %}")
        + "{%- endfor %}" + behind + "{%- endif %}" + end + "{%- endfor %}"
        "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"
    )  # fmt: skip


OBJECT = '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}'
MARK = "]<]minimax[>["
WRITTEN = {
    "hermes": [turns("<tool_call>\n" + OBJECT + "\n</tool_call>", between="\n")],
    "granite": [turns(OBJECT, "<|tool_call|>[", ", ", "]")],
    "phi4": [turns(OBJECT, "<|tool_call|>[", ", ", "]<|/tool_call|>"), turns(OBJECT, "functools[", ", ", "]")],
    "nemotron": [turns(OBJECT, "<TOOLCALL>[", ", ", "]</TOOLCALL>")],
    "apriel": [
        turns(OBJECT, "<tool_calls>[", ", ", "]</tool_calls>"),
        turns(OBJECT + "\n", "<tool_calls>\n", "", "</tool_calls>"),
    ],
    "seed_oss": [
        turns(
            "<seed:tool_call>\n<function={{ f.name }}>\n{%- for key, value in f.arguments.items() %}"
            "<parameter={{ key }}>{{ value }}</parameter>\n{%- endfor %}</function>\n</seed:tool_call>",
            between="\n",
        )
    ],
    "solar": [
        turns(
            "<|tool_call:begin|>{{ call.id }}<|tool_call:name|>{{ f.name }}<|tool_call:args|>{{ f.arguments | tojson }}"
            "<|tool_call:end|>",
            "<|tool_calls|>",
            behind="<|calls|>",
        )
    ],
    "minimax_m3": [
        turns(
            MARK + '<invoke name="{{ f.name }}">{%- for key, value in f.arguments.items() %}'
            f"{MARK}<{{{{ key }}}}>{{{{ value }}}}{MARK}</{{{{ key }}}}>{{%- endfor %}}{MARK}</invoke>\n",
            MARK + "<tool_call>\n",
            behind=MARK + "</tool_call>",
        )
    ],
    "gigachat": [turns("<|message_sep|>\n\nfunction call<|role_sep|>\n" + OBJECT, end="<|message_sep|>")],
    "command_r": [
        turns('{"tool_name": "{{ f.name }}", "parameters": {{ f.arguments | tojson(indent=4) }}}', before, ",\n", "\n]```")
        for before in ("\nAction:\n```json\n[\n", "Action:```json\n[", "Action: ```json\n[")
    ],
    "lfm2": [
        turns("{{ f.name }}({%- for k, v in f.arguments.items() %}{{ k }}={{ v | tojson }}{{ ', ' if not loop.last }}"
              "{%- endfor %})", "<|tool_call_start|>[", ", ", "]<|tool_call_end|>"),
        "{%- if tools %}List of tools: <|tool_list_start|>{{ tools }}<|tool_list_end|>{%- endif %}{{ messages }}",
        "<|im_start|>{%- if tools %}List of tools: [{{ tools }}]{%- endif %}{{ messages[0].content }}",
    ],
    "bare_json": [turns(OBJECT)],
}  # fmt: skip


@pytest.mark.parametrize(("name", "source"), [(name, text) for name, texts in WRITTEN.items() for text in texts])
def test_formats_are_detected_from_written_calls(name: str, source: str) -> None:
    support = tool_support(source)
    assert (support.takes_tools, support.format_name) == (True, name)


def test_marks_are_found_even_if_line_ends_are_part_of_tokens() -> None:
    """The marks of GigaChat 3's vocabulary include line ends."""
    visible = tool_format("gigachat").visible
    assert {"<|message_sep|>\n\n", "<|role_sep|>\n", "<|function_call|>", "<|message_sep|>"} <= set(visible)
    marks = {f"{MARK}<tool_call>", MARK, "<tool_call>"}
    assert marks <= set(tool_format("minimax_m3").visible)


@pytest.mark.parametrize(
    "source",
    [
        turns("!call {{ f.name }} with {{ f.arguments | tojson }}!"),
        # The text mentions Hermes, the turn does not.
        turns("!call {{ f.name }} with {{ f.arguments | tojson }}!") + "{# <tool_call> arguments </tool_call> #}",
        turns("{{ f.name }} {{ f.arguments | tojson }}", end="<tool_call> arguments </tool_call>"),
        "{{ messages[0].content }}{{ tools }}",
    ],
)
def test_an_unknown_format_is_none(source: str) -> None:
    support = tool_support(source)
    assert support.is_unknown
    assert support.format_name is None


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content }}",
        "{% if",
        "{% for i in range(10 ** 9) %}{{ i }}{% endfor %}",
        "{{ raise_exception('tool_calls') }}",
    ],
)
def test_templates_without_tools_have_no_support(source: str) -> None:
    support = tool_support(source)
    assert not support.is_unknown
    assert support.format_name is None


def test_a_template_cannot_keep_detection_busy() -> None:
    """An endless template is stopped after the time of the first rendering."""
    source = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}{{ tools }}tool_calls"
    assert tool_support(source).is_unknown
