"""Model names from clients are looked up in a list and never become paths: nothing outside is ever opened.

Oracle: the interpreter's own audit events for opened files.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from fake_engine import FakeEngine
from quire.server.app import build_app
from quire.server.service.library import Library
from quire.server.service.model_files import find_models
from quire.server.service.service import Service
from quire.server.settings import Settings

WAYS = [
    "", "/", "//", "./", "../", "../../", "..\\", "..\\..\\", "a/../", "a/../../", "a.gguf/../", "....//", "%2e%2e/", "..%2f",
    "%252e%252e%252f", "．．/", "..∕", "..／", "~/", "file://", "http://127.0.0.1:1/", "link/", "\x00../", "a\x00/../",
    "C:\\", "\\\\host\\share\\", "a:", "models/", "-", "--",
]  # fmt: skip
TARGETS = ["secret", "secret.gguf", "outside/secret.gguf", "etc/passwd", "proc/self/environ", "link", "a.gguf"]
NAMES = [way + target for way, target in itertools.product(WAYS, TARGETS)] + [
    "x" * 5000,
    ".",
    "..",
    "a\n",
    " a",
    "A",
]

CHAT = {"messages": [{"role": "user", "content": "x"}]}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "x"},
    "/v1/embeddings": {"input": "x"},
    "/v1/responses": {"input": "x"},
    "/v1/messages": {**CHAT, "max_tokens": 1},
    "/v1/messages/count_tokens": CHAT,
    "/v1/models/load": {},
    "/v1/models/unload": {},
    "/v1/models/reload": {},
    "/completion": {"prompt": "x"},
    "/infill": {"input_prefix": "x", "input_suffix": "y"},
    "/apply-template": CHAT,
    "/api/generate": {"prompt": "x"},
    "/api/chat": CHAT,
    "/api/show": {},
    "/api/embed": {"input": "x"},
    "/api/embeddings": {"prompt": "x"},
}


@dataclass
class Watch:
    """The files that the interpreter opens while recording is on."""

    is_on: bool = False
    opened: list[str] = field(default_factory=list)


WATCH = Watch()


def note(event: str, arguments: tuple[object, ...]) -> None:
    if WATCH.is_on and event in ("open", "os.listdir", "os.scandir") and isinstance(arguments[0], str | bytes):
        WATCH.opened.append(os.fsdecode(arguments[0]))


@pytest.fixture(scope="module")
def hook() -> None:
    sys.addaudithook(note)  # an audit hook cannot be removed


def shop(tmp_path: Path, strict: bool) -> tuple[Service, list[str]]:
    """A folder with model ``a`` and a link to outside, and the models that were loaded."""
    inside, outside = tmp_path / "models", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (inside / "a.gguf").write_bytes(b"GGUF")
    for secret in (outside / "secret.gguf", tmp_path / "secret.gguf", tmp_path / "secret"):
        secret.write_bytes(b"GGUF")
    (inside / "link").symlink_to(outside)
    (inside / "link.gguf").symlink_to(outside / "secret.gguf")
    made: list[str] = []

    def make(name: str, share: int, n_ctx: int | None) -> FakeEngine:
        made.append(name)
        return FakeEngine()

    library = Library("a", lambda: dict.fromkeys(find_models(inside), 4), make, 1000)
    return Service(Settings(access_log=False, strict=strict), library), made


@pytest.mark.usefixtures("hook")
@pytest.mark.parametrize("strict", [True, False])
def test_no_model_name_becomes_a_path(tmp_path: Path, strict: bool) -> None:
    service, made = shop(tmp_path, strict)
    assert list(service.library.known) == ["a"]
    assert len(NAMES) >= 200
    answers: list[tuple[str, str, int]] = []

    async def ask() -> None:
        transport = httpx.ASGITransport(build_app(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8080") as client:
            for i, name in enumerate(NAMES):
                for j, (path, body) in enumerate(BODIES.items()):
                    if (i + j) % 3:  # a third of the names per path, and of the paths per name
                        continue
                    response = await client.post(path, json={**body, "model": name})
                    answers.append((name, path, response.status_code))
                if name.isprintable() and name not in (".", ".."):  # clients normalize such paths
                    response = await client.get(f"/v1/models/{quote(name, safe='')}")
                    answers.append((name, "/v1/models/{model}", response.status_code))

    WATCH.is_on = True
    try:
        asyncio.run(ask())
    finally:
        WATCH.is_on = False
    if strict:
        taken = [answer for answer in answers if not 400 <= answer[2] < 500]
        assert not taken, taken[:5]
        assert made == []
    else:  # the only model answers under any name
        assert set(made) == {"a"}
    within = [path for path in WATCH.opened if Path(path).is_absolute() and Path(path).is_relative_to(tmp_path)]
    assert set(within) <= {str(tmp_path / "models")}
    assert not [path for path in WATCH.opened if "secret" in path or "passwd" in path or "environ" in path]
