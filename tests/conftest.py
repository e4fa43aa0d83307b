"""Fixtures shared by tests of several packages."""

from __future__ import annotations

import gc
import os
import re
import signal
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import httpx
    from quire.engine import LLM
    from served import Served

# Background processes of a shell ignore Ctrl-C, and their children inherit that; but tests send Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# nohup ignores SIGHUP, and children inherit that; but tests send SIGHUP.
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Fill memory that must be written before it is read with NaN, in this process and in servers (native/core/poison.h).
os.environ.setdefault("QUIRE_POISON", "1")

# Make answers independent of the batch even with AMX tiles; other tests cover the default.
os.environ.setdefault("QUIRE_DETERMINISTIC", "1")

# NumPy's products are small, and its threads busy-wait for each other: next to other jobs, two threads take far longer
# than one.  NumPy reads this when it is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parent.parent

_MISSING_TESTING = re.compile(
    r"No module named 'quire\._native\.testing'|cannot import name 'testing' from 'quire\._native'"
)

# Markers of all tests in a folder; other files set theirs (pyproject.toml lists the markers).
MARKS_OF_ROOMS = {
    "cli": ("python_only", "pythons"),
    "server": ("python_only", "pythons"),
    "repo_checks": ("python_only",),
    "tools": ("python_only", "pythons"),
}
MARKS_OF_ROOMS["tokenizer"] = ("pythons",)
MANY = 8


def pytest_itemcollected(item: pytest.Item) -> None:
    for mark in MARKS_OF_ROOMS.get(item.path.parent.name, ()):
        item.add_marker(mark)


@pytest.hookimpl(tryfirst=True)  # before markers choose the tests
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    n_cases = Counter(test_of(item) for item in items)
    for item in items:
        # By name, so that half of each kind remains.
        if n_cases[test_of(item)] < MANY or item.get_closest_marker("whole"):
            continue
        if zlib.crc32(item.name.encode()) % 2:
            item.add_marker("spare")


def pytest_collection_finish() -> None:
    """Keep what collecting the tests made out of garbage collections, which would take longer than limits of time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Skip files that import the testing module where the native build lacks it (docs/releases.md)."""
    report = yield
    if report.failed and _MISSING_TESTING.search(str(report.longrepr)):
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 0, "Skipped: quire._native.testing is absent (QUIRE_TESTING=OFF)")
    return report


def test_of(item: pytest.Item) -> str:
    """Return the name of the test whose case this is."""
    return item.nodeid.partition("[")[0]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of shared test data next to the project; tests that need it are skipped if it is missing."""
    folder = Path(os.environ.get("QUIRE_SHARED", ROOT.parent / "shared"))
    if not folder.is_dir():
        pytest.skip(f"shared test data is missing: {folder}")
    return folder


@pytest.fixture
def free() -> Iterator[None]:
    """Use the fastest kernels; other tests use batch-invariant ones."""
    from chosen_kernels import chosen, using

    assert chosen().is_deterministic
    with using(deterministic=False):
        yield


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with the package's model; a module that needs options overrides this fixture."""
    from served import served

    with served(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[httpx.Client]:
    """A client of the module's server."""
    with server.client() as made:
        yield made


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    """The server's model, in this process."""
    from quire.engine import LLM

    with LLM(threads=1, kv_dtype="f32") as model:
        yield model
