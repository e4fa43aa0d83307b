"""Chat templates: messages to a prompt, as transformers' ``apply_chat_template`` renders them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import jinja2

from quire.chat.budget import Limits, compiling, rendering
from quire.chat.fitting import Fit, Fitting
from quire.chat.forms import Forms, Tools
from quire.chat.messages import Json, Messages, checked_messages, checked_tools, plain
from quire.chat.mutation import given_data
from quire.chat.nesting import check_nesting
from quire.chat.provenance import ControlTexts, own, segments
from quire.chat.sandbox import TemplateRefusal, make_environment
from quire.chat.text_costs import text_of
from quire.chat.tool_definitions import definition_forms
from quire.chat.turns import Chat, TurnPlan
from quire.chat.variables import DATES, KNOWN_ROLES, PROVIDED, compared_texts, guarded_names, read_names
from quire.errors import CapacityError, LoadError, QuireError, RequestError, UnsupportedError

__all__ = ["ChatTemplate", "Rendering", "TemplateSource"]

# What only Quire may set: a request's own values never replace these.
RESERVED = frozenset({"messages", "tools", "add_generation_prompt"})
PROBING = Limits(time_s=0.3, made_bytes=8 << 20, peak_bytes=8 << 20, output_bytes=1 << 20)
COMPILE_ERRORS = (jinja2.TemplateError, SyntaxError, RecursionError, MemoryError, ValueError, OverflowError, TypeError)


class TemplateSource(Protocol):
    """What a template needs of a tokenizer."""

    @property
    def chat_template(self) -> str | None: ...
    @property
    def special_texts(self) -> Mapping[str, str]: ...
    @property
    def control_tokens(self) -> Mapping[str, int]: ...


class _TooDeep(CapacityError):
    """The template calls itself over and over, as some do for schemas without a type."""


@dataclass(frozen=True)
class Rendering:
    """A prompt as ``segments``, see ``ChatTemplate.render_segments``.  ``moved``: names of the messages that stand in
    another place than they were given, because the template takes them in no other."""

    segments: list[tuple[str, bool]]
    moved: tuple[str, ...] = ()


class ChatTemplate:
    """A chat template, compiled once; rendering is safe from any thread.

    Templates are untrusted: they run in a sandbox (``quire.chat.sandbox``) and within limits of time and memory.
    """

    def __init__(
        self,
        source: str,
        special_texts: Mapping[str, str] | None = None,
        control_tokens: Iterable[str] | None = None,
        limits: Limits | None = None,
        *,
        keeps_turns: bool = False,
    ) -> None:
        """``special_texts``: what ``bos_token`` and its like stand for.  ``control_tokens``: texts that must not come
        from messages; None: any that the template writes.  ``keeps_turns``: messages stay in their order and roles,
        even if the template refuses or drops them.

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
                read, compared = read_names(tree), compared_texts(tree)
                self._provided = read & (DATES | (PROVIDED.keys() - guarded_names(tree)))
                self._template = environment.from_string(tree)
        except QuireError:
            raise
        except COMPILE_ERRORS as error:
            raise LoadError(f"[chat template] the source must be a Jinja template but: {_one_line(error)}") from None
        self.variables: frozenset[str] = read - RESERVED - set(environment.globals) - {"bos_token"}
        self.reads_tools = "tools" in read or "functions" in self._provided
        self._known_roles = KNOWN_ROLES | compared
        self._controls = None if control_tokens is None else ControlTexts(control_tokens)
        self._forms = Forms(source, self._probe)
        self._fitting = None if keeps_turns else Fitting(source, self._forms, self._probe)

    @classmethod
    def from_tokenizer(cls, tokenizer: TemplateSource) -> ChatTemplate:
        """The default template of a tokenizer.  Raises UnsupportedError where it has none."""
        if tokenizer.chat_template is None:
            raise UnsupportedError("[chat template] the model must have a chat template but has none")
        return cls(tokenizer.chat_template, tokenizer.special_texts, tokenizer.control_tokens)

    def __repr__(self) -> str:
        tools = "tools" if self.reads_tools else "no tools"
        return f"ChatTemplate({len(self.source)} characters, {tools}, variables: {', '.join(sorted(self.variables))})"

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
        """The prompt as (text, is_template) pairs for ``Tokenizer.encode_segments``; the template's are the control
        tokens of which it wrote every character.

        ``values`` are further variables that the template reads, such as ``enable_thinking``: JSON data.  Raises
        RequestError for messages that do not hold, that the template refuses, or values that it does not know;
        CapacityError for a rendering beyond the limits; UnsupportedError for a template that the sandbox stops.
        """
        return self.rendering(messages, tools, add_generation_prompt, **values).segments

    def rendering(
        self,
        /,  # a caller may name a variable `self`
        messages: Messages,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        **values: object,
    ) -> Rendering:
        """``render_segments``, with what was moved."""
        given = self._checked_values(values)
        chat = checked_messages(messages)
        definitions = checked_tools(tools)
        data: list[Json] = [*chat, *(definitions or []), given]
        n_bytes = sum(_size(value) for value in data)
        fit = Fit(TurnPlan())
        if self._fitting is not None:
            fit = self._fitting.of(chat, bool(definitions), add_generation_prompt)
        refused: RequestError | _TooDeep | None = None
        with rendering(self._limits, n_bytes):
            for form, shown in self._ways(fit.plan.of(chat), fit, definitions):
                variables = self._variables(form, shown, add_generation_prompt, given)
                try:
                    parts = self._run(variables, self._limits.output_bytes + n_bytes)
                except (RequestError, _TooDeep) as error:
                    refused = refused or error
                    continue
                return Rendering(segments(parts, self._controls), tuple(fit.plan.moved(chat)))
        assert refused is not None
        raise refused

    def _ways(self, chat: Chat, fit: Fit, definitions: Tools) -> Iterator[tuple[Chat, Tools]]:
        """The conversation and the tools in the forms to try, best first."""
        forms = [*([fit.form] if fit.form is not None else []), *self._forms.of(chat)]
        for shown in [self._forms.without_tools] if definitions is None else definition_forms(definitions):
            for form in dict.fromkeys(forms):
                yield form.of(chat), shown

    def _checked_values(self, values: Mapping[str, object]) -> dict[str, Json]:
        for name in values:
            if name in RESERVED or name in self._special_texts or name not in self.variables:
                known = ", ".join(sorted(self.variables - set(self._special_texts))) or "none"
                raise RequestError(f"[chat] the template's variables are {known} but {name!r} is given")
        return {name: plain(value, name) for name, value in values.items()}

    def _variables(
        self,
        chat: Chat,
        tools: Tools,
        add_generation_prompt: bool,
        values: Mapping[str, Json],
    ) -> dict[str, object]:
        """All that the template can read."""
        provided = {name: PROVIDED[name](tools) for name in self._provided if name not in values}
        return {
            "documents": None,
            **provided,
            **values,
            **{name: own(text) for name, text in self._special_texts.items()},
            "messages": [self._message(message) for message in chat],
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }

    def _message(self, message: dict[str, Json]) -> dict[str, Json]:
        """A message whose role is as good as the template's own text where it is one of those that templates know."""
        return {
            key: own(value) if key == "role" and isinstance(value, str) and value in self._known_roles else value
            for key, value in message.items()
        }

    def _run(self, variables: Mapping[str, object], most: int) -> list[str]:
        parts: list[str] = []
        size = 0
        try:
            with given_data(variables.values()):
                for part in self._template.generate(variables):
                    parts.append(part if isinstance(part, str) else text_of(part))  # a filter block may yield anything
                    size += len(parts[-1])
                    if size > most:
                        raise CapacityError(
                            f"[chat template] the prompt must have at most {most} characters but has more"
                        )
        except QuireError:
            raise
        except TemplateRefusal as error:
            raise RequestError(f"[chat] the template refuses the messages: {_one_line(error)}") from None
        except jinja2.exceptions.SecurityError as error:
            raise UnsupportedError(f"[chat template] the sandbox stops the template: {_one_line(error)}") from None
        except RecursionError as error:
            raise _TooDeep(f"[chat template] rendering takes too many calls: {_one_line(error)}") from None
        except (MemoryError, OverflowError) as error:
            raise CapacityError(f"[chat template] rendering exceeds its limits: {_one_line(error)}") from None
        except Exception as error:  # anything that an expression of the template can raise
            raise RequestError(f"[chat] the template cannot render the messages: {_one_line(error)}") from None
        return parts

    def _probe(self, chat: Chat, tools: Tools, begins: bool = False) -> str:
        with rendering(PROBING, 0):
            return "".join(self._run(self._variables(chat, tools, begins, {}), PROBING.output_bytes))


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
