"""Fixtures for the tests of chats."""

from __future__ import annotations

from pathlib import Path

import pytest
from quire.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(shared: Path) -> Tokenizer:
    folder = shared / "models" / "tiny-chat"
    if not folder.exists():
        pytest.skip(f"shared test data is absent: {folder}")
    return Tokenizer.from_pretrained(folder)
