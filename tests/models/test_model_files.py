"""The layout of model files: wiring first, the mapping of checkpoints below a marker, names that say what they hold."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import quire.models
import quire.nn

MARKER = "# --- checkpoint ---"
MODELS, LAYERS = Path(quire.models.__file__).parent, Path(quire.nn.__file__).parent
FILES = sorted(
    path for path in MODELS.glob("*.py") if "ARCHES = " in path.read_text() or "HF_HEADS = " in path.read_text()
)
LETTERS = set("mwcbes")  # of keys, weights, config, block, experts and step, once


def defined(statement: ast.stmt) -> Iterator[str]:
    """Names that a statement of a module defines, but for imports."""
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        yield statement.name
    elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for node in (node for target in targets for node in ast.walk(target)):
            if isinstance(node, ast.Name):
                yield node.id


def used(statements: list[ast.stmt]) -> set[str]:
    return {node.id for one in statements for node in ast.walk(one) if isinstance(node, ast.Name)}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_wiring_comes_before_the_mapping_of_checkpoints(path: Path) -> None:
    source = path.read_text()
    assert source.count(MARKER) == 1
    line = source[: source.index(MARKER)].count("\n") + 1
    body = ast.parse(source).body
    wiring, mapping = ([one for one in body if (one.lineno > line) is below] for below in (False, True))
    names = [name for one in mapping for name in defined(one)]
    assert not used(wiring).intersection(names)
    assert {"HF", "HF_HEADS"}.intersection(names)


@pytest.mark.parametrize(
    "path", [*sorted(MODELS.glob("*.py")), *sorted(LAYERS.glob("*.py"))], ids=lambda path: path.stem
)
def test_parameters_of_model_files_have_names(path: Path) -> None:
    arguments = [node.arg for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.arg)]
    assert not LETTERS.intersection(arguments)


def test_the_guide_begins_with_a_whole_file() -> None:
    guide = (MODELS / "README.md").read_text()
    assert guide.split("```python\n")[1].split("```")[0] == (MODELS / "qwen3.py").read_text()
