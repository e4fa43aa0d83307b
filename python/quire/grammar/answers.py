"""Grammars for chat answers: reasoning, then a structured answer or tool calls with their arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..chat.tools.call_syntax import CallSyntax, Notation
from ..errors import RequestError, UnsupportedError
from .arguments import Argument, Looseness, arguments_of, json_lark
from .frame import Frame, FrameWriter, lark_string
from .notation import NotationWriter
from .schema import enforceable
from .source import WHITESPACE_AFTER, GrammarSource, lark_regex

__all__ = ["AnswerLayout", "ReasoningTags", "ToolUse", "answer_source"]

MAX_CALLS = 32
MAX_TOOLS = 1024
MAX_TOOLS_BYTES = 256 * 1024
MAX_HELD_BYTES = 8 * 1024  # tools that are not strict follow their schemas up to this size, together
_PLACES = re.compile(r"\{(name|arguments|number|id|id_member|space|type)\}")
_TEXTS = re.compile(r"\{(key|is_text)\}")
_ID = "/[A-Za-z0-9]{9}/"
_PIECES = {"space": "SPACE?", "number": "/[0-9]{1,2}/", "id": _ID, "id_member": f'(", \\"id\\": \\"" {_ID} "\\"")?'}
# Names that every wire format can carry without quotes.
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")
_OTHER_TYPES = ("number", "boolean", "null", "array", "object")
_FREE_ARGUMENTS: Mapping[str, object] = {"type": "object"}


@dataclass(frozen=True)
class ReasoningTags:
    """The texts around reasoning, which may be absent.  ``opened``: the prompt already ends with ``start``."""

    start: str
    end: str
    opened: bool


@dataclass(frozen=True)
class AnswerLayout:
    """The layout of a model's answers.

    Attributes:
        reasoning: The texts around reasoning.
        format_name: The wire format of calls; None if the model has none.
        syntaxes: The syntaxes in which that format is written.
        frames_content: Plain answers have the format's marks, too.
        starts: Every text that the format's parser takes for the beginning of a call.
        template: The source of the chat template, which decides between the syntaxes.
        may_reason: Whether the answer may have a channel for reasoning.
    """

    reasoning: ReasoningTags | None = None
    format_name: str | None = None
    syntaxes: tuple[CallSyntax, ...] = ()
    frames_content: bool = False
    starts: tuple[str, ...] = ()
    template: str = ""
    may_reason: bool = True

    def syntax(self) -> CallSyntax | None:
        """Return the syntax of this model's calls, or None if there is no grammar for it."""
        for syntax in self.syntaxes:
            if syntax.hint in self.template:
                return syntax
        return None


@dataclass(frozen=True)
class ToolUse:
    """Tools and how they may be used, as in OpenAI's API.

    Attributes:
        choice: ``"none"``; ``"auto"`` for a free answer, whose calls name one of the tools, with arguments that follow
            the schema of a ``strict`` tool; ``"required"`` for calls and nothing else; ``{"type": "function",
            "function": {"name": ...}}`` for one call of that tool.
        parallel: Whether several calls are allowed.
        always: With ``"auto"``, calls follow their format even if no tool is strict, and the schemas of small tools as
            far as these can be enforced.
    """

    tools: Sequence[Mapping[str, object]] = ()
    choice: str | Mapping[str, object] = "none"
    parallel: bool = True
    always: bool = False


@dataclass(frozen=True)
class _Function:
    name: str
    parameters: Mapping[str, object]
    strict: bool
    is_exact: bool = False  # a keyword that cannot be enforced is an error


def answer_source(layout: AnswerLayout, form: GrammarSource | None, use: ToolUse) -> GrammarSource | None:
    """Return the grammar of an answer, or None if there is nothing to enforce.

    Args:
        form: The grammar of the answer's text.

    Raises:
        RequestError: The tools are malformed.
        UnsupportedError: There is no grammar for the wire format, or a keyword of a schema cannot be enforced.
    """
    functions = _functions(use.tools)
    calls = _wanted(functions, use)
    if form is not None and form.frame is not None:  # the request has a trigger of its own
        if calls:
            raise RequestError(
                "[tools] a structured output with its own trigger cannot be combined with enforced tools"
            )
        return form
    if use.choice not in ("none", "auto"):
        form = None  # an answer that is all calls has no text
    if form is not None and not calls and use.choice == "auto":
        calls = functions  # calls may take the place of the structured text
    if form is None and not calls:
        return None
    # OpenAI: a named function is called exactly once.
    writer = _Writer(layout, use.parallel and not isinstance(use.choice, Mapping))
    if calls:
        writer.calls(calls)
    if use.choice in ("none", "auto"):
        writer.content(has_form=form is not None, has_calls=bool(calls))
    if not calls and writer.is_bare:
        return form
    notes = dict.fromkeys([*(() if form is None else form.notes), *writer.notes])
    return GrammarSource(None if form is None else form.body, writer.finish(), tuple(notes))


