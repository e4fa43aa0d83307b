"""The documentation site: its check finds errors, every page is in the navigation, generated pages are up to date."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
if not (ROOT / "ci" / "mkdocs.yml").exists():
    pytest.skip("the tests run without the repository", allow_module_level=True)

PAGE = """<html><head><link rel="stylesheet" href="style.css"><link rel="canonical" href="https://here/"></head>
<body><h1 id="top">T</h1><a href="#top">up</a><a href="https://elsewhere/">out</a>{more}</body></html>"""


def check(site: Path, **pages: str) -> subprocess.CompletedProcess[str]:
    for name, more in pages.items():
        (site / f"{name}.html").write_text(PAGE.format(more=more))
    (site / "style.css").write_text("body { color: red }")
    command = [sys.executable, str(ROOT / "ci" / "check_site.py"), str(site)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_sound_site_passes(tmp_path: Path) -> None:
    done = check(tmp_path, a='<a href="b.html#top">b</a>', b='<img src="data:image/png;base64,AA==">')
    assert (done.returncode, done.stdout) == (
        0,
        "2 pages, all links lead somewhere, nothing is loaded from elsewhere\n",
    )


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ('<a href="absent.html">x</a>', "absent.html, which is not there"),
        ('<a href="#absent">x</a>', "#absent, which has no such place"),
        ('<a href="b.html#absent">x</a>', "b.html#absent, which has no such place"),
        ('<img src="absent.svg">', "absent.svg, which is not there"),
        ('<script src="https://elsewhere/x.js"></script>', "loads https://elsewhere/x.js"),
        ('<link rel="stylesheet" href="//elsewhere/x.css">', "loads //elsewhere/x.css"),
    ],
)
def test_what_is_broken_is_found(tmp_path: Path, more: str, word: str) -> None:
    done = check(tmp_path, a=more, b="")
    assert done.returncode == 1
    assert word in done.stdout


def test_every_page_has_its_place() -> None:
    places = set(re.findall(r"[\w/]+\.md", (ROOT / "ci" / "mkdocs.yml").read_text(encoding="utf-8")))
    docs = ROOT / "docs"
    assert places == {str(path.relative_to(docs)) for path in docs.rglob("*.md")}


def test_the_routes_are_those_there_are(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; sys.path.insert(0, 'ci'); import make_http_reference as m; "
        "old = m.PAGE.read_text(encoding='utf-8'); m.PAGE = pathlib.Path(sys.argv[1]); m.main(); "
        "sys.exit(old != m.PAGE.read_text(encoding='utf-8'))"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "http.md")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr or "run ci/make_http_reference.py"
