"""Texts and models for measurements."""

from __future__ import annotations

from pathlib import Path

import pytest
from measured_cases import write_files


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    write_files(folder)
    return folder
