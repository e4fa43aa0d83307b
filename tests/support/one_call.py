"""Send one request to a new application, without a network."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
from fake_engine import FakeEngine
from quire.server.app import build_app
from quire.server.service.library import Library
from quire.server.service.service import Service
from quire.server.settings import Settings


def call(
    method: str,
    path: str,
    *,
    engine: FakeEngine | None = None,
    library: Library | None = None,
    options: dict[str, Any] | None = None,
    **request: Any,
) -> httpx.Response:
    """Send one request to a new application, with an engine or a library of several."""
    settings = Settings(**{"access_log": False, **(options or {})})
    service = Service(settings, library or Library.of("fake", lambda: engine or FakeEngine()))

    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(build_app(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8080") as client:
            return await client.request(method, path, **request)

    return asyncio.run(run())


def post(path: str, body: Any, **more: Any) -> httpx.Response:
    """Send a JSON body."""
    return call("POST", path, json=body, **more)


def expect_refusal(path: str, body: Any, name: str) -> None:
    """Check that a strict server refuses the body and names ``name``, without using the engine."""
    engine = FakeEngine()
    response = post(path, body, engine=engine, options={"strict": True})
    assert response.status_code == 400
    assert name in response.text
    assert engine.asked == []
