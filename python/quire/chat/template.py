"""Chat templates: messages to a prompt, as transformers' ``apply_chat_template`` renders them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Protocol

import jinja2
from jinja2 import meta, nodes

from quire.chat.budget import Limits, compiling, rendering
from quire.chat.messages import Json, Messages, checked_messages, checked_tools, plain
from quire.chat.nesting import check_nesting
from quire.chat.provenance import Marks
from quire.chat.sandbox import TemplateRefusal, make_environment
from quire.chat.text_costs import text_of
from quire.errors import CapacityError, LoadError, QuireError, RequestError, UnsupportedError

__all__ = ["ChatTemplate", "TemplateSource"]

# What only Quire may set: a request's own values never replace these.
RESERVED = frozenset({"messages", "tools", "add_generation_prompt"})
PROBING = Limits(time_s=0.3)
COMPILE_ERRORS = (jinja2.TemplateError, SyntaxError, RecursionError, MemoryError, ValueError, OverflowError, TypeError)


class TemplateSource(Protocol):
    """What a template needs of a tokenizer."""

    @property
    def chat_template(self) -> str | None: ...
    @property
    def special_texts(self) -> Mapping[str, str]: ...
    @property
    def control_tokens(self) -> Mapping[str, int]: ...


class ChatTemplate:
    """A chat template, compiled once; rendering is safe from any thread.

    Templates are untrusted: they run in a sandbox (``quire.chat.sandbox``) and within limits of time and memory.
    """

    def __init__(
        self,
        source: str,
        special_texts: Mapping[str, str] | None = None,
        control_tokens: Iterable[str] = (),
        limits: Limits | None = None,
    ) -> None:
        """``special_texts``: what ``bos_token`` and its like stand for.  ``control_tokens``: texts that must not come
        from messages.

        Raises LoadError for a source that is no template, or too long or too deep.
        """
        self.source = source
        self._special_texts = dict(special_texts or {})
        self._limits = limits or Limits()
        environment = make_environment()
        try:
            check_nesting(environment, source)
            with compiling():
                tree = environment.parse(source)
                self._template = environment.from_string(source)
                read = _variables(tree)
        except QuireError:
            raise
        except COMPILE_ERRORS as error:
            raise LoadError(f"[chat template] the source must be a Jinja template but: {_one_line(error)}") from None
        self.variables: frozenset[str] = read - RESERVED - set(environment.globals) - {"bos_token"}
        self.reads_tools = "tools" in read
        self._marks = Marks(control_tokens, _constants(tree))

    @classmethod
    def from_tokenizer(cls, tokenizer: TemplateSource) -> ChatTemplate:
        """The default template of a tokenizer.  Raises UnsupportedError where it has none."""
        if tokenizer.chat_template is None:
            raise UnsupportedError("[chat template] the model must have a chat template but has none")
        return cls(tokenizer.chat_template, tokenizer.special_texts, tokenizer.control_tokens)

    def render(
        self,
        /,  # a caller may name a variable `self`
        messages: Messages,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        **values: object,
    ) -> str:
        """The prompt as one string, for people to read: control tokens of the template and what users wrote look the
        same in it.  ``render_segments`` is what goes to the model."""
        return "".join(text for text, _ in self.render_segments(messages, tools, add_generation_prompt, **values))

    def render_segments(
        self,
        /,  # a caller may name a variable `self`
        messages: Messages,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        **values: object,
    ) -> list[tuple[str, bool]]:
        """The prompt as (text, is_template) pairs for ``Tokenizer.encode_segments``; False where a user, a tool or a
        caller wrote what could begin a control token.

        ``values`` are further variables that the template reads, such as ``enable_thinking``: JSON data.  Raises
        RequestError for messages that do not hold, that the template refuses, or values that it does not know;
        CapacityError for a rendering beyond the limits; UnsupportedError for a template that the sandbox stops.
        """
        given = self._checked_values(values)
        chat = checked_messages(messages)
        definitions = checked_tools(tools)
        if self._wants_text_arguments and any("tool_calls" in message for message in chat):
            chat = [_with_text_arguments(message) for message in chat]
        return self._render(chat, definitions, add_generation_prompt, given)

    def _checked_values(self, values: Mapping[str, object]) -> dict[str, Json]:
        for name in values:
            if name in RESERVED or name in self._special_texts or name not in self.variables:
                known = ", ".join(sorted(self.variables - set(self._special_texts))) or "none"
                raise RequestError(f"[chat] the template's variables are {known} but {name!r} is given")
        return {name: plain(value, name) for name, value in values.items()}

    def _render(
        self,
        chat: list[dict[str, Json]],
        tools: list[dict[str, Json]] | None,
        add_generation_prompt: bool,
        values: dict[str, Json],
        limits: Limits | None = None,
    ) -> list[tuple[str, bool]]:
        data: list[Json] = [*chat, *(tools or []), values]
        marking = self._marks.begin(self.source, data)
        marked_chat = [{key: item if key == "role" else marking.mark(item) for key, item in m.items()} for m in chat]
        variables = {
            **{name: marking.mark(value) for name, value in values.items()},
            **self._special_texts,
            "messages": marked_chat,
            "tools": None if tools is None else [marking.mark(tool) for tool in tools],
            "add_generation_prompt": add_generation_prompt,
        }
        n_bytes = sum(_size(value) for value in data)
        with rendering(limits or self._limits, n_bytes):
            return marking.segments(self._run(variables, self._limits.output_bytes + n_bytes))

    def _run(self, variables: Mapping[str, object], most: int) -> str:
        parts: list[str] = []
        size = 0
        try:
            for part in self._template.generate(variables):
                parts.append(part if isinstance(part, str) else text_of(part))  # a filter block may yield anything
                size += len(parts[-1])
                if size > most:
                    raise CapacityError(f"[chat template] the prompt must have at most {most} characters but has more")
        except QuireError:
            raise
        except TemplateRefusal as error:
            raise RequestError(f"[chat] the template refuses the messages: {_one_line(error)}") from None
        except jinja2.exceptions.SecurityError as error:
            raise UnsupportedError(f"[chat template] the sandbox stops the template: {_one_line(error)}") from None
        except (MemoryError, RecursionError, OverflowError) as error:
            raise CapacityError(
                f"[chat template] rendering must stay within its limits but: {_one_line(error)}"
            ) from None
        except Exception as error:  # anything that an expression of the template can raise
            raise RequestError(f"[chat] the template cannot render the messages: {_one_line(error)}") from None
        return "".join(parts)

    @cached_property
    def _wants_text_arguments(self) -> bool:
        """Whether the template joins the arguments of tool calls to its text as they are, so that they must be JSON
        text; most take objects."""
        if "arguments" not in self.source:
            return False
        call: Json = {"id": "call000000", "type": "function", "function": {"name": "f", "arguments": {"probe_key": 1}}}
        chat: list[dict[str, Json]] = [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
        ]
        as_text = [_with_text_arguments(message) for message in chat]
        try:
            rendered = self._probe(chat)
        except CapacityError:
            raise
        except QuireError:
            rendered = "{'probe_key'"
        if "{'probe_key'" not in rendered:
            return False
        try:
            return '"probe_key"' in self._probe(as_text)
        except QuireError:
            return False

    def _probe(self, chat: list[dict[str, Json]]) -> str:
        return "".join(text for text, _ in self._render(chat, None, False, {}, PROBING))


def _with_text_arguments(message: dict[str, Json]) -> dict[str, Json]:
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    changed: list[Json] = []
    for call in calls:
        assert isinstance(call, dict)
        function = call.get("function", call)
        assert isinstance(function, dict)
        if isinstance(function.get("arguments"), dict):
            function = {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}
        changed.append({**call, "function": function} if "function" in call else function)
    return {**message, "tool_calls": changed}


def _variables(tree: nodes.Template) -> frozenset[str]:
    """The variables that a template reads: ``meta.find_undeclared_variables``, but without folding of constants, which
    takes cubic time for a chain of filters."""
    assert tree.environment is not None
    finder = meta.TrackingCodeGenerator(tree.environment)
    finder.optimizer = None
    finder.visit(tree)
    return frozenset(finder.undeclared_identifiers)


def _constants(tree: nodes.Template) -> list[str]:
    """The strings that a template's expressions have."""
    return [node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)]


def _size(value: Json) -> int:
    if isinstance(value, str):
        return len(value) * (1 if value.isascii() else 4)
    if isinstance(value, list):
        return 8 + sum(map(_size, value))
    if isinstance(value, dict):
        return 64 + sum(_size(key) + _size(item) for key, item in value.items())
    return 8


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    line = getattr(error, "lineno", None) if isinstance(error, jinja2.TemplateSyntaxError) else None
    return f"{text[:400]} (line {line})" if line is not None else text[:400]
