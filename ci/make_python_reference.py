"""Write the reference in docs/python.md: every public name with its signature and docstring.

    PYTHONPATH=python python ci/make_python_reference.py

Read from the sources and stubs, so that native classes are included.  The part above the mark is written by hand.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from pathlib import Path

from quire.params.sampling import PARAMETERS
from quire.params.signatures import UNPACKED, keywords_of

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "python" / "quire"
PAGE = ROOT / "docs" / "python.md"
MARK = "<!-- Below this line ci/make_python_reference.py writes. -->\n"
# Classes without their methods: other pages describe them, or the methods are only for building engines.
BRIEF = {"BlockPool", "BlockTable", "DType"}
# Titles on the page for sections of docstrings.
_SECTIONS = {"Args:": "Arguments", "Returns:": "Returns", "Raises:": "Errors"}


def module_path(name: str) -> Path:
    """Return the file of a module of the package: the stub of a native one, else its source."""
    base = PACKAGE.joinpath(*name.split("."))
    for path in (base.with_suffix(".pyi"), base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    raise FileNotFoundError(base)


def found(module: str, name: str) -> ast.ClassDef | list[ast.FunctionDef]:
    """Return the definitions of a name, several for overloads, following imports between modules."""
    tree = ast.parse(module_path(module).read_text(encoding="utf-8"))
    functions = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node
        if isinstance(node, ast.FunctionDef) and node.name == name:
            functions.append(node)
    if functions:
        return functions
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            return found(imported(module, node), name)
    raise LookupError(f"{module}.{name}")


def imported(module: str, node: ast.ImportFrom) -> str:
    """Return the module that an import in another module refers to, without the package's name."""
    if not node.level:
        return (node.module or "").removeprefix("quire.")
    is_package = module_path(module).name == "__init__.py"
    parts = module.split(".") if is_package else module.split(".")[:-1]
    kept = parts[: len(parts) - (node.level - 1)]
    return ".".join([*kept, *([node.module] if node.module else [])])


def signature(function: ast.FunctionDef | ast.AsyncFunctionDef, *, name: str | None = None, bound: bool = True) -> str:
    """Return the signature as code would call it, with types."""
    given = function.args
    drop = bound and bool(given.args) and given.args[0].arg in ("self", "cls")
    arguments = ast.arguments(
        given.posonlyargs, given.args[drop:], given.vararg, given.kwonlyargs, given.kw_defaults, given.kwarg,
        given.defaults,
    )  # fmt: skip
    text = ast.unparse(arguments).removeprefix("/, ")
    if given.kwarg is not None:
        text = text.replace(f"**{ast.unparse(given.kwarg)}", keywords(given.kwarg, bool(given.kwonlyargs)))
    returns = "" if function.returns is None or name is not None else f" -> {ast.unparse(function.returns)}"
    word = "await " if isinstance(function, ast.AsyncFunctionDef) else ""
    return f"{word}{name or function.name}({text}){returns}"


def keywords(rest: ast.arg, has_star: bool) -> str:
    """Return ``**rest`` as it is, or the keywords it stands for; those of sampling by the name of their class."""
    unpacked = UNPACKED.get(ast.unparse(rest.annotation)) if rest.annotation else None
    if unpacked is None:
        return f"**{ast.unparse(rest)}"
    shown = [each for each in keywords_of(unpacked) if each.name not in PARAMETERS]
    texts = [f"{each.name}: {each.annotation}={each.default!r}" for each in shown]
    return ", ".join([*([] if has_star else ["*"]), *texts, "**sampling: fields of SamplingParams"])


