"""Translate the templates of Ollama's Modelfiles, which are written in Go's template language, to Jinja.

Ollama merges neighbouring messages of one role first.  A template that does not read ``.Messages`` is rendered once for
each question with its answer, the last time up to the answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from quire.chat.go_syntax import (
    Action,
    Assign,
    Branch,
    Call,
    Expression,
    Field,
    Literal,
    Node,
    Text,
    Variable,
    parsed,
    refusal,
)

__all__ = ["jinja_of"]

# Fields of the root, by the mode of the template.
_ANY = {
    "System": "go.system",
    "Tools": "(tools or [])",
    "Think": "(enable_thinking is defined and enable_thinking)",
    "IsThinkSet": "(enable_thinking is defined)",
    "ThinkLevel": "(reasoning_effort if reasoning_effort is defined else '')",
    "Suffix": "''",
}
_OF_MESSAGES = {**_ANY, "Messages": "go.items", "Response": "''", "Prompt": "''"}
_OF_TURNS = {**_ANY, "Prompt": "go.prompt", "Response": "go.response"}
# Fields of messages, tools and calls.
_FIELDS = {
    "Role": "role", "Content": "content", "Thinking": "thinking", "ToolCalls": "tool_calls", "ToolName": "tool_name",
    "Function": "function", "Name": "name", "Arguments": "arguments", "Description": "description", "Type": "type",
    "Parameters": "parameters", "Properties": "properties", "Required": "required", "Enum": "enum", "ID": "id",
    "ToolCallID": "tool_call_id",
}  # fmt: skip
_LISTS = ("ToolCalls", "Required", "Enum")
# Fields and elements that are written as JSON.
_OBJECTS = ("Arguments", "Tools", "Parameters", "Properties", "Function", "Required", "Enum")
_COMPACT = "tojson(separators=(',', ':'))"
_COMPARISONS = {"ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}

# Merge messages as Ollama does; ``go.items`` has the result.
_COLLATED = (
    "{%- set go = namespace(items=[], system='', prompt='', response='') -%}"
    "{%- for m in messages -%}"
    "{%- if m['role'] == 'system' -%}"
    "{%- set go.system = go.system + ('\\n\\n' if go.system else '') + m['content'] -%}{%- endif -%}"
    "{%- if go.items and go.items[-1]['role'] == m['role'] and m['role'] != 'tool' -%}"
    "{%- set both = go.items[-1]['content'] + '\\n\\n' + m['content'] -%}"
    "{%- set go.items = go.items[:-1] + [dict(go.items[-1], content=both)] -%}"
    "{%- else -%}{%- set go.items = go.items + [m] -%}{%- endif -%}"
    "{%- endfor -%}"
)


def jinja_of(source: str) -> str:
    """Return the template in Jinja.

    Raises:
        UnsupportedError: It has a function, a field or a statement that is not translated; the message names it.
    """
    nodes = parsed(source)
    names = {name.lower() for name in _identifiers(nodes)}
    if "messages" in names:
        return _COLLATED + _Writer(_OF_MESSAGES).written(nodes, _Scope())
    if "response" not in names:
        nodes = [*nodes, Action(Field(("Response",)))]
    turn = _Writer(_OF_TURNS).written(nodes, _Scope())
    kept, _ = _until_response(nodes)
    last = _Writer(_OF_TURNS).written(kept, _Scope())
    return (
        f"{_COLLATED}{{%- set go.system = '' -%}}{{%- for m in go.items -%}}"
        "{%- if m['role'] == 'system' and (go.prompt or go.response) or m['role'] == 'user' and go.response -%}"
        f"{turn}{{%- set go.system = '' -%}}{{%- set go.prompt = '' -%}}{{%- set go.response = '' -%}}{{%- endif -%}}"
        "{%- if m['role'] == 'system' -%}{%- set go.system = m['content'] -%}"
        "{%- elif m['role'] == 'user' -%}{%- set go.prompt = m['content'] -%}"
        "{%- elif m['role'] == 'assistant' -%}{%- set go.response = m['content'] -%}{%- endif -%}"
        f"{{%- endfor -%}}{last}"
    )


def _identifiers(nodes: list[Node]) -> set[str]:
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, Branch):
            found |= _names(node.value) | _identifiers(node.body) | _identifiers(node.other)
        elif not isinstance(node, Text):
            found |= _names(node.value)
    return found


def _names(value: Expression) -> set[str]:
    if isinstance(value, Call):
        return {name for each in value.arguments for name in _names(each)}
    if isinstance(value, Field):
        return {*value.names} | (_names(value.of) if value.of is not None else set())
    return {value.name, *value.names} if isinstance(value, Variable) else set()


def _until_response(nodes: list[Node]) -> tuple[list[Node], bool]:
    """Return the nodes up to the first that writes the answer, and whether there is one."""
    kept: list[Node] = []
    for node in nodes:
        if isinstance(node, Branch):
            body, is_in_body = _until_response(node.body)
            other, is_in_other = ([], False) if is_in_body else _until_response(node.other)
            kept.append(replace(node, body=body, other=other))
            if is_in_body or is_in_other:
                return kept, True
            continue
        kept.append(node)
        if isinstance(node, Action) and "Response" in _names(node.value):
            return kept, True
    return kept, False


@dataclass(frozen=True)
class _Scope:
    """The dot, None at the root; and variables: their Jinja names, and whether they hold objects."""

    dot: str | None = None
    is_object: bool = False
    variables: Mapping[str, tuple[str, bool]] = field(default_factory=dict)
    depth: int = 0


class _Writer:
    """Writes nodes as Jinja, with tags that remove all space around them and texts as constants."""

    def __init__(self, root: Mapping[str, str]) -> None:
        self.root = root

    def written(self, nodes: list[Node], scope: _Scope) -> str:
        parts = []
        for node in nodes:
            if isinstance(node, Text):
                parts.append(f"{{{{- {json.dumps(node.text, ensure_ascii=False)} -}}}}")
            elif isinstance(node, Action):
                value = self.expression(node.value, scope)
                parts.append(f"{{{{- {value}{f' | {_COMPACT}' if self.is_object(node.value, scope) else ''} -}}}}")
            elif isinstance(node, Assign):
                name = f"go.v_{node.name}"
                parts.append(f"{{%- set {name} = {self.expression(node.value, scope)} -%}}")
                known = {**scope.variables, node.name: (name, self.is_object(node.value, scope))}
                scope = replace(scope, variables=known)
            else:
                parts.append(self.branch(node, scope))
        return "".join(parts)

    def branch(self, node: Branch, scope: _Scope) -> str:
        value = self.expression(node.value, scope)
        deeper, known = scope.depth + 1, dict(scope.variables)
        if node.kind == "range":
            one = f"r{deeper}"
            holds_objects = self.is_list_of_objects(node.value)
            if node.names:
                known[node.names[-1]] = one, holds_objects
            if len(node.names) > 1:
                known[node.names[0]] = f"i{deeper}", False
            inner = replace(scope, dot=one, is_object=holds_objects, variables=known, depth=deeper)
            body = f"{{%- set i{deeper} = loop.index0 -%}}{self.written(node.body, inner)}"
            other = self.written(node.other, replace(scope, depth=deeper)) if node.other else ""
            return f"{{%- for {one} in {value} -%}}{body}{f'{{%- else -%}}{other}' if other else ''}{{%- endfor -%}}"
        inner = replace(scope, depth=deeper)
        if node.kind == "with":
            inner = replace(inner, dot=f"({value})", is_object=self.is_object(node.value, scope))
        if node.names:
            known[node.names[0]] = f"({value})", self.is_object(node.value, scope)
            inner = replace(inner, variables=known)
        other = self.written(node.other, replace(scope, depth=deeper))
        body = self.written(node.body, inner)
        return f"{{%- if {value} -%}}{body}{f'{{%- else -%}}{other}' if other else ''}{{%- endif -%}}"

    def is_object(self, value: Expression, scope: _Scope) -> bool:
        """Return whether Ollama writes a value as JSON."""
        if isinstance(value, Variable) and not value.names:
            return bool(value.name) and scope.variables.get(value.name, ("", False))[1]
        if isinstance(value, Field) and not value.names:
            return scope.is_object
        return isinstance(value, Field | Variable) and value.names[-1] in _OBJECTS

    def is_list_of_objects(self, value: Expression) -> bool:
        return isinstance(value, Field | Variable) and bool(value.names) and value.names[-1] in ("Tools", "ToolCalls")

    def expression(self, value: Expression, scope: _Scope) -> str:
        if isinstance(value, Literal):
            return "none" if value.value is None else json.dumps(value.value, ensure_ascii=False)
        if isinstance(value, Call):
            return self.call(value.name, [self.expression(each, scope) for each in value.arguments])
        if isinstance(value, Field) and value.of is not None:
            return self.fields(self.expression(value.of, scope), value.names)
        if isinstance(value, Variable) and value.name:
            if value.name not in scope.variables:
                raise refusal(f"variable ${value.name} where it is not set")
            return self.fields(scope.variables[value.name][0], value.names)
        in_root = isinstance(value, Variable) or scope.dot is None
        return self.of_root(value.names) if in_root else self.fields(scope.dot or "", value.names)

    def of_root(self, names: tuple[str, ...]) -> str:
        if not names:
            raise refusal("the root as a value")
        if names[0] not in self.root:
            raise refusal(f".{names[0]}")
        return self.fields(self.root[names[0]], names[1:])

    def fields(self, base: str, names: tuple[str, ...]) -> str:
        for name in names:
            if name not in _FIELDS:
                raise refusal(f".{name}")
            base = f"{base}['{_FIELDS[name]}']"
            if name == "Thinking":
                base = f"({base} or {base.replace('thinking', 'reasoning_content')} or '')"
            elif name in _LISTS:
                base = f"({base} or [])"
        return base

    def call(self, name: str, arguments: list[str]) -> str:
        n = len(arguments)
        if name == "eq" and n >= 2:
            return "(" + " or ".join(f"{arguments[0]} == {each}" for each in arguments[1:]) + ")"
        if name in _COMPARISONS and n == 2:
            return f"({arguments[0]} {_COMPARISONS[name]} {arguments[1]})"
        if name in ("and", "or") and n:
            return "(" + f" {name} ".join(arguments) + ")"
        if name == "slice" and n in (2, 3):
            return f"{arguments[0]}[{':'.join((*arguments[1:], ''))[: None if n == 2 else -1]}]"
        if name == "index" and n == 2:
            return f"{arguments[0]}[{arguments[1]}]"
        one: dict[str, Callable[[str], str]] = {
            "not": "(not {})".format, "len": "({} | length)".format, "json": f"({{}} | {_COMPACT})".format,
        }  # fmt: skip
        if name in one and n == 1:
            return one[name](arguments[0])
        raise refusal(f"function '{name}' with {n} arguments")
