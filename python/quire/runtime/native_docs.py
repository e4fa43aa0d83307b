"""Docstrings of native classes at run time, read from their stubs."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from types import ModuleType

__all__ = ["describe"]


def describe(module: ModuleType) -> None:
    """Give the classes of a native module the docstrings of its stub."""
    docs = _docs(module.__name__)
    for name, value in vars(module).items():
        if isinstance(value, type) and value.__module__ == module.__name__ and not value.__doc__:
            value.__doc__ = docs.get(name)


@cache
def _docs(module: str) -> dict[str, str]:
    """Return the docstring of each class, followed by those of its methods, which cannot have any at run time."""
    path = Path(__file__).parents[1].joinpath(*module.split(".")[1:]).with_suffix(".pyi")
    if not path.is_file():  # a program that was packed without the stubs
        return {}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name: _of_class(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _of_class(node: ast.ClassDef) -> str:
    parts = [ast.get_docstring(node) or ""]
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and (text := ast.get_docstring(member)):
            lines = "\n".join(f"    {line}".rstrip() for line in text.splitlines())
            parts.append(f"{_heading(member)}\n{lines}")
    return "\n\n".join(part for part in parts if part)


def _heading(member: ast.FunctionDef) -> str:
    decorators = {ast.unparse(each) for each in member.decorator_list}
    if "property" in decorators:
        return f"{member.name}: {ast.unparse(member.returns)}" if member.returns else member.name
    returns = "" if member.returns is None or member.name == "__init__" else f" -> {ast.unparse(member.returns)}"
    own = member.args
    if own.args and own.args[0].arg in ("self", "cls"):
        own = ast.arguments(
            own.posonlyargs, own.args[1:], own.vararg, own.kwonlyargs, own.kw_defaults, own.kwarg, own.defaults
        )
    return f"{member.name}({ast.unparse(own)}){returns}"
