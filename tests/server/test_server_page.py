"""The page at ``/`` in headless Chromium, as a user sees it.

Oracle: the answers of the package's model; the requests and errors that the browser reports; axe for accessibility.
Markdown, reasoning and tool calls, which that model never writes, come from streams made by the test.  Skips without
playwright or Chromium.  QUIRE_SCREENSHOTS names a folder for screenshots.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from served import Served, served

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."
MARKDOWN = """## Heading with *emphasis*

Text with **bold**, `code`, ~~struck~~ and a [link](https://example.org/a_(b)). <img src=x onerror=alert(1)>
A second line, [bad](javascript:alert(1)), 2 * 3 * 4, snake_case_name.

1. first
2. second
   - inner
   - [x] done

| name | value |
|:-----|------:|
| a    | `x|y` |

> quoted

```python
def f(x):  # a comment
    return "text" + str(42)
```
"""


def events(*deltas: dict[str, Any], usage: bool = True) -> str:
    chunks: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    if usage:
        details = {"cached_tokens": 7}
        chunks.append(
            {
                "choices": [],
                "usage": {
                    "prompt_tokens": 10,
                    "completion_tokens": 5,
                    "total_tokens": 15,
                    "prompt_tokens_details": details,
                },
            }
        )
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


class Page:
    """A tab, its requests, and the errors in it."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.url = url
        self.context = browser.new_context(**options)
        self.tab = self.context.new_page()
        self.errors: list[str] = []
        self.asked: list[Any] = []
        self.tab.on("pageerror", lambda error: self.errors.append(str(error)))
        self.tab.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        self.tab.on("request", lambda request: self.asked.append(request))  # noqa: PLW0108 -- bound builtins are refused
        self.tab.goto(url)
        self.tab.locator("#model option").first.wait_for(state="attached")

    def ask(self, text: str) -> None:
        self.tab.fill("#text", text)
        self.tab.press("#text", "Enter")

    def answers_with(self, *streams: str) -> list[dict[str, Any]]:
        """Answer the next questions with these streams, and keep the request bodies."""
        waiting, bodies = list(streams), []

        def fulfill(route: Any) -> None:
            bodies.append(route.request.post_data_json)
            route.fulfill(status=200, content_type="text/event-stream", body=waiting.pop(0))

        self.tab.route("**/v1/chat/completions", fulfill)
        return bodies

    def picture(self, name: str) -> None:
        folder = os.environ.get("QUIRE_SCREENSHOTS")
        if folder:
            self.tab.screenshot(path=str(Path(folder) / f"{name}.png"))

    def close(self) -> None:
        self.context.close()
        assert [error for error in self.errors if "400" not in error] == []
        assert all(request.url.startswith((self.url, "blob:")) for request in self.asked)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is absent")
    if CHROMIUM is None:
        pytest.skip("Chromium is absent")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-background-networking"]
        )
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any, server: Served) -> Iterator[Page]:
    opened = Page(browser, server.url)
    yield opened
    opened.close()


@pytest.fixture
def expect(browser: Any) -> Any:
    return pytest.importorskip("playwright.sync_api").expect


