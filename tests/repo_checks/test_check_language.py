"""The check of the wording of comments, docstrings, messages and commit subjects."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).resolve().parents[2] / "ci" / "check_language.py"
MUST = "must"  # the check reads this file, too


def findings(folder: Path, name: str, source: str) -> list[str]:
    """Return what the check prints about one file, as LINE: FINDING."""
    file = folder / name
    file.write_text(source, encoding="utf-8")
    done = subprocess.run([sys.executable, str(CHECK), str(file)], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.returncode == bool(done.stdout)
    return [line.removeprefix(f"{file}:") for line in done.stdout.splitlines()]


def lines(found: list[str]) -> list[int]:
    return [int(line.split(":")[0]) for line in found]


@pytest.mark.parametrize("start", ["Of", "What", "whether", "Who", "Whoever", "Whose", "That which", "The same of"])
def test_a_comment_that_starts_with_a_bare_clause_is_found(tmp_path: Path, start: str) -> None:
    found = findings(tmp_path, "a.py", f"x = 1\n# {start} the rows.\ny = 2\n")
    assert lines(found) == [2]
    assert repr(start.removesuffix(" of")) in found[0]


SOURCES = {
    "a.py": '''"""Whether it fits."""\n\n\ndef f():\n    """Of a row."""\n    x = 1  # of a row\n''',
    "a.pyx": '''"""Whether it fits."""\n\n\ncdef f(int *x):\n    """Of a row."""\n    x = 1  # of a row\n''',
    "a.h": "/* Whether it fits. */\n\n\n\n// Of a row.\nint x; // of a row\n",
    "a.cmake": "# Whether it fits.\n\n\n\n# Of a row.\nset(x 1) # of a row\n",
    "a.toml": "# Whether it fits.\n\n\n\n# Of a row.\nx = 1 # of a row\n",
}


@pytest.mark.parametrize("name", SOURCES)
def test_comments_and_docstrings_of_each_language_are_read(tmp_path: Path, name: str) -> None:
    assert lines(findings(tmp_path, name, SOURCES[name])) == [1, 5, 6]


def test_only_the_beginning_of_a_comment_counts(tmp_path: Path) -> None:
    assert findings(tmp_path, "a.py", "x = 75  # of 96\n# The same rows are read again.\n") == []
    # A continued line may start with any word, and so may text in quotes.
    assert findings(tmp_path, "a.py", "# The product\n# of the rows.\nx = '# What is'\n") == []
    assert findings(tmp_path, "a.h", '// The product\n// of the rows.\nauto x = "// What is";\n') == []
    assert findings(tmp_path, "a.h", "int x; // the product\n       // of the rows\n") == []
    # Two comments behind code are two comments.
    assert lines(findings(tmp_path, "a.h", "int x; // the product\nint y; // of the rows\n")) == [2]


MESSAGES = {
    "a.py": f"""raise E(\n    f"{{x}} {MUST} be 1 "\n    f"but is {{y}}"\n)\n""",
    "b.py": f"""with raises(E, match="x {MUST} be 1 but is 2"):\n    pass\n""",
    "a.pyx": f"""cdef f(int *x):\n    raise E("x {MUST} be 1 "\n            f"but is {{x}}")\n""",
    "a.cpp": f"""throw E(cat("x {MUST} be ", 1,\n  " but is ", x));\n""",
    "a.js": f"""throw Error(`x {MUST} be 1 but is ${{x}}`);\n""",
}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_of_the_old_form_is_found_across_lines(tmp_path: Path, name: str) -> None:
    found = findings(tmp_path, name, MESSAGES[name])
    assert len(found) == 1
    assert "message" in found[0]


@pytest.mark.parametrize("name", ["a.py", "a.cpp"])
def test_texts_of_different_entries_are_not_one_message(tmp_path: Path, name: str) -> None:
    tables = {
        "a.py": f'x = ["it {MUST} fit", "all but one"]\n',
        "a.cpp": f'T x[] = {{{{"it {MUST} fit"}}, {{"all but one"}}}};\n',
    }
    assert findings(tmp_path, name, tables[name]) == []


@pytest.mark.parametrize(
    ("subject", "finding"),
    [
        ("Cut the prompt latency of MoE models by 30 %", None),
        ("Need no lock for reading", None),
        ("Pass the sizes, focus the field", None),
        ("x" * 73, "73 characters"),
        ("Added a cache", "imperative"),
        ("Fixes the cache", "imperative"),
        ("Speeding up the cache", "imperative"),
        ("Cache blocks (#12)", "issue"),
        ("Cache blocks for issue 12", "issue"),
        ("Cache blocks.", "full stop"),
    ],
)
def test_commit_subjects(subject: str, finding: str | None) -> None:
    spec = importlib.util.spec_from_file_location("check_language", CHECK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.check_subject(subject)
    assert len(found) == (finding is not None)
    assert finding is None or finding in found[0]
