"""Check that the stubs of the compiled modules match the modules.

    PYTHONPATH=python python ci/check_stubs.py          # after ci/build; without PYTHONPATH: the installed package

Every public name of ``quire._native.*`` and ``quire._tokenizer.*`` is in its .pyi, and every name of a .pyi exists:
classes, functions, methods, properties, constants, and the names and defaults of parameters if the module exposes them.
Stub classes and functions have docstrings.  Names only for types (aliases, protocols) may exist in stubs alone.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
import types
from dataclasses import dataclass, field
from pathlib import Path

PACKAGES = ("_native", "_tokenizer")
# Attributes that the module's compiler adds.
GENERATED = re.compile(r"^(__\w+__|__\w+_cython__|_pybind11_\w+|_\w+)$")

# A parameter of a signature: its name (with * or **), and whether it has a default.
Parameter = tuple[str, bool]


@dataclass
class StubScope:
    """The names in a stub module or in one of its classes."""

    functions: dict[str, list[ast.FunctionDef]] = field(default_factory=dict)
    attributes: set[str] = field(default_factory=set)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)


def read_scope(body: list[ast.stmt]) -> StubScope:
    scope = StubScope()
    for node in body:
        if isinstance(node, ast.FunctionDef):
            scope.functions.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            if "TypeAlias" not in ast.unparse(node.annotation):
                scope.attributes.add(node.target.id)
        elif isinstance(node, ast.ClassDef) and not any("Protocol" in ast.unparse(base) for base in node.bases):
            scope.classes[node.name] = node
    return scope


def is_property(node: ast.FunctionDef) -> bool:
    return any(ast.unparse(mark) == "property" or ".setter" in ast.unparse(mark) for mark in node.decorator_list)


def stub_parameters(node: ast.FunctionDef) -> list[Parameter]:
    a = node.args
    positional = [*a.posonlyargs, *a.args]
    first_default = len(positional) - len(a.defaults)
    found = [(p.arg, i >= first_default) for i, p in enumerate(positional)]
    if a.vararg:
        found.append((f"*{a.vararg.arg}", False))
    elif a.kwonlyargs:
        found.append(("*", False))
    found += [(p.arg, default is not None) for p, default in zip(a.kwonlyargs, a.kw_defaults, strict=True)]
    if a.kwarg:
        found.append((f"**{a.kwarg.arg}", False))
    return [p for p in found if p[0] not in {"self", "cls"}]


def split_parameters(text: str) -> list[Parameter]:
    """Split ``a: list[int, str], *, b: float = 0.5`` at the commas outside of brackets and quotes."""
    parts, depth, quote, current = [], 0, "", ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "([{<":
            depth += 1
        elif letter in ")]}>":
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append(current)
            current = ""
            continue
        current += letter
    found = [(part.partition(":")[0].partition("=")[0].strip(), "=" in part) for part in [*parts, current]]
    return [p for p in found if p[0] not in {"", "self", "cls", "/"}]


def native_parameters(value: object, name: str) -> list[list[Parameter]]:
    """Return each overload's parameters as the module exposes them; nothing if it does not."""
    text = value.__doc__ or ""
    signatures = re.findall(rf"^(?:\d+\. )?{re.escape(name)}\((.*)\) -> ", text, re.MULTILINE)
    if signatures:
        return [split_parameters(found) for found in signatures]
    try:
        parameters = inspect.signature(value).parameters.values()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return []
    marks = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    found, starred = [], False
    for p in parameters:
        if p.kind is inspect.Parameter.KEYWORD_ONLY and not starred:
            found.append(("*", False))
        starred |= p.kind in {inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_POSITIONAL}
        found.append((marks.get(p.kind, "") + p.name, p.default is not p.empty))
    found = [p for p in found if p[0] not in {"self", "cls"}]
    # Python's signature for any compiled constructor.
    return [] if found == [("*args", False), ("**kwargs", False)] else [found]


def unnamed(parameters: list[Parameter]) -> bool:
    return any(re.fullmatch(r"arg\d+", name) for name, _ in parameters)