def test_a_chat_can_be_answered_and_stopped(page: Page, expect: Any, server: Served) -> None:
    tab = page.tab
    answers, button = tab.locator(".turn.assistant .body"), tab.locator("#send")
    page.ask(QUESTION)
    expect(answers.nth(0)).to_have_text(ANSWER)
    expect(button).to_have_text("Send")
    expect(tab.locator(".turn .stats")).to_contain_text("tokens/s")
    expect(tab.locator(".turn.running")).to_have_count(0)
    expect(tab.locator("#use")).to_contain_text("context 23 of 2048")
    expect(tab.locator("#use")).to_contain_text("blocks")
    # Settings apply, and a question is plain text whatever it contains.
    tab.click("#settings-button")
    tab.fill("#max_tokens", "2")
    page.ask("<img src=x onerror=alert(1)> " + QUESTION)
    expect(answers).to_have_count(2)
    expect(button).to_have_text("Send")
    expect(tab.locator(".turn .stats").nth(1)).to_contain_text("cut at the limit")
    assert tab.locator("#turns img").count() == 0

    # An endless answer is stopped, and its request is cancelled.
    def endless(route: Any) -> None:
        route.continue_(post_data=json.dumps({**route.request.post_data_json, "ignore_eos": True}))

    tab.route("**/v1/chat/completions", endless)
    tab.fill("#max_tokens", "")
    tab.fill("#temperature", "5")
    page.ask("Tell me a very long story")
    expect(button).to_have_text("Stop")
    expect(answers.nth(2)).not_to_have_text("")
    page.picture("streaming")
    tab.keyboard.press("Escape")
    expect(button).to_have_text("Send")
    tab.unroute("**/v1/chat/completions")
    # A full context is not a dead end.
    tab.fill("#temperature", "0")
    tab.fill("#max_tokens", "2")
    page.ask(QUESTION + " fox" * 1000)
    expect(button).to_have_text("Send")
    page.ask("fox " * 1200)
    expect(tab.locator(".turn .error:visible")).to_contain_text("Settings can drop the oldest turns")
    tab.check("#truncation")
    page.ask(QUESTION)
    expect(answers.nth(5)).not_to_have_text("")
    tab.reload()
    tab.click("#settings-button")
    expect(tab.locator("#truncation")).to_be_checked()
    tab.uncheck("#truncation")
    tab.click("#new")
    # Errors are shown.
    tab.fill("#temperature", "-1")
    page.ask(QUESTION)
    expect(tab.locator(".turn .error:visible")).to_contain_text("temperature")
    tab.click("#new")
    expect(tab.locator("#turns .turn")).to_have_count(0)
    with server.client() as client:
        assert client.get("/health").status_code == 200


def test_markdown_is_shown_as_elements(page: Page, expect: Any) -> None:
    tab = page.tab
    parts = [MARKDOWN[i : i + 7] for i in range(0, len(MARKDOWN), 7)]
    page.answers_with(events(*({"content": part} for part in parts)))
    page.ask("Show me")
    body = tab.locator(".turn.assistant .body")
    expect(body.locator("h4")).to_have_text("Heading with emphasis")
    expect(body.locator("h4 em")).to_have_text("emphasis")
    expect(body.locator("p strong")).to_have_text("bold")
    expect(body.locator("p del")).to_have_text("struck")
    expect(body.locator("a")).to_have_attribute("href", "https://example.org/a_(b)")
    expect(body.locator("a")).to_have_count(1)  # only web links remain
    expect(body.locator("ol > li")).to_have_count(2)
    expect(body.locator("ol ul > li")).to_have_count(2)
    expect(body.locator("li.task input")).to_be_checked()
    expect(body.locator("td").nth(1)).to_have_text("x|y")
    expect(body.locator("th").nth(1)).to_have_class("to-end")
    expect(body.locator("blockquote")).to_have_text("quoted")
    expect(body.locator("pre .keyword")).to_have_text(["def", "return"])
    expect(body.locator("pre .comment")).to_have_text("# a comment")
    expect(body.locator("pre .string")).to_have_text('"text"')
    expect(body.locator("pre .number")).to_have_text("42")
    expect(body).to_contain_text("<img src=x onerror=alert(1)>")
    expect(body).to_contain_text("2 * 3 * 4, snake_case_name")
    assert body.locator("img, script").count() == 0
    page.picture("code-light")
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    body.locator(".code-head button").click()
    assert tab.evaluate("navigator.clipboard.readText()") == 'def f(x):  # a comment\n    return "text" + str(42)'


def test_hostile_markdown_renders_quickly(page: Page) -> None:
    hostile = {
        "emphasis": "*a " * 50_000, "brackets": "[" * 100_000, "ticks": "`a``b" * 30_000, "quotes": "> " * 5_000 + "x",
        "lists": "\n".join(" " * (2 * i) + "- x" for i in range(500)), "bars": "|" * 50_000 + "\n" + "|-" * 20_000,
        "links": "[a](" * 30_000, "fences": "```\n" * 20_000, "strings": "```python\n" + '"' * 100_001,
    }  # fmt: skip
    script = """async (cases) => {
      const { MarkdownView } = await import('/page/markdown.js');
      return Object.fromEntries(Object.entries(cases).map(([name, text]) => {
        const start = performance.now();
        new MarkdownView(document.createElement('div')).update(text);
        return [name, performance.now() - start];
      }));
    }"""
    taken = page.tab.evaluate(script, hostile)
    assert {name for name, ms in taken.items() if ms > 5000} == set()


