"""The layout of model files: the model first, checkpoint mapping below a marker, spelled-out names."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import quire.models
import quire.nn
from quire.models import architectures, registry
from test_models import tolerance_of
from tiny_checkpoints import CONFIGS, HEARING

ROOT = Path(__file__).resolve().parents[2]
MARKER = "# --- checkpoint ---"
MODELS, LAYERS = Path(quire.models.__file__).parent, Path(quire.nn.__file__).parent
FILES = sorted(
    path for path in MODELS.glob("*.py") if "ARCHES = " in path.read_text() or "HF_HEADS = " in path.read_text()
)
LETTERS = set("mwcbes")  # for keys, weights, config, block, experts and step


def defined(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement of a module defines, except imports."""
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


@pytest.fixture(scope="module")
def models_page() -> ModuleType:
    """Return the program that writes docs/models.md."""
    path = ROOT / "ci" / "make_models_page.py"
    if not path.is_file():
        pytest.skip("the tests run without the repository")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_models_is_current(models_page: ModuleType) -> None:
    assert models_page.page() == models_page.PAGE.read_text(encoding="utf-8"), "run ci/make_models_page.py"


def test_deviations_of_all_tiny_models_are_recorded(models_page: ModuleType) -> None:
    recorded = json.loads(models_page.RECORDED.read_text(encoding="utf-8"))
    assert set(recorded) == set(CONFIGS), "run ci/make_models_page.py --measure NAME"
    for name, model in recorded.items():
        for kernels in ("auto", "stock"):
            assert float(model[kernels]) <= tolerance_of(name, kernels), name
    assert {model["architecture"] for model in recorded.values()} == set(architectures()) - HEARING


def test_the_readme_counts_the_architectures() -> None:
    readme = ROOT / "README.md"
    if not readme.is_file():
        pytest.skip("the tests run without the repository")
    counts = {int(n) for n in re.findall(r"(\d+) architectures", readme.read_text(encoding="utf-8"))}
    assert counts == {len(architectures())}


@pytest.mark.parametrize("variable", ["ARCHES", "HF", "HEADS", "HF_HEADS"])
def test_a_name_is_declared_by_one_file(variable: str) -> None:
    declared = [(name, path.stem) for path in sorted(MODELS.glob("*.py")) for name in registry._names(path, variable)]
    assert len({name for name, _ in declared}) == len(declared) > 0
    assert all(registry._declaring(variable, name) == file for name, file in declared)
    assert registry._declaring(variable, "llam") is None