def _functions(tools: Sequence[Mapping[str, object]]) -> list[_Function]:
    if len(tools) > MAX_TOOLS:
        raise RequestError(f"[tools] {len(tools)} tools: expected at most {MAX_TOOLS}")
    functions = []
    for i, tool in enumerate(tools):
        function = tool.get("function", tool)
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise RequestError(f"[tools] tool {i} has no function with a name")
        parameters = function.get("parameters")
        if parameters is None:
            parameters = {"additionalProperties": False}
        is_strict = function.get("strict") is True
        functions.append(_Function(function["name"], parameters, is_strict, is_strict))
    return functions


def _wanted(functions: list[_Function], use: ToolUse) -> list[_Function]:
    """Return the functions whose calls are enforced."""
    choice = use.choice
    if choice == "none":
        return []
    if choice == "auto":
        if use.always and len(json.dumps([each.parameters for each in functions], default=repr)) <= MAX_HELD_BYTES:
            return [_Function(each.name, each.parameters, _is_readable(each), each.strict) for each in functions]
        held = use.always or not use.parallel or any(function.strict for function in functions)
        return functions if held else []
    if not functions:
        raise RequestError(f"[tools] tool_choice is {choice!r:.80} but the request has no tools")
    if choice == "required":
        return [_Function(function.name, function.parameters, True, function.strict) for function in functions]
    inner = choice.get("function") if isinstance(choice, Mapping) and choice.get("type") == "function" else None
    name = inner.get("name") if isinstance(inner, Mapping) else None
    if name is None:
        raise RequestError(
            f"[tools] tool_choice {choice!r:.80} is unknown: expected none, auto, required or a function's name"
        )
    for function in functions:
        if function.name == name:
            return [_Function(name, function.parameters, True, function.strict)]
    raise RequestError(f"[tools] tool_choice names {name!r:.80}, which is not among the tools")


def _is_readable(function: _Function) -> bool:
    """Return whether calls can be held to the function's parameters, at least in part.  Strict functions always are."""
    if not function.strict:
        try:
            enforceable(function.parameters, is_loose=True)
        except (RequestError, UnsupportedError):
            return False
    return True


def _type_names(argument: Argument) -> str:
    """Return Lark for the names of an argument's types, for wire formats that write them."""
    said = "string" if argument.schema is None else argument.schema.get("type", list(_OTHER_TYPES))
    names = {"integer": "number"}
    kinds = [said] if isinstance(said, str) else list(said) if isinstance(said, list) else []
    return f"({' | '.join(dict.fromkeys(lark_string(names.get(kind, kind)) for kind in kinds))})"


