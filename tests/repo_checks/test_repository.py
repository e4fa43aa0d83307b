"""The repository itself: layers, forbidden constructs, one version, links, and examples in README and docstrings."""

from __future__ import annotations

import ast
import dataclasses
import doctest
import importlib
import importlib.util
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.pythons

ROOT = Path(__file__).resolve().parents[2]
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "marshal", "shelve"}
FORBIDDEN_CALLS = {"eval", "exec", "torch.load", "yaml.load", "yaml.unsafe_load", "numpy.load", "np.load"}
TEMPLATE_FOLDER = "python/quire/chat/"
SANDBOX = "python/quire/chat/sandbox.py"
# Variables of other programs tell where they keep models, and click reads those of options.
ENVIRONMENT_READERS = ("python/quire/hub/", "python/quire/cli/", "python/quire/hardware/")
ENVIRONMENT_MAKERS = {
    "Environment",
    "NativeEnvironment",
    "SandboxedEnvironment",
    "ImmutableSandboxedEnvironment",
    "Template",
}
LEFTOVER = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|raise NotImplementedError")


@pytest.fixture(scope="module")
def tracked() -> list[str]:
    """Paths of the files under version control."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is not a git checkout")
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"git cannot list the files: {done.stderr.strip()}")
    return [path for path in done.stdout.splitlines() if (ROOT / path).is_file()]


def dotted(node: ast.expr) -> str:
    """Return ``a.b.c`` for a name or attribute, and "" for anything else."""
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr}" if base else ""
    return node.id if isinstance(node, ast.Name) else ""


def made_or_imported(node: ast.AST) -> list[str]:
    """Return the last part of the names that a node calls, inherits from or imports."""
    if isinstance(node, ast.Call):
        return [dotted(node.func).rpartition(".")[2]]
    if isinstance(node, ast.ClassDef):
        return [dotted(base).rpartition(".")[2] for base in node.bases]
    if isinstance(node, ast.ImportFrom):
        return [alias.name for alias in node.names]
    return []


def forbidden(path: str, source: str) -> Iterator[str]:
    """Yield a line for each forbidden construct in a source of the package."""
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        for name in names:
            top = name.partition(".")[0]
            if top in FORBIDDEN_MODULES:
                yield f"{path}:{node.lineno}: imports {name}, which runs code from files"
            if top == "jinja2" and not path.startswith(TEMPLATE_FOLDER):
                yield f"{path}:{node.lineno}: imports {name}; templates belong to {TEMPLATE_FOLDER}"
        if path != SANDBOX and any(found in ENVIRONMENT_MAKERS for found in made_or_imported(node)):
            yield f"{path}:{node.lineno}: makes a template environment; only {SANDBOX} does"
        if isinstance(node, ast.Call) and dotted(node.func) in FORBIDDEN_CALLS:
            yield f"{path}:{node.lineno}: calls {dotted(node.func)}"
        if isinstance(node, ast.Subscript | ast.Call):
            holder = node.value if isinstance(node, ast.Subscript) else node.func
            key = node.slice if isinstance(node, ast.Subscript) else next(iter(node.args), None)
            reads = dotted(holder) in {"os.environ", "os.environ.get", "os.getenv"}
            own = isinstance(key, ast.Constant) and key.value == "QUIRE_LOG"
            if reads and not own and not path.startswith(ENVIRONMENT_READERS):
                yield f"{path}:{node.lineno}: reads an environment variable other than QUIRE_LOG"


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("import pickle", "pickle"),
        ("from marshal import loads", "marshal"),
        ("def f():\n    import jinja2.sandbox", "jinja2"),
        ("import x\nx.Environment()", "environment"),
        ("class Loose(x.NativeEnvironment): pass", "environment"),
        ("eval('1')", "eval"),
        ("import torch\ntorch.load('x')", "torch.load"),
        ("import os\nos.environ['HOME']", "environment"),
        ("import os\nos.environ.get('HOME')", "environment"),
    ],
)
def test_forbidden_constructs_are_found(source: str, word: str) -> None:
    assert [line for line in forbidden("python/quire/x.py", source) if word in line]


def test_the_package_has_no_forbidden_construct(tracked: list[str]) -> None:
    sources = [path for path in tracked if path.startswith("python/quire/") and path.endswith((".py", ".pyi"))]
    assert len(sources) > 5
    found = [line for path in sources for line in forbidden(path, (ROOT / path).read_text(encoding="utf-8"))]
    assert found == []


def test_nothing_is_left_to_do(tracked: list[str]) -> None:
    found = []
    for path in tracked:
        if path.startswith(("native/", "python/")) and not path.endswith((".gguf", ".so", ".gz", ".woff2")):
            lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
            found += [f"{path}:{n}: {line.strip()}" for n, line in enumerate(lines, 1) if LEFTOVER.search(line)]
    assert found == []


def test_no_build_product_is_tracked(tracked: list[str]) -> None:
    assert [path for path in tracked if path.startswith(("build/", "vendor/ggml/")) or path.endswith(".so")] == []


def test_native_layers() -> None:
    if not (ROOT / "native").is_dir():
        pytest.skip("the native sources are absent")
    command = [sys.executable, str(ROOT / "ci" / "check_includes.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("path", "text", "word"),
    [
        ("core/dtype.h", '#include "kv/block_pool.h"', "core includes kv/block_pool.h"),
        ("kernels/norm.cpp", '#include "core/dtype.h"', "kernels includes core/dtype.h"),
        ("kernels/avx2/norm.cpp", '#include "core/error.h"', "kernels includes core/error.h"),
        ("kernels/norm.cpp", "#include <ggml.h>", "ggml.h"),
        ("engine/decoding/decoder.cpp", "#include <ggml-backend.h>", "ggml-backend.h"),
        ("kv/block_table.cpp", '#include "gguf.h"', "gguf.h"),
        ("graph/trace/tracer.cpp", "#include <pybind11/stl.h>", "pybind11/stl.h"),
        ("engine/scheduling/scheduler.cpp", "#include <chrono>", "<chrono>"),
        ("engine/sampling/sampler.h", '#include "core/device.h"', "core/device.h"),
        ("helper/x.cpp", "", "helper"),
        ("graph/stock/lowering.h", '#include "graph/run/executor.h"', "stock is below"),
        ("engine/sampling/sampler.cpp", '#include "engine/scheduling/scheduler.h"', "sampling is below"),
        ("graph/tracer.h", "", "not in a folder of graph"),
        ("graph/utils.h", "", "graph/utils.h: name the file"),
        ("graph/trace/tracer.h", "\n" * 501, "the limit is 500"),
    ],
)
def test_a_broken_layer_is_found(tmp_path: Path, path: str, text: str, word: str) -> None:
    known = ["core/error.h", "core/device.h", "core/dtype.h", "kv/block_pool.h", "graph/run/executor.h"]
    files = dict.fromkeys([*known, "engine/scheduling/scheduler.h"], "") | {path: text}
    for name, content in files.items():
        target = tmp_path / "native" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content + "\n", encoding="utf-8")
    command = [sys.executable, str(ROOT / "ci" / "check_includes.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert word in done.stdout


def check_unity(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "ci" / "check_unity.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_no_name_of_the_core_hides_another() -> None:
    if not (ROOT / "native").is_dir():
        pytest.skip("the native sources are absent")
    done = check_unity()
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "declaration",
    [
        "constexpr int most_keys = 4096;",
        "constexpr int few = 1, most_keys = 2;",
        "std::vector<std::pair<int, int>> most_keys(const Trace &trace) {",
        "template <class T> struct most_keys {",
        "const std::map<int, int> most_keys{};",
        "thread_local int most_keys[4];",
    ],
)
@pytest.mark.parametrize("other", ["kernels/rows.h", "engine/sampler.cpp"])
def test_a_name_that_would_hide_another_is_found(tmp_path: Path, declaration: str, other: str) -> None:
    inline = "inline constexpr long most_keys = 256;\n"
    files = {
        "graph/tracer.cpp": f"namespace quire {{\nnamespace {{\n\n{declaration}\n\n}} // namespace\n}} // namespace quire\n",
        other: inline if other.endswith(".h") else f"namespace {{\n{inline}}} // namespace\n",
    }
    for name, content in files.items():
        (tmp_path / "native" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "native" / name).write_text(content, encoding="utf-8")
    done = check_unity(str(tmp_path))
    assert done.returncode == 1
    assert "'most_keys'" in done.stdout
    assert "graph/tracer.cpp" in done.stdout
    assert other in done.stdout
    assert "'few'" not in done.stdout


@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="there is no compiler")
def test_a_header_that_needs_another_is_found(tmp_path: Path) -> None:
    kernels = tmp_path / "native" / "kernels"
    files = {
        "rows/whole.h": "#include <cstdint>\nusing Whole = std::int8_t;\n",
        "rows/part.h": "using Part = Whole;\n",
        "rows/first.h": "using First = Absent;\n",  # every build compiles it: first.cpp includes it first
        "rows/first.cpp": '#include "kernels/rows/first.h"\n',
        "wide/flags.h": "#ifndef WIDE\n#error the flags of the folder are absent\n#endif\n",
    }
    for name, content in files.items():
        (kernels / name).parent.mkdir(parents=True, exist_ok=True)
        (kernels / name).write_text(content, encoding="utf-8")
    cmake = 'set(wide_options -O0 -DWIDE)\nset_source_files_properties(${wide_sources} PROPERTIES COMPILE_OPTIONS "${wide_options};-DX")\n'
    (tmp_path / "native" / "CMakeLists.txt").write_text(cmake, encoding="utf-8")
    command = [sys.executable, str(ROOT / "ci" / "check_headers.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "native/kernels/rows/part.h: " in done.stdout
    assert "3 headers, 1 of which" in done.stdout


def test_one_version() -> None:
    native = importlib.import_module("quire._native")
    line = re.search(r'^version = "([^"]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert line is not None
    assert native.__version__ == line[1]
    assert importlib.import_module("quire").__version__ == line[1]


def test_links_of_the_documentation(tracked: list[str]) -> None:
    broken = []
    for path in tracked:
        if not path.endswith(".md"):
            continue
        text = re.sub(r"```.*?```", "", (ROOT / path).read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
            if "://" not in target and not (ROOT / path).parent.joinpath(target).exists():
                broken.append(f"{path}: {target}")
    assert broken == []


def test_commands_install_this_distribution(tracked: list[str]) -> None:
    """On the package index, ``quire`` belongs to somebody else: instructions must install ``quire-llm``."""
    wrong = re.compile(r"quire\[[a-z{]|pip install[^|&\n]*[ '\"]quire(?![-\w./])|quire-(cuda|vulkan|rocm|sycl)\b")
    found = []
    for path in tracked:
        if path.startswith("tests/") or not path.endswith((".py", ".md", ".toml", ".yml", ".cmake", ".1", ".pyi")):
            continue
        for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), 1):
            if wrong.search(line):
                found.append(f"{path}:{number}: {line.strip()}")
    assert found == []


def test_the_table_of_sampling_parameters_is_complete() -> None:
    from quire.params.sampling import SamplingParams

    text = (ROOT / "docs" / "sampling.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (?:`([^`]+)`|see below) \|", text, re.MULTILINE)
    defaults = SamplingParams()
    assert {name for name, _ in rows} == {entry.name for entry in dataclasses.fields(defaults)}
    for name, text in rows:
        if name != "samplers":
            assert ast.literal_eval(text) == getattr(defaults, name), name


def test_the_documented_commands_are_those_there_are() -> None:
    from quire.cli.main import COMMANDS

    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert tuple(re.findall(r"^\| `quire (\w+)", text, re.MULTILINE)) == tuple(COMMANDS)


def python_blocks(page: str) -> list[tuple[int, str]]:
    """Return a page's Python blocks with their lines, except those after a line ``<!-- not run: REASON -->``."""
    text = (ROOT / page).read_text(encoding="utf-8") if (ROOT / page).is_file() else ""
    found = []
    for match in re.finditer(r"(<!-- not run: [^\n]+ -->\n)?```python\n(.*?)```", text, re.DOTALL):
        if not match[1]:
            found.append((text.count("\n", 0, match.start(2)) + 1, match[2]))
    return found


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_examples_of_pages(page: str, tmp_path: Path) -> None:
    blocks = python_blocks(page)
    if not blocks:
        pytest.skip(f"{page} has no Python blocks")
    # One program, as a reader types it, in its own process and folder; line numbers are those of the page.
    program = "".join(f"exec(compile({chr(10) * (line - 1) + code!r}, {page!r}, 'exec'))\n" for line, code in blocks)
    # Use the same quire as this process, whose path may be relative to its working folder.
    package = importlib.import_module("quire").__file__
    assert package is not None
    environment = {**os.environ, "PYTHONPATH": str(Path(package).resolve().parent.parent)}
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def package_modules() -> list[str]:
    def lacks_framework(name: str) -> None:
        if name != "quire.ray":
            raise  # noqa: PLE0704 -- called while the error is handled

    package = importlib.import_module("quire")
    names = ["quire"]
    for info in pkgutil.walk_packages(package.__path__, "quire.", lacks_framework):
        if not info.name.startswith(("quire._", "quire.__main__")):
            names.append(info.name)
    return names


def test_docstring_examples() -> None:
    n_examples, failed = 0, []
    for name in package_modules():
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        # Finding the docstrings of a module takes longer than reading it.
        if spec.origin.endswith(".py") and ">>>" not in Path(spec.origin).read_text(encoding="utf-8"):
            continue
        try:
            module = importlib.import_module(name)
        except ImportError:
            if name.startswith(("quire.integrations.", "quire.ray.")):  # its framework is missing
                continue
            raise
        result = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
        n_examples += result.attempted
        failed += [name] * bool(result.failed)
    if not n_examples:
        pytest.skip("no docstring has an example")
    assert failed == []


def test_convert_stays_a_function() -> None:
    """A module named ``convert`` would replace the function when a checkpoint folder is first opened."""
    program = (
        "import quire, quire.checkpoints.conversion; import quire.engine.loading.loader; assert callable(quire.convert)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    package = importlib.import_module("quire")
    assert package.__file__ is not None
    names = {info.name for info in pkgutil.iter_modules(package.__path__)}
    assert names.isdisjoint(package.__all__)
