"""The page at ``/`` in headless Chromium.

Oracle: what the package's model answers; the requests and errors that the browser reports.  Skips without playwright or
Chromium.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from served import served

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUESTION = "What is the capital of France?"


def endless(route: Any) -> None:
    """Let a request through, without its end."""
    route.continue_(post_data=json.dumps({**route.request.post_data_json, "ignore_eos": True}))


def test_a_chat_in_the_browser(tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is absent")
    if CHROMIUM is None:
        pytest.skip("Chromium is absent")
    with served(tmp_path) as server, playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        errors: list[str] = []
        asked: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: asked.append(request.url))
        expect = playwright.expect
        answers, button = page.locator("#turns .assistant"), page.locator("#send")
        page.goto(server.url)
        page.fill("#text", QUESTION)
        page.press("#text", "Enter")
        expect(answers.nth(0)).to_have_text("The capital of France is Paris.")
        expect(button).to_have_text("Send")
        expect(page.locator("#state")).to_contain_text("tokens/s")
        expect(page.locator("#state")).to_contain_text("blocks")
        # Settings count, and an answer is text whatever it holds.
        page.click("summary")
        page.fill("#max_tokens", "2")
        page.fill("#text", "<img src=x onerror=alert(1)> " + QUESTION)
        button.click()
        expect(answers).to_have_count(2)
        expect(button).to_have_text("Send")
        assert page.locator("#turns img").count() == 0
        # An answer that goes on, whatever is drawn, is stopped, and its request is cancelled.
        page.route("**/v1/chat/completions", endless)
        page.fill("#max_tokens", "")
        page.fill("#temperature", "5")
        page.fill("#text", "Tell me a very long story")
        button.click()
        expect(button).to_have_text("Stop")
        expect(answers.nth(2)).not_to_have_text("")
        button.click()
        expect(button).to_have_text("Send")
        page.unroute("**/v1/chat/completions")
        # A refusal is shown.
        page.fill("#temperature", "-1")
        page.fill("#text", QUESTION)
        button.click()
        expect(page.locator("#turns .error")).to_contain_text("temperature")
        page.click("#clear")
        expect(page.locator("#turns .turn")).to_have_count(0)
        browser.close()
        with server.client() as client:
            assert client.get("/health").status_code == 200
    assert [error for error in errors if "400" not in error] == []
    assert all(url.startswith(server.url) for url in asked)
