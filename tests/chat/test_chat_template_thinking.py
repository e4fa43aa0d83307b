"""Thinking switched on or off, calls without tools, and prompts without the beginning of an answer.

Oracle: llama.cpp's server, whose tests have the same ends of prompts.
"""

from __future__ import annotations

from typing import Any

import pytest
from quire.chat import ChatTemplate
from quire.engine.requests.chat import ChatRequest
from quire.engine.requests.prompts import Prompts, RequestOptions
from quire.params.chat_options import ChatOptions
from quire.params.sampling import SamplingParams
from quire.params.structured import StructuredOutputsParams
from quire.tokenizer import Tokenizer

pytestmark = pytest.mark.python_only

USER: list[dict[str, Any]] = [{"role": "user", "content": "What is today?"}]
OFF = {"enable_thinking": False}
TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
BEGIN = "{% if add_generation_prompt %}<|im_start|>assistant\n"
# Like DeepSeek-R1's distills and QwQ, DeepSeek-R1, Qwen3, Qwen3.5, and with another name.
OPENED = TURNS + BEGIN + "<think>\n{% endif %}"
FREE = TURNS + BEGIN + "{% endif %}"
SWITCHED = (
    TURNS
    + BEGIN
    + "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
USUALLY_OFF = TURNS + BEGIN + "<think>\n{% if not enable_thinking %}\n</think>\n\n{% endif %}{% endif %}"
OTHER_NAME = TURNS + BEGIN + "{% if thinking %}<think>{% else %}</think>{% endif %}{% endif %}"
FORM = SamplingParams(structured_outputs=StructuredOutputsParams(json={"type": "integer"}))


def drafted(
    tokenizer: Tokenizer, source: str | None, params: SamplingParams | None = None, **options: Any
) -> ChatRequest:
    prompts = Prompts(tokenizer, tokenizer.n_vocab)
    if source is not None:
        prompts.use_template(source)
    return prompts.chat_draft(options.pop("messages", USER), params, RequestOptions(), ChatOptions(**options))


@pytest.mark.parametrize(
    ("source", "values", "end"),
    [
        (OPENED, None, "assistant\n<think>\n"),
        (OPENED, OFF, "assistant\n<think>\n</think>"),
        (FREE, None, "assistant\n"),
        (FREE, OFF, "assistant\n<think></think>"),
        (SWITCHED, None, "assistant\n"),
        (SWITCHED, OFF, "assistant\n<think>\n\n</think>\n\n"),
        (USUALLY_OFF, None, "assistant\n<think>\n"),
        (USUALLY_OFF, OFF, "assistant\n<think>\n</think>\n\n"),
        (OTHER_NAME, {"enable_thinking": True}, "assistant\n<think>"),
        (OTHER_NAME, OFF, "assistant\n</think>"),
        (TURNS.replace(".split('</think>')[-1]", "") + BEGIN + "{% endif %}", OFF, "assistant\n"),
    ],
)
def test_prompts_say_whether_the_model_thinks(
    tokenizer: Tokenizer, source: str, values: dict[str, Any] | None, end: str
) -> None:
    assert drafted(tokenizer, source, template_values=values).prompt.endswith(end)


@pytest.mark.parametrize("source", [OPENED, FREE, SWITCHED, USUALLY_OFF])
@pytest.mark.parametrize("values", [None, OFF], ids=["on", "off"])
def test_a_form_has_room_for_reasoning_only_where_the_model_thinks(
    tokenizer: Tokenizer, source: str, values: dict[str, Any] | None
) -> None:
    form = drafted(tokenizer, source, FORM, template_values=values).engine.form
    assert form is not None
    assert ("</think>" in str(form.frame)) is (values is None)


def test_a_form_behind_closed_reasoning_has_none(tokenizer: Tokenizer) -> None:
    """Here the template closes it on its own."""
    form = drafted(tokenizer, TURNS + BEGIN + "<think>\n</think>\n{% endif %}", FORM).engine.form
    assert form is not None
    assert "</think>" not in str(form.frame)


def test_calls_are_not_begun_without_tools(tokenizer: Tokenizer) -> None:
    mark = tokenizer.encode("<tool_call>", add_special=False, parse_special=True)
    assert len(mark) == 1
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}

    def never(**options: Any) -> list[int]:
        params = drafted(tokenizer, None, **options).engine.params
        assert params is not None
        return list(params.bad_token_ids)

    assert never() == mark
    assert never(tools=[tool], tool_choice="none") == mark
    assert never(tools=[tool]) == []
    assert never(tool_format="none") == []
    # A request that names the token means it.
    assert never(params=SamplingParams(logit_bias={mark[0]: 5.0})) == []


def test_a_prompt_without_the_answers_beginning(tokenizer: Tokenizer) -> None:
    assert drafted(tokenizer, OPENED, add_generation_prompt=False).prompt.endswith("today?<|im_end|>\n")


def test_messages_that_moved_are_named(tokenizer: Tokenizer) -> None:
    strict = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('first') }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    chat = [{"role": "system", "content": "one"}, *USER, {"role": "system", "content": "two"}]
    request = drafted(tokenizer, strict, messages=chat)
    assert request.prompt == "[system]one[user]What is today?\n\n<system>\ntwo\n</system>"
    assert request.ignored == ("messages[2].role",)
    with pytest.raises(Exception, match="first"):
        ChatTemplate(strict, keeps_turns=True).render(chat)
