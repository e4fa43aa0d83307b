"""A model that the integrations share, and a reranker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from quire import LLM
from tiny_checkpoints import write_reranker


@pytest.fixture(scope="session")
def llm() -> Iterator[LLM]:
    """The model in the package."""
    with LLM(threads=1, n_ctx=1024, kv_dtype="f32") as model:
        yield model


@pytest.fixture(scope="session")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """A tiny classifier of pairs."""
    folder: Path = tmp_path_factory.mktemp("reranker") / "xlm"
    write_reranker(folder)
    with LLM(folder, threads=1) as model:
        yield model