class Checker:
    """Collects the differences."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def check_function(self, place: str, nodes: list[ast.FunctionDef], value: object) -> None:
        native = native_parameters(value, nodes[0].name)
        named = [found for found in native if not unnamed(found)]
        if not native:
            return
        for node in nodes:
            wanted = stub_parameters(node)
            same_length = any(len(found) == len(wanted) for found in native if unnamed(found))
            if wanted not in named and not same_length:
                self.errors.append(f"{place}: the stub has ({_show(wanted)}) but the module {_show_all(native)}")

    def check_class(self, place: str, node: ast.ClassDef, value: type) -> None:
        stub = read_scope(node.body)
        if ast.get_docstring(node) is None:
            self.errors.append(f"{place}: the stub must have a docstring")
        declared = set(stub.functions) | stub.attributes | set(stub.classes)
        native = _members(value, {ast.unparse(base) for base in node.bases})
        self._compare(place, {n for n in declared if not GENERATED.match(n)}, native)
        for name in sorted(declared):
            member = inspect.getattr_static(value, name, None)
            if member is None:
                if GENERATED.match(name):
                    self.errors.append(f"{place}.{name}: in the stub but not in the module")
                continue
            nodes = stub.functions.get(name)
            if nodes is None:
                continue
            if is_property(nodes[0]) != _is_data(member):
                self.errors.append(f"{place}.{name}: must be a property in both or in neither")
            elif not is_property(nodes[0]) and (name == "__init__" or not GENERATED.match(name)):
                self.check_function(f"{place}.{name}", nodes, getattr(value, name))

    def check_module(self, module: types.ModuleType, stub: ast.Module) -> None:
        scope = read_scope(stub.body)
        place = module.__name__
        if ast.get_docstring(stub) is None:
            self.errors.append(f"{place}: the stub must have a docstring")
        native = {name for name, value in vars(module).items() if not GENERATED.match(name) and _is_own(value, module)}
        declared = set(scope.functions) | scope.attributes | set(scope.classes)
        self._compare(place, {name for name in declared if not GENERATED.match(name)}, native)
        for name in sorted(declared & native):
            value = getattr(module, name)
            if name in scope.functions:
                self.check_function(f"{place}.{name}", scope.functions[name], value)
                if not any(ast.get_docstring(node) for node in scope.functions[name]):
                    self.errors.append(f"{place}.{name}: the stub must have a docstring")
            elif name in scope.classes and isinstance(value, type):
                self.check_class(f"{place}.{name}", scope.classes[name], value)

    def _compare(self, place: str, declared: set[str], native: set[str]) -> None:
        self.errors += [f"{place}.{name}: in the stub but not in the module" for name in sorted(declared - native)]
        self.errors += [f"{place}.{name}: in the module but not in the stub" for name in sorted(native - declared)]


def _members(value: type, stub_bases: set[str]) -> set[str]:
    """Return the public names of a class and of its bases, except bases with stubs of their own."""
    found: set[str] = set()
    for cls in value.__mro__:
        if cls is not value and (cls.__name__ in stub_bases or cls.__module__ in {"builtins", "pybind11_builtins"}):
            continue
        found |= {name for name in vars(cls) if not GENERATED.match(name)}
    return found


def _is_data(member: object) -> bool:
    return isinstance(member, property) or inspect.isdatadescriptor(member)


def _is_own(value: object, module: types.ModuleType) -> bool:
    """Return False for the module's own imports, which Cython leaves in its namespace."""
    if isinstance(value, types.ModuleType):
        return False
    # A compiled module inside a package may only know its last name.
    return getattr(value, "__module__", None) in {module.__name__, module.__name__.rpartition(".")[2], None}


def _show(parameters: list[Parameter]) -> str:
    return ", ".join(name + ("=" if default else "") for name, default in parameters)


def _show_all(overloads: list[list[Parameter]]) -> str:
    return " or ".join(f"({_show(found)})" for found in overloads)


def main() -> int:
    stubs = Path(__file__).resolve().parent.parent / "python" / "quire"
    checker = Checker()
    n_modules = 0
    for package in PACKAGES:
        native = importlib.import_module(f"quire.{package}")
        expected = {path.stem for path in (stubs / package).glob("*.pyi")} - {"__init__"}
        if package == "_native":
            held = {name for name, value in vars(native).items() if isinstance(value, types.ModuleType)}
            checker._compare(f"quire.{package}", expected, held)
            expected &= held
        for stem in sorted(expected):
            try:
                module = importlib.import_module(f"quire.{package}.{stem}")
            except ModuleNotFoundError:
                checker.errors.append(f"quire.{package}.{stem}: has a stub but no module")
                continue
            source = (stubs / package / f"{stem}.pyi").read_text(encoding="utf-8")
            checker.check_module(module, ast.parse(source))
            n_modules += 1
    for error in checker.errors:
        print(error)
    print(f"{n_modules} modules, {len(checker.errors)} errors")
    return 1 if checker.errors else 0


if __name__ == "__main__":
    sys.exit(main())
