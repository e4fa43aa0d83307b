"""Render conversations with transformers' ``apply_chat_template``, the oracle of chat templates.

Three things that it leaves to its callers are added: filters and methods that published templates use and its sandbox
lacks; empty content if a template requires one; parts joined to one text if a template rejects them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from datetime import datetime
from typing import Any
from unittest import mock

import jinja2.filters
from chat_cases import DAY, SPECIAL_TEXTS
from jinja2.sandbox import SandboxedEnvironment
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

__all__ = ["Frozen", "frozen", "rendered", "rendered_as_given"]

# Values that llama.cpp's server passes to every template, and that fireworks-ai/llama-3-firefunction-v2 expects.
PUBLISHERS = {
    "date_string": lambda _tools: DAY.strftime("%d %b %Y"),
    "datetime": lambda _tools: DAY.strftime("%b %d %Y"),
    "functions": lambda tools: json.dumps([tool["function"] for tool in tools or []], indent=4),
}


class Frozen(datetime):
    @classmethod
    def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
        return DAY


@contextmanager
def frozen() -> Iterator[None]:
    """Freeze transformers' clock, and let templates append to their own lists."""
    filters = {**jinja2.filters.FILTERS, "from_json": json.loads}
    chat_template_utils._compile_jinja_template.cache_clear()
    with (
        mock.patch.object(chat_template_utils, "datetime", Frozen),
        mock.patch.object(chat_template_utils, "ImmutableSandboxedEnvironment", SandboxedEnvironment),
        mock.patch.dict(jinja2.filters.FILTERS, filters),
        mock.patch("jinja2.defaults.DEFAULT_FILTERS", filters),
    ):
        yield
    chat_template_utils._compile_jinja_template.cache_clear()


TOKENIZER = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"x": 0}, "x")), **SPECIAL_TEXTS)


def rendered_as_given(source: str, case: Mapping[str, Any]) -> str | None:
    """Return the rendering of the unchanged case; None if the template refuses it."""
    given = {name: make(case.get("tools")) for name, make in PUBLISHERS.items()}
    values = {"add_generation_prompt": True, **given, **case}
    messages = deepcopy(values.pop("messages"))  # templates may change them
    try:
        return str(TOKENIZER.apply_chat_template(messages, chat_template=source, tokenize=False, **values))
    except Exception:  # the template refuses the case
        return None


def _changed(case: Mapping[str, Any], change: Any) -> dict[str, Any]:
    return {**case, "messages": [change(dict(message)) for message in case["messages"]]}


def _joined(message: dict[str, Any]) -> dict[str, Any]:
    if isinstance(message.get("content"), list):
        message["content"] = "\n".join(part["text"] for part in message["content"])
    return message


def _filled(message: dict[str, Any]) -> dict[str, Any]:
    if message.get("content") is None:
        message["content"] = ""
    return message


def _with_text_arguments(message: dict[str, Any]) -> dict[str, Any]:
    if message.get("tool_calls"):
        message["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"], ensure_ascii=False)}}
            for call in message["tool_calls"]
        ]  # fmt: skip
    return message


def _takes_parts(source: str, case: Mapping[str, Any]) -> bool:
    """Return True if the template shows the text of every part, not the list as Python writes it."""
    words: list[str] = []

    def named(message: dict[str, Any]) -> dict[str, Any]:
        if isinstance(message.get("content"), list):
            first = len(words)
            words.extend(f"word{first + i}" for i in range(len(message["content"])))
            message["content"] = [{"type": "text", "text": word} for word in words[first:]]
        return message

    text = rendered_as_given(source, _changed(case, named))
    return text is not None and "'text': " not in text and all(word in text for word in words)


def rendered(source: str, case: Mapping[str, Any]) -> str | None:
    """Return the rendering of the first form of the case that the template accepts; None if it refuses all."""
    for arguments in (dict, _with_text_arguments):
        for content in (dict, _joined):
            for gap in (dict, _filled):
                changed = _changed(_changed(_changed(case, arguments), content), gap)
                text = rendered_as_given(source, changed)
                if text is not None and _takes_parts(source, changed):
                    return text
    return None