def documented(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return the docstring as Markdown; sections in Google style (``Args:``) become lists."""
    rows: list[str] = []
    section = ""
    for line in (ast.get_docstring(node) or "").splitlines():
        text, indent = line.strip(), len(line) - len(line.lstrip())
        if not indent and text in _SECTIONS:
            section = text
            rows += [f"{_SECTIONS[text]}:", ""] if text != "Returns:" else []
        elif section == "Returns:" and indent:
            rows[-1:] = [f"{rows[-1]} {text}"] if rows[-1] else ["", f"Returns: {text}"]
        elif section and indent == 4:
            name, _, rest = text.partition(": ")
            rows.append(f"- `{name}`: {rest}")
        elif section and indent > 4:
            rows[-1] += f" {text}"
        else:
            section = section if not text else ""
            # Code stays indented, as in Markdown.
            rows.append(line if indent >= 8 else text)
    text = "\n".join(row if row[:1] == " " else _wrapped(row) for row in rows)
    return text.replace("``", "`").replace("::\n", ":\n")


def _wrapped(row: str) -> str:
    """Wrap a long line; continuation lines of a list item are indented."""
    indent = "  " if row.startswith("- ") else ""
    return textwrap.fill(
        row, 116, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, fix_sentence_endings=False
    )


def decorators(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    return {ast.unparse(each) for each in node.decorator_list}


def members(node: ast.ClassDef, *, brief: bool = False) -> list[str]:
    """Return the public methods and properties of a class that have a docstring; ``brief``: its first paragraph."""
    rows = []
    for member in node.body:
        if not isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) or member.name.startswith("_"):
            continue
        if "overload" in decorators(member) or not ast.get_docstring(member):
            continue
        if decorators(member) & {"property", "cached_property"}:
            returns = f": {ast.unparse(member.returns)}" if member.returns else ""
            heading = f"{member.name}{returns}"
        else:
            heading = signature(member)
        text = documented(member)
        text = (text.partition("\n\n")[0] if brief else text).replace("\n", "\n  ")
        rows.append(f"- `{heading}`\n\n  {text}\n".replace("\n  \n", "\n\n"))
    return rows


def constructor(name: str, node: ast.ClassDef) -> str:
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and member.name == "__init__":
            return f"`{signature(member, name=name)}`\n\n"
    fields = [m for m in node.body if isinstance(m, ast.AnnAssign)]
    if fields and any("dataclass" in ast.unparse(each) for each in node.decorator_list):
        shown = ", ".join(ast.unparse(_with_default(field)) for field in fields)
        return f"`{name}({shown})`\n\n"
    return ""


def _with_default(field: ast.AnnAssign) -> ast.AnnAssign:
    """Return a field as its user sees it: with the default of its declaration (quire/params)."""
    if isinstance(field.value, ast.Call) and ast.unparse(field.value.func) in ("declared", "_option"):
        return ast.AnnAssign(field.target, field.annotation, field.value.args[0], field.simple)
    return field


def entry(name: str, module: str) -> str:
    """Return the section of a public name."""
    node = found(module, name)
    if isinstance(node, list):
        texts = [documented(one) for one in node if ast.get_docstring(one)]
        headings = "\n\n".join(f"`{signature(one, bound=False)}`" for one in node)
        return f"### {name}\n\n{headings}\n\n{' '.join(texts)}\n"
    init = constructor(name, node)
    if name in ("LLM", "AsyncLLM"):
        base = found("engine.llm_base", "LLMBase")
        assert isinstance(base, ast.ClassDef)
        init = constructor(name, base)
        # Methods of AsyncLLM share the docstrings of LLM's.
        rows = members(node, brief=name == "AsyncLLM") + members(base)
    else:
        rows = [] if name in BRIEF else members(node)
    return f"### {name}\n\n{init}{documented(node)}\n\n" + "\n".join(rows)


def reference() -> str:
    """Return the generated part of the page."""
    where = dict(_where())
    errors = [name for name in _all() if name not in where]
    rows = [entry(name, where[name]) for name in _all() if name in where and name != "__version__"]
    errors_text = "\n".join(f"- `{name}`: {_error_doc(name)}" for name in errors)
    parts = ["\n## Reference\n", *rows, "### Errors\n\nAll are of `quire.errors`.\n\n" + errors_text + "\n"]
    return "\n".join(part.rstrip() + "\n" for part in parts)


def _error_doc(name: str) -> str:
    node = found("errors", name)
    assert isinstance(node, ast.ClassDef)
    return inspect.cleandoc(documented(node)).replace("\n", " ")


def _where() -> dict[str, str]:
    import quire

    return quire._WHERE


def _all() -> list[str]:
    import quire

    return list(quire.__all__)


def page(text: str) -> str:
    """Return the page with a new reference."""
    return text.partition(MARK)[0] + MARK + reference()


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
