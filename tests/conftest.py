"""Fixtures that tests of several parts share."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

# What a shell starts in the background ignores Ctrl-C, and so would its children; the tests of Ctrl-C send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of shared test data beside the project; tests that need it skip where it is absent."""
    folder = Path(os.environ.get("QUIRE_SHARED", ROOT.parent / "shared"))
    if not folder.is_dir():
        pytest.skip(f"shared test data is absent: {folder}")
    return folder