def test_thoughts_are_folded_and_calls_are_shown(page: Page, expect: Any) -> None:
    tab = page.tab
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": '}}
    more = {"index": 0, "function": {"arguments": '"Paris"}'}}
    page.answers_with(
        events({"reasoning_content": "Let me "}, {"reasoning_content": "think."}, {"content": "Well."}, {"tool_calls": [call]}, {"tool_calls": [more]}),
    )  # fmt: skip
    page.ask("How is the weather?")
    thought = tab.locator(".thought")
    expect(thought.locator("summary")).to_have_text("Thought")
    expect(thought.locator(".thought-text")).not_to_be_visible()
    thought.locator("summary").click()
    expect(thought.locator(".thought-text")).to_have_text("Let me think.")
    expect(tab.locator(".call summary")).to_have_text("Calls weather")
    expect(tab.locator(".call pre")).to_have_text(re.compile('"city": "Paris"'))
    expect(tab.locator("#use")).to_contain_text("7 of 10 prompt tokens cached")
    page.picture("thinking-and-tools")


def test_edited_and_regenerated_turns_are_branches(page: Page, expect: Any) -> None:
    tab = page.tab
    bodies = page.answers_with(*(events({"content": text}) for text in ("first", "second", "third", "fourth")))
    page.ask("one")
    answer = tab.locator(".turn.assistant .body")
    expect(answer).to_have_text("first")
    tab.get_by_role("button", name="Regenerate").click()
    expect(answer).to_have_text("second")
    expect(tab.locator(".branches span")).to_have_text("2/2")
    tab.get_by_role("button", name="Previous branch").click()
    expect(answer).to_have_text("first")
    page.ask("two")
    expect(answer).to_have_text(["first", "third"])
    assert [message["content"] for message in bodies[-1]["messages"]] == ["one", "first", "two"]
    tab.locator(".turn.user").nth(0).get_by_role("button", name="Edit").click()
    tab.get_by_label("Edit message").fill("other one")
    tab.get_by_label("Edit message").press("Enter")
    expect(answer).to_have_text("fourth")
    assert [message["content"] for message in bodies[-1]["messages"]] == ["other one"]
    tab.get_by_role("button", name="Previous branch").click()
    expect(answer).to_have_text(["first", "third"])
    # All of it is still there after a reload.
    tab.reload()
    expect(answer).to_have_text(["first", "third"])
    expect(tab.locator(".branches span").first).to_have_text("1/2")


def test_an_answer_is_continued(page: Page, expect: Any) -> None:
    bodies = page.answers_with(events({"content": "one two"}), events({"content": " three"}))
    page.ask("count")
    answer = page.tab.locator(".turn.assistant .body")
    expect(answer).to_have_text("one two")
    page.tab.get_by_role("button", name="Continue").click()
    expect(answer).to_have_text("one two three")
    assert bodies[1]["continue_final_message"] is True
    assert [message["content"] for message in bodies[1]["messages"]] == ["count", "one two"]


def test_conversations_can_be_stored_searched_exported_and_removed(page: Page, expect: Any, tmp_path: Path) -> None:
    tab = page.tab
    page.answers_with(events({"content": "about foxes"}), events({"content": "about bears"}))
    titles = tab.locator("#chats .title")
    expect(tab.locator("#no-chats")).to_be_visible()
    page.ask("first question")
    expect(titles).to_have_text(["first question"])
    tab.keyboard.press("Control+Shift+O")
    page.ask("second question")
    expect(titles).to_have_text(["second question", "first question"])
    tab.fill("#search", "FOXES")
    expect(titles).to_have_text(["first question"])
    titles.first.click()
    expect(tab.locator(".turn.assistant .body")).to_have_text("about foxes")
    tab.fill("#search", "")
    tab.once("dialog", lambda dialog: dialog.accept("renamed"))
    tab.get_by_role("button", name="Rename first question").click()
    expect(titles).to_contain_text(["second question", "renamed"])
    with tab.expect_download() as saved:
        tab.click("#export")
    exported = tmp_path / "chats.json"
    saved.value.save_as(exported)
    assert len(json.loads(exported.read_text())["quire_chats"]) == 2
    tab.once("dialog", lambda dialog: dialog.accept())
    tab.get_by_role("button", name="Remove renamed").click()
    expect(titles).to_have_text(["second question"])
    tab.set_input_files("#import-file", exported)
    expect(titles).to_have_count(2)
    broken = tmp_path / "broken.json"
    broken.write_text('{"quire_chats": [{"id": 1}]}')
    said: list[str] = []
    tab.once("dialog", lambda dialog: (said.append(dialog.message), dialog.accept()))
    tab.set_input_files("#import-file", broken)
    expect(titles).to_have_count(2)
    assert "not whole" in said[0]


