"""Fixtures that tests of several parts share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of shared test data beside the project; tests that need it skip where it is absent."""
    folder = Path(os.environ.get("QUIRE_SHARED", ROOT.parent / "shared"))
    if not folder.is_dir():
        pytest.skip(f"shared test data is absent: {folder}")
    return folder
