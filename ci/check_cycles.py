#!/usr/bin/env python3
"""Find import cycles among the modules of python/quire, including imports for types and inside functions.

Every import statement counts, also under `TYPE_CHECKING`, inside a function, or in a stub.  The files of a cycle cannot
be read, tested or moved without each other.  Exits with 1 and lists each cycle.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

SOURCES = Path(__file__).resolve().parent.parent / "python"


def find_modules(sources: Path) -> dict[str, Path]:
    """Return the file of each module; for a compiled module, its stub."""
    modules: dict[str, Path] = {}
    for file in sorted([*sources.rglob("*.pyi"), *sources.rglob("*.py")]):
        parts = file.relative_to(sources).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return modules


def imports_of(module: str, file: Path, modules: dict[str, Path]) -> set[str]:
    """Return the modules that a module imports."""
    package = module.split(".") if file.stem == "__init__" else module.split(".")[:-1]
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"), str(file))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                name = f"{base}.{alias.name}"
                found.add(name if name in modules else base)
    return (found & modules.keys()) - {module}


def find_circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one module, by Tarjan's algorithm."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    circles: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        on_stack.add(module)
        for other in sorted(graph[module]):
            if other not in index:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in on_stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            component: list[str] = []
            while module not in component:
                component.append(stack.pop())
                on_stack.remove(component[-1])
            if len(component) > 1:
                circles.append(sorted(component))

    for module in sorted(graph):
        if module not in index:
            visit(module)
    return circles


def read_graph(sources: Path) -> dict[str, set[str]]:
    modules = find_modules(sources)
    return {module: imports_of(module, file, modules) for module, file in modules.items()}


def main() -> int:
    graph = read_graph(Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCES)
    circles = find_circles(graph)
    for circle in circles:
        print("import cycle:")
        for module in circle:
            print(f"  {module} imports {', '.join(sorted(graph[module] & set(circle)))}")
    return 1 if circles else 0


if __name__ == "__main__":
    sys.exit(main())