class _Writer:
    """Writes the frame: the rule ``start`` is reasoning followed by one of several alternatives of ``answer``."""

    def __init__(self, layout: AnswerLayout, parallel: bool) -> None:
        self._layout, self._parallel = layout, parallel
        self._lark = FrameWriter()
        self._syntax = layout.syntax()
        self._answers: list[str] = []
        self._framed = False
        self._trigger = ""
        self._value_end = ""
        self.notes: list[str] = []

    @property
    def is_bare(self) -> bool:
        """True if there is nothing around the structured text."""
        return self._layout.reasoning is None and not self._framed

    def calls(self, functions: Sequence[_Function]) -> None:
        """Allow calls as the answer.  Adds the rule ``calls`` and, for the body of a call, ``f0``, ``f1`` and so on."""
        name = self._layout.format_name
        syntax = self._syntax
        if syntax is None:
            if name is None:
                raise UnsupportedError("[tools] calls cannot be enforced: the model has no known tool-call format")
            raise UnsupportedError(f"[tools] calls cannot be enforced in the format {name}, which has no grammar")
        self._trigger = syntax.trigger
        if len({function.name for function in functions}) != len(functions):
            names = [function.name for function in functions]
            twice = next(name for name in names if names.count(name) > 1)
            raise RequestError(f"[tools] two tools have the name {twice!r:.80}")
        size = 0
        for i, function in enumerate(functions):
            body = self._call(syntax, function, i)
            size += len(body.encode("utf-8", "replace"))
            if size > MAX_TOOLS_BYTES:
                raise RequestError(f"[tools] the schemas of the tools have more than {MAX_TOOLS_BYTES} bytes together")
            self._lark.rule(f"f{i}", body)
        self._lark.rule("function", " | ".join(f"f{i}" for i in range(len(functions))))
        self._lark.rule("SPACE", r"/[ \n]{1,16}/")
        if syntax.string_mark:
            self._lark.free_text("STRING", (syntax.string_mark, syntax.end))
        if self._value_end:
            start = re.escape(syntax.value_start).replace("/", r"\/") or None
            self._lark.free_text("VALUE", (self._value_end,), start)
        # Some models begin with white space.  Parsers skip it, except before a name or a header.
        space = "" if (syntax.opening + syntax.call).startswith(("{name}", " ")) else "SPACE? "
        if syntax.lead:
            space += f"({self._lark.mark(syntax.lead)})? "
        self._lark.rule("calls", space + self._call_list(syntax, self._lark.mark(syntax.trigger)))
        self._answers.append("calls")

    def _call(self, syntax: CallSyntax, function: _Function, number: int) -> str:
        """Return Lark for a call without the trigger."""
        if not (_WORD if syntax.notation is Notation.PYTHON else _NAME).fullmatch(function.name):
            raise UnsupportedError(
                f"[tools] calls of a tool named {function.name!r:.80} cannot be enforced: use characters of "
                "A-Za-z0-9_.:/-, or a word of A-Za-z0-9_.- if the model writes calls as in Python"
            )
        parameters = function.parameters if function.strict else _FREE_ARGUMENTS
        if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
            raise RequestError(f"[tools] the parameters of {function.name} are not the schema of an object")
        parameters = {"type": "object", **parameters}
        try:
            read = enforceable(parameters, is_loose=not function.is_exact)
            enforced = read.schema if isinstance(read.schema, Mapping) else _FREE_ARGUMENTS
            loose = Looseness(not function.is_exact)
            if syntax.notation is not Notation.JSON:
                arguments = self._in_notation(syntax, enforced, function, number, loose)
            elif syntax.argument:
                arguments = self._arguments(syntax, enforced, function, number, loose)
            else:
                arguments = json_lark(enforced)
            self.notes += [f"{function.name}.{note}" for note in (*read.notes, *loose.notes)]
        except (RequestError, UnsupportedError) as error:
            raise type(error)(f"{error} (parameters of the tool {function.name})") from error
        text = syntax.call if syntax.opening else syntax.call.removeprefix(syntax.trigger)
        return self._text(text, {"arguments": arguments, "name": lark_string(function.name)})

    def _in_notation(
        self, syntax: CallSyntax, parameters: object, function: _Function, number: int, loose: Looseness
    ) -> str:
        listed = parameters if function.strict else function.parameters
        assert isinstance(listed, Mapping)
        writer = NotationWriter(self._lark, f"f{number}_", syntax.string_mark, loose)
        return writer.arguments(listed, strict=function.strict)

    def _arguments(
        self, syntax: CallSyntax, parameters: object, function: _Function, number: int, loose: Looseness
    ) -> str:
        """Return Lark for arguments that are written one by one."""
        listed = parameters if function.strict else function.parameters
        assert isinstance(listed, Mapping)
        before, _, behind = syntax.argument.partition("{value}")
        end = behind.partition("{")[0]
        rest = behind[len(end) :]
        parts = []
        for i, argument in enumerate(arguments_of(listed, strict=function.strict, end=end, loose=loose)):
            is_text = "true" if argument.is_text else "false"
            texts = {"key": syntax.escaped(argument.key), "is_text": is_text}
            start = self._text(before, {"type": _type_names(argument)}, texts)
            if argument.schema is not None:
                value = f"{json_lark(argument.schema)} {self._lark.mark(end)}"
            elif argument.choices:
                value = f"({' | '.join(map(lark_string, argument.choices))}) {self._lark.mark(end)}"
            elif argument.patterns:
                self._lark.rule(f"F{number}_TEXT_{i}", " & ".join(map(lark_regex, argument.patterns)))
                value = f"F{number}_TEXT_{i} {self._lark.mark(end)}"
            else:
                self._value_end = end.strip()
                value = self._lark.mark(end, before="VALUE")
            part = f"{start} {value} {self._text(rest, {}, texts)}"
            parts.append(part if argument.required else f"({part})?")
        return " ".join(parts)

    def _text(self, template: str, values: Mapping[str, str], texts: Mapping[str, str] | None = None) -> str:
        """Return Lark for a text with placeholders, filled with Lark from ``values`` or with literal ``texts``."""
        pieces = []
        for i, piece in enumerate(_PLACES.split(template)):
            if i % 2:
                pieces.append({**_PIECES, **values}[piece])
                continue
            pieces.append(self._lark.mark(_TEXTS.sub(lambda place: (texts or {})[place[1]], piece)))
        return " ".join(filter(None, pieces))

    def _call_list(self, syntax: CallSyntax, trigger: str) -> str:
        """Return Lark for calls after the rule ``trigger``."""
        lark = self._lark
        in_call = "" if syntax.opening else lark.mark(syntax.trigger)
        parts = [trigger, self._text(syntax.opening.removeprefix(syntax.trigger), {}), "function"]
        if self._parallel and syntax.separator is not None:
            parts.append(f"({self._text(syntax.separator, {})} {in_call} function){{0,{MAX_CALLS - 1}}}")
        return " ".join(filter(None, [*parts, self._text(syntax.closing, {})]))

    def content(self, *, has_form: bool, has_calls: bool) -> None:
        """Allow text as the answer, structured if there is a form."""
        lark, layout, syntax = self._lark, self._layout, self._syntax
        before, behind = "", ""
        if layout.frames_content:
            if syntax is None or syntax.content is None:
                raise UnsupportedError(f"[grammar] answers cannot be structured in the format {layout.format_name}")
            before, behind = syntax.content
            self._framed = bool(before or behind or syntax.reasoning)
        if has_form:
            self._answers.append(f"{lark.mark(before)} @body {lark.mark(behind)}")
            return
        assert has_calls
        assert syntax is not None
        bare = not before and not syntax.trigger
        # Text that only looks like a call would be parsed as one.
        avoided = tuple(text for text in (*layout.starts, syntax.trigger) if text)
        lark.free_text("TEXT", avoided, r"[ \n\r\t]*[\[{]" if bare else None)
        if not syntax.trigger:
            text = lark.mark(behind, before="TEXT") if behind else "TEXT?"
            self._answers.append(f"{lark.mark(before)} {text}")
            if syntax.joint is not None:
                self._answers.append(f"{lark.mark(before)} {lark.mark(syntax.joint, before='TEXT')} calls")
            return
        lark.rule("later_calls", self._call_list(syntax, lark.mark(syntax.trigger, before="TEXT")))
        several = self._parallel and not syntax.opening and syntax.separator is not None
        often = f"{{0,{MAX_CALLS}}}" if several else "?"
        self._answers = [f"later_calls{often} TEXT?"]

    def finish(self) -> Frame:
        """Return the frame."""
        lark, tags, syntax = self._lark, self._layout.reasoning, self._syntax
        parts = []
        if tags is not None:
            lark.free_text("REASONING")
            end = lark.mark(tags.end, before="REASONING")
            start = "" if tags.opened else lark.mark(tags.start)
            parts.append(f"{start} {end} WS?" if tags.opened else f"(WS? {start} {end} WS?)?")
            lark.rule("WS", WHITESPACE_AFTER)
        elif syntax is not None and syntax.reasoning is not None and self._layout.may_reason:
            begin, end = syntax.reasoning
            lark.free_text("REASONING")
            parts.append(f"({lark.mark(begin)} {lark.mark(end, before='REASONING')}){{0,{MAX_CALLS}}}")
        lark.rule("start", " ".join([*parts, "answer"]))
        lark.rule("answer", " | ".join(self._answers))
        return lark.frame()
