"""Chat templates: render messages to a prompt like transformers' ``apply_chat_template``."""

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

# Set by Quire only: a request's values never replace these.
RESERVED = frozenset({"messages", "tools", "add_generation_prompt"})
PROBING = Limits(time_s=0.3, made_bytes=8 << 20, peak_bytes=8 << 20, output_bytes=1 << 20)
COMPILE_ERRORS = (jinja2.TemplateError, SyntaxError, RecursionError, MemoryError, ValueError, OverflowError, TypeError)


class TemplateSource(Protocol):
    """The part of a tokenizer that a template needs."""

    @property
    def chat_template(self) -> str | None: ...
    @property
    def special_texts(self) -> Mapping[str, str]: ...
    @property
    def control_tokens(self) -> Mapping[str, int]: ...


@dataclass(frozen=True)
class Rendering:
    """A rendered prompt.

    Attributes:
        segments: See ``ChatTemplate.render_segments``.
        moved: Names of the messages that were moved because the template accepts them only in another place.
    """

    segments: list[tuple[str, bool]]
    moved: tuple[str, ...] = ()


class ChatTemplate:
    """A chat template, compiled once.  Rendering is thread-safe.

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
        """Compile a template.

        Args:
            source: The template.
            special_texts: The texts of ``bos_token`` and similar variables.
            control_tokens: Texts that must not come from messages; None for any that the template writes.
            limits: Limits of a rendering.
            keeps_turns: Keep the order and roles of messages, even if the template refuses or drops them.

        Raises:
            LoadError: The source is not a template, or is too long or too deep.
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
            raise LoadError(f"[chat template] the source is not a Jinja template: {_one_line(error)}") from None
        self.variables: frozenset[str] = read - RESERVED - set(environment.globals) - {"bos_token"}
        self.reads_tools = "tools" in read or "functions" in self._provided
        self._known_roles = KNOWN_ROLES | compared
        self._controls = None if control_tokens is None else ControlTexts(control_tokens)
        self._forms = Forms(source, self._probe)
        self._fitting = None if keeps_turns else Fitting(source, self._forms, self._probe)

    @classmethod
    def from_tokenizer(cls, tokenizer: TemplateSource) -> ChatTemplate:
        """Create the default template of a tokenizer.  UnsupportedError if it has none."""
        if tokenizer.chat_template is None:
            raise UnsupportedError("[chat template] the model has no chat template")
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
        """Render the prompt as one string, for people to read.

        Control tokens look the same as text of users in it; models get ``render_segments``.
        """
        return "".join(text for text, _ in self.render_segments(messages, tools, add_generation_prompt, **values))

    def render_segments(
        self,
        /,  # a caller may name a variable `self`
        messages: Messages,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        **values: object,
    ) -> list[tuple[str, bool]]:
        """Render the prompt as (text, is_template) pairs for ``Tokenizer.encode_segments``.

        Template parts are the control tokens of which the template wrote every character.

        Args:
            messages: The conversation.
            tools: Definitions of tools.
            add_generation_prompt: End the prompt with the beginning of an answer.
            values: Further variables that the template reads, such as ``enable_thinking``, as JSON data.

        Raises:
            RequestError: Messages are invalid, the template refuses them, or it does not read one of the values.
            CapacityError: The rendering exceeds its limits.
            UnsupportedError: The sandbox stops the template.
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
        """Render like ``render_segments``, and name the messages that were moved."""
        given = self._checked_values(values)
        chat = checked_messages(messages)
        definitions = checked_tools(tools)
        data: list[Json] = [*chat, *(definitions or []), given]
        n_bytes = sum(_size(value) for value in data)
        fit = Fit(TurnPlan())
        if self._fitting is not None:
            fit = self._fitting.of(chat, bool(definitions), add_generation_prompt)
        refused: RequestError | CapacityError | None = None
        with rendering(self._limits, n_bytes):
            for form, shown in self._ways(fit.plan.of(chat), fit, definitions):
                variables = self._variables(form, shown, add_generation_prompt, given)
                try:
                    parts = self._run(variables, self._limits.output_bytes + n_bytes)
                except (RequestError, CapacityError) as error:
                    # Some templates recurse without end for schemas without a type.
                    if isinstance(error, CapacityError) and not isinstance(error.__cause__, RecursionError):
                        raise
                    refused = refused or error
                    continue
                return Rendering(segments(parts, self._controls), tuple(fit.plan.moved(chat)))
        assert refused is not None
        raise refused

    def _ways(self, chat: Chat, fit: Fit, definitions: Tools) -> Iterator[tuple[Chat, Tools]]:
        """Yield the conversation and the tools in the forms to try, best first."""
        forms = [*([fit.form] if fit.form is not None else []), *self._forms.of(chat)]
        for shown in [self._forms.without_tools] if definitions is None else definition_forms(definitions):
            for form in dict.fromkeys(forms):
                yield form.of(chat), shown

    def _checked_values(self, values: Mapping[str, object]) -> dict[str, Json]:
        for name in values:
            if name in RESERVED or name in self._special_texts or name not in self.variables:
                known = ", ".join(sorted(self.variables - set(self._special_texts))) or "none"
                raise RequestError(f"[chat] the template does not read {name!r}: its variables are {known}")
        return {name: plain(value, name) for name, value in values.items()}

    def _variables(
        self,
        chat: Chat,
        tools: Tools,
        add_generation_prompt: bool,
        values: Mapping[str, Json],
    ) -> dict[str, object]:
        """Return the variables of the template."""
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
        """Mark a role that the template knows as the template's own text, rather than the user's."""
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
                    parts.append(
                        part if isinstance(part, str) else text_of(part)
                    )  # filter blocks may yield other types
                    size += len(parts[-1])
                    if size > most:
                        raise CapacityError(f"[chat template] the prompt has more than {most} characters")
        except QuireError:
            raise
        except TemplateRefusal as error:
            raise RequestError(f"[chat] the template refuses the messages: {_one_line(error)}") from None
        except jinja2.exceptions.SecurityError as error:
            raise UnsupportedError(f"[chat template] the sandbox stops the template: {_one_line(error)}") from None
        except RecursionError as error:
            raise CapacityError(f"[chat template] rendering takes too many calls: {_one_line(error)}") from error
        except (MemoryError, OverflowError) as error:
            raise CapacityError(f"[chat template] rendering exceeds its limits: {_one_line(error)}") from None
        except Exception as error:  # expressions of the template can raise anything
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
