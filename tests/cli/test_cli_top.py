"""``quire top`` with a server of the package's model."""

from __future__ import annotations

import httpx
import pytest
from quire.cli.main import main
from quire.cli.top import sparkline
from served import Served


def test_top_shows_a_server(server: Served, client: httpx.Client, capsys: pytest.CaptureFixture[str]) -> None:
    body = {"messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 5}
    assert client.post("/v1/chat/completions", json=body).status_code == 200
    assert main(["top", server.url.removeprefix("http://"), "--once"]) == 0
    shown = capsys.readouterr().out
    for part in ("throughput", "tokens/s", "tiny-chat", "ready", "up for", "0/"):
        assert part in shown


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "file:///etc/passwd", "nonsense"])
def test_top_without_a_server(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", url, "--once"]) == 1
    assert "no Quire server at" in capsys.readouterr().err


def test_top_with_another_programs_server(server: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", server.url + "/v1/models?", "--once"]) == 1
    assert "no Quire server at" in capsys.readouterr().err


def test_sparkline() -> None:
    assert sparkline([0, 1, 2, 4]) == "▁▃▅█"
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([]) == ""