def test_attached_files_are_sent(page: Page, expect: Any, tmp_path: Path) -> None:
    tab = page.tab
    bodies = page.answers_with(events({"content": "read"}))
    (tmp_path / "notes.txt").write_text("some ``` notes")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\0\xff")
    tab.set_input_files("#file", [tmp_path / "notes.txt", tmp_path / "picture.png"])
    expect(tab.locator(".chip")).to_have_count(1)
    expect(tab.locator("#note")).to_contain_text("picture.png is not a text")
    page.ask("What is in it?")
    expect(tab.locator(".turn.assistant .body")).to_have_text("read")
    assert bodies[0]["messages"][0]["content"] == "notes.txt:\n````\nsome ``` notes\n````\n\nWhat is in it?"
    expect(tab.locator(".file summary")).to_have_text("notes.txt")
    expect(tab.locator(".chip")).to_have_count(0)


def test_settings_are_sent_and_saved_as_presets(page: Page, expect: Any) -> None:
    tab = page.tab
    bodies = page.answers_with(events({"content": "a"}), events({"content": "b"}))
    tab.click("#settings-button")
    tab.fill("#system", "Be brief.")
    for name, value in (
        ("temperature", "0.5"),
        ("top_k", "7"),
        ("min_p", "0.1"),
        ("seed", "3"),
        ("stop", "END, \\n\\n"),
    ):
        tab.fill(f"#{name}", value)
    tab.fill("#schema", '{"type": "object"}')
    tab.once("dialog", lambda dialog: dialog.accept("mine"))
    tab.get_by_role("button", name="Save as preset").click()
    page.picture("settings")
    page.ask("one")
    expect(tab.locator(".turn.assistant .body")).to_have_text("a")
    sent = bodies[0]
    assert {name: sent[name] for name in ("temperature", "top_k", "min_p", "seed", "stop")} == {
        "temperature": 0.5, "top_k": 7, "min_p": 0.1, "seed": 3, "stop": ["END", "\n\n"],
    }  # fmt: skip
    assert sent["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert sent["messages"][0] == {"role": "system", "content": "Be brief."}
    assert "top_p" not in sent
    tab.select_option("#preset", "Exact")
    page.ask("two")
    expect(tab.locator(".turn.assistant .body").nth(1)).to_have_text("b")
    assert (bodies[1]["temperature"], "top_k" in bodies[1]) == (0, False)
    tab.reload()
    tab.click("#settings-button")
    tab.select_option("#preset", "mine")
    expect(tab.locator("#top_k")).to_have_value("7")


def test_the_server_accepts_all_settings(page: Page, expect: Any) -> None:
    tab = page.tab
    tab.click("#settings-button")
    tab.get_by_text("More about sampling").click()
    names = [field.get_attribute("id") for field in tab.locator("#settings input[type=number]").all()]
    assert {"top_n_sigma", "xtc_threshold", "dynatemp_range", "dry_base", "mirostat_tau", "min_tokens"} < set(names)
    for name in names:
        tab.fill(
            f"#{name}", {"temperature": "0", "mirostat": "0", "max_tokens": "24", "min_tokens": "1"}.get(name, "1")
        )
    tab.click("#settings-button")
    with tab.expect_response("**/v1/chat/completions") as response:
        page.ask(QUESTION)
    assert response.value.status == 200
    assert "x-quire-ignored" not in response.value.headers
    assert set(names) <= set(response.value.request.post_data_json)


def test_the_scroll_position_is_kept(browser: Any, server: Served, expect: Any) -> None:
    page = Page(browser, server.url, viewport={"width": 500, "height": 350})
    tab = page.tab

    def endless(route: Any) -> None:
        route.continue_(post_data=json.dumps({**route.request.post_data_json, "ignore_eos": True, "temperature": 5}))

    tab.route("**/v1/chat/completions", endless)
    page.ask("Tell me a very long story")
    turns = "document.querySelector('#turns')"
    tab.wait_for_function(f"() => {turns}.scrollHeight > {turns}.clientHeight + 100")
    assert tab.evaluate(f"{turns}.scrollTop") > 0  # the view follows the end
    tab.evaluate(f"{turns}.scrollTop = 0")
    height = tab.evaluate(f"{turns}.scrollHeight")
    tab.wait_for_function(f"() => {turns}.scrollHeight > {height + 40}")
    assert tab.evaluate(f"{turns}.scrollTop") == 0
    tab.click("#down")
    tab.wait_for_function(f"() => {turns}.scrollHeight - {turns}.scrollTop - {turns}.clientHeight < 40")
    expect(tab.locator("#down")).to_be_hidden()
    tab.keyboard.press("Escape")
    expect(tab.locator("#send")).to_have_text("Send")
    page.close()


def test_the_status_view_updates(page: Page, expect: Any) -> None:
    tab = page.tab
    page.ask(QUESTION)
    expect(tab.locator(".turn.assistant .body")).to_have_text(ANSWER)
    tab.click("#status-button")
    expect(tab.locator("#plots figure")).to_have_count(6)
    expect(tab.locator("#model-rows td").first).to_have_text("tiny-chat")
    expect(tab.locator("#server-line")).to_contain_text("up for")
    throughput = tab.locator("#plots figure").first
    expect(throughput.locator("output")).to_contain_text("tokens/s")
    expect(throughput.locator("path.line")).to_have_attribute("d", re.compile(r"M[\d.]+ [\d.]+L"))  # two samples
    page.picture("status")
    asked = len(page.asked)
    tab.click("#status-button")
    tab.wait_for_timeout(3000)
    assert sum("v1/status" in request.url for request in page.asked[asked:]) == 0


def test_models_can_be_chosen_loaded_and_unloaded(browser: Any, expect: Any, tmp_path: Path) -> None:
    import quire

    assert quire.__file__ is not None
    (tmp_path / "models").mkdir()
    for name in ("one", "two"):
        shutil.copy(Path(quire.__file__).parent / "data" / "tiny-chat-q8_0.gguf", tmp_path / "models" / f"{name}.gguf")
    with served(tmp_path, ["--models-dir", str(tmp_path / "models")]) as server:
        page = Page(browser, server.url)
        tab = page.tab
        tab.select_option("#model", "two")
        expect(tab.locator("#load")).to_have_text("Load")
        tab.click("#load")
        expect(tab.locator("#load")).to_have_text("Unload", timeout=30_000)
        page.ask(QUESTION)
        expect(tab.locator(".turn.assistant .body")).to_have_text(ANSWER)
        tab.click("#load")
        expect(tab.locator("#load")).to_have_text("Load")
        page.close()


@pytest.mark.parametrize("look", ["light", "dark", "narrow"])
def test_screen_readers_and_narrow_screens(browser: Any, expect: Any, server: Served, look: str) -> None:
    size = {"width": 400, "height": 800} if look == "narrow" else {"width": 1200, "height": 800}
    page = Page(browser, server.url, viewport=size, color_scheme="dark" if look == "dark" else "light")
    tab = page.tab
    page.answers_with(events({"reasoning_content": "Hm."}, {"content": MARKDOWN}))
    page.ask(QUESTION)
    expect(tab.locator(".turn.assistant pre")).to_be_visible()
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.picture(look)
    if look == "narrow":
        expect(tab.locator("#sidebar")).not_to_be_visible()
        tab.click("#menu")
        expect(tab.locator("#sidebar")).to_be_visible()
        page.picture("narrow-menu")
        tab.locator("#chats .title").first.click()
        expect(tab.locator("#sidebar")).not_to_be_visible()
    tab.click("#settings-button")
    tab.click("#status-button")
    expect(tab.locator("#model-rows td").first).to_be_visible()
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is absent")
    found = axe.Axe().run(tab).response["violations"]
    serious = [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")]
    page.close()
    assert serious == []


def test_the_page_is_small() -> None:
    folder = files("quire.server").joinpath("page")
    contents = {entry.name: entry.read_bytes() for entry in folder.iterdir()}
    assert sum(map(len, contents.values())) < 150_000
    for name, content in contents.items():
        text = content.decode()
        assert text.count("\n") <= 300, name
        assert "innerHTML" not in text, name
        assert name.endswith(".svg") or not re.search(r"""(?:src|href|url|import|from)\W{1,3}https?://""", text), name
