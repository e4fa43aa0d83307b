"""Try every row of cases.toml: what users of other programs type, send and write.

Oracles: Quire's own options for other programs' names; the package's model in this process for answers; and the
programs' documentation, which the rows repeat.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import httpx
import pytest
import quire
from fake_engine import FakeEngine
from fake_llm import FakeLLM
from local_hub import LocalHub, local_hub
from one_call import call, post
from quire.cli import bench, chat, info, run, serve, tokenize
from quire.cli.main import main
from quire.cli.model_options import ModelOptions
from quire.cli.session import Session, Sizes
from quire.engine import LLM
from quire.engine.loading.loader import packaged_model
from quire.server.worker.protocol import Chat, Generate
from served import Served, environment, served

HERE = Path(__file__).resolve().parent
_SPEC = importlib.util.spec_from_file_location(
    "make_compatibility_page", HERE.parents[1] / "ci" / "make_compatibility_page.py"
)
assert _SPEC is not None
assert _SPEC.loader is not None
PAGE = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = PAGE
_SPEC.loader.exec_module(PAGE)
CASES = PAGE.cases()
COMMANDS = {each.name: each for each in (m.command for m in (run, chat, serve, bench, tokenize, info))}
FOREIGN = ("LLAMA_", "OLLAMA_", "VLLM_", "HF_", "HUGGINGFACE_", "QUIRE_MODELS", "XDG_", "HOST", "PORT")
TIMINGS = {
    "cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second", "predicted_n", "predicted_ms",
    "predicted_per_token_ms", "predicted_per_second",
}  # fmt: skip
TINY = packaged_model().read_bytes()
FAKE = b"GGUF" + bytes(5000)
REPOSITORIES = {
    "org/tiny-GGUF": {"README.md": b"hello", "tiny-BF16.gguf": FAKE, "tiny-Q8_0.gguf": TINY, "mmproj-Q4_K_M.gguf":
    FAKE}, "org/second-GGUF": {"second-Q8_0.gguf": TINY}, "org/split-GGUF": {
        "Q4_K_M/split-Q4_K_M-00001-of-00002.gguf": FAKE, "Q4_K_M/split-Q4_K_M-00002-of-00002.gguf": FAKE + b"2",
    },
    "org/checkpoint": {
        "config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": FAKE, "pytorch_model.bin": FAKE,
    },
    "org/gated-GGUF": {"gated-Q8_0.gguf": FAKE},
    "Qwen/Qwen3-0.6B-GGUF": {"Qwen3-0.6B-Q8_0.gguf": FAKE},
}  # fmt: skip

pytestmark = pytest.mark.python_only


def each(*kinds: str) -> Any:
    """Parametrize a test by the rows of these kinds, without the column of the origin."""
    rows = [(table.kind, row) for table in CASES.tables if table.kind in kinds for row in table.rows]
    return pytest.mark.parametrize(
        "row",
        [pytest.param(row[1:] if len(kinds) == 1 else [kind, *row[1:]], id=_id(row)) for kind, row in rows],
    )


def _id(row: list[str]) -> str:
    return re.sub(r"\W+", " ", " ".join(row[:3])).strip()[:70]


# Commands


@dataclass(frozen=True)
class Typed:
    """A command line: ``words`` after quire's name."""

    words: list[str]
    variables: dict[str, str]
    stdin: bytes

    @staticmethod
    def of(line: str) -> Typed:
        stdin = b""
        if line.startswith("echo "):
            echoed, line = line.split(" | ", 1)
            stdin = f"{shlex.split(echoed)[1]}\n".encode()
        words, variables = shlex.split(line), {}
        while "=" in words[0]:
            name, _, value = words.pop(0).partition("=")
            variables[name] = value
        assert words.pop(0) == "quire"
        return Typed(words, variables, stdin)

    def values(self) -> dict[str, Any]:
        """Return the command's parameters as its function would get them, without defaults."""
        command = COMMANDS[self.words[0]]
        with command.make_context(command.name, self.words[1:]) as context:
            usual = click.core.ParameterSource.DEFAULT
            return {name: v for name, v in context.params.items() if context.get_parameter_source(name) is not usual}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A read-only folder with texts and with models: files, a folder, and a blob without a suffix."""
    made = tmp_path_factory.mktemp("home")
    for name in ("m.gguf", "sha256-12ab", "my model.gguf"):
        (made / name).write_bytes(b"GGUF" + bytes(20))
    (made / "tiny.gguf").symlink_to(packaged_model())
    (made / "checkpoint").mkdir()
    (made / "notes").write_text("hello")
    (made / "question.txt").write_text("Is it from a file?\n")
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{'ab' * 32}", "size": len(TINY)}
    manifest = made / ".ollama/models/manifests/registry.ollama.ai/library/llama3/8b"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": [layer]}))
    for path in (
        f".ollama/models/blobs/sha256-{'ab' * 32}", ".lmstudio/models/lmstudio-community/Tiny-GGUF/tiny-Q8_0.gguf",
        ".cache/llama.cpp/ggml-org_tiny_tiny-Q8_0.gguf",
    ):  # fmt: skip
        (made / path).parent.mkdir(parents=True)
        (made / path).symlink_to(packaged_model())
    return made


@pytest.fixture
def folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``home`` as home and working folder, without other programs' variables."""
    for name in [name for name in os.environ if name.startswith(FOREIGN)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home)
    return home


def fake_session(opened: list[str | None], llm: FakeLLM) -> Session:
    def opener(options: ModelOptions, sizes: Sizes) -> FakeLLM:
        opened.append(options.path)
        return llm

    return Session(opener)  # type: ignore[arg-type]


@pytest.mark.pythons
@each("same")
def test_a_line_is_one_of_ours(folder: Path, monkeypatch: pytest.MonkeyPatch, row: list[str]) -> None:
    theirs, ours = (Typed.of(line) for line in row)
    expected = ours.values()
    for name, value in theirs.variables.items():
        monkeypatch.setenv(name, value)
    assert theirs.values() == expected
    assert expected or row[1] == "quire serve"


@pytest.mark.pythons
@each("note")
def test_what_has_no_meaning_is_noted_in_a_line(
    folder: Path, capsys: pytest.CaptureFixture[str], row: list[str]
) -> None:
    typed = Typed.of(row[0])
    assert typed.values() == ({"words": ("x",)} if typed.words[-1] == "x" else {})
    assert capsys.readouterr().err == f"quire: {row[1]}\n"


@pytest.mark.pythons
@each("asks", "refused")
def test_model_and_prompt_or_a_line_that_says_what_to_do(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, row: list[str]
) -> None:
    kind, line, *expected = row
    opened: list[str | None] = []
    llm = FakeLLM([["x"], ["y"]])
    typed = Typed.of(line)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed.stdin), encoding="utf-8"))
    code = main(typed.words, fake_session(opened, llm))
    out, err = capsys.readouterr()
    if kind == "refused":
        (said,) = [text for text in err.splitlines() if "no model given" not in text]
        assert (code, out) == (2, "")
        assert said.startswith("quire: [")
        assert expected[0] in said
    else:
        assert (opened[0] or "", llm.asked[0][1][-1]["content"]) == tuple(expected), err


PRINTS = [row for table in CASES.tables if table.kind == "prints" for row in table.rows]


def run_together(rows: list[list[str]], folder: Path, variables: dict[str, str]) -> list[dict[str, Any]]:
    """Run lines one after another in their own process; return exit codes and outputs."""
    lines = json.dumps(
        [[re.sub(r"\$([A-Z_]+)", lambda f: variables[f[1]], word) for word in Typed.of(row[1]).words] for row in rows]
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", str(HERE / "run_commands.py")], input=lines, capture_output=True, text=True,
        check=False, cwd=folder, env=variables, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    outcomes: list[dict[str, Any]] = json.loads(done.stdout)
    return outcomes


def holds_of(row: list[str], outcome: dict[str, Any], **more: Any) -> None:
    """Check a row's condition on an outcome."""
    holds, err = row[2], outcome["err"]
    assert outcome["code"] == 0 or "code" in holds, (row[1], outcome)

    def said(words: str) -> bool:
        return err.startswith("quire: [") and err.count("\n") == 1 and words in err and outcome["out"] == ""

    names = {**outcome, "json": json, "Path": Path, "tiny": TINY, "said": said, **more}
    assert eval(holds, names), (row[1], outcome)


@pytest.fixture(scope="module")
def printed(home: Path) -> list[dict[str, Any]]:
    return run_together(PRINTS, home, at_home(home, None))


@pytest.mark.pythons
@pytest.mark.parametrize("number", [pytest.param(i, id=_id(row)) for i, row in enumerate(PRINTS)])
def test_what_a_line_prints(printed: list[dict[str, Any]], llm: LLM, number: int) -> None:
    is_cpu = all(device.kind == "cpu" for device in quire.devices())
    holds_of(PRINTS[number], printed[number], llm=llm, is_cpu=is_cpu)


# With a separate home and a hub


@pytest.fixture(scope="module")
def hub() -> Iterator[LocalHub]:
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    with local_hub(REPOSITORIES) as running:
        running.gated.add("org/gated-GGUF")
        yield running


def at_home(home: Path, hub: LocalHub | None) -> dict[str, str]:
    """Return the environment variables of a user with this home."""
    kept = {name: value for name, value in environment().items() if not name.startswith(FOREIGN)}
    found = {**kept, "HOME": str(home), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    return found if hub is None else {**found, "HF_ENDPOINT": hub.address}


def session_rows(is_sent: bool) -> list[list[str]]:
    tables = [table for table in CASES.tables if table.kind == "session"]
    return [row for table in tables for row in table.rows if (" /" in row[1].split("quire")[0]) == is_sent]


def test_models_are_fetched_listed_named_and_deleted(hub: LocalHub, tmp_path: Path) -> None:
    rows = session_rows(is_sent=False)
    for row, outcome in zip(rows, run_together(rows, tmp_path, at_home(tmp_path, hub)), strict=True):
        holds_of(row, outcome)
    # Models on this machine are not downloaded again.
    asked = [path for method, path, _ in hub.asked if method == "GET"]
    assert sum(path.endswith("/tiny-Q8_0.gguf") for path in asked) == 1


# Requests


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of the package's model that may download others from the hub, if huggingface_hub is installed."""
    home = tmp_path_factory.mktemp("home")
    model = home / "tiny-chat.gguf"
    model.symlink_to(packaged_model())
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        has_hub = importlib.util.find_spec("huggingface_hub") is not None
        running = stack.enter_context(local_hub(REPOSITORIES)) if has_hub else None
        variables = at_home(home, running)
        for name in [name for name in os.environ if name not in variables]:
            patch.delenv(name)
        for name, value in variables.items():
            patch.setenv(name, value)
        started = stack.enter_context(served(home, [str(model), "--allow-changes"]))
        patch.undo()
        yield started


@dataclass(frozen=True)
class Sent:
    """A row's request with all its fields."""

    method: str
    path: str
    body: Any

    @staticmethod
    def of(route: str, fields: str, more: dict[str, str] | None = None) -> Sent:
        method, path = route.split() if " " in route else ("POST", route)
        body = json.loads(CASES.filled(fields, more)) if fields else None
        if path in CASES.beside and body is not None:
            body = {**json.loads(CASES.filled(CASES.beside[path])), **body}
        return Sent(method, path, body)

    def to(self, client: httpx.Client) -> httpx.Response:
        return client.request(self.method, self.path, **({} if self.body is None else {"json": self.body}))


def told(response: httpx.Response) -> dict[str, Any]:
    """Return the names that a row's condition may use."""
    kind = response.headers.get("content-type", "")
    found: dict[str, Any] = {"status": response.status_code, "headers": response.headers, "text": response.text}
    if "ndjson" in kind:
        found["rows"] = [json.loads(line) for line in response.text.splitlines()]
    elif "event-stream" in kind:
        lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line.startswith("data: ")]
        found["events"] = [json.loads(line) for line in lines if line != "[DONE]"]
    elif "json" in kind and response.text:
        found["answer"] = json.loads(response.text)
        if isinstance(found["answer"], dict) and "data" in found["answer"]:
            found["vectors"] = [row.get("embedding") for row in found["answer"]["data"]]
    elif "quire_" in response.text:
        lines = [line.rpartition(" ") for line in response.text.splitlines() if line[0] != "#"]
        found["figures"] = {name: float(value) for name, _, value in lines}
    return found


@dataclass
class Asking:
    """Sends rows' requests to the server, and provides further names for their conditions."""

    client: httpx.Client
    names: dict[str, Any]
    values: dict[str, str]

    def __call__(self, route: str, fields: str, holds: str) -> None:
        sent = Sent.of(route, fields, self.values)
        end_s = time.monotonic() + 10
        while True:
            response = sent.to(self.client)
            assert response.status_code == 200 or "status" in holds, response.text
            if eval(holds, {**self.names, **told(response)}):
                return
            assert "eventually" in holds, (sent, response.text)
            assert time.monotonic() < end_s, (sent, response.text)
            time.sleep(0.02)


@pytest.fixture(scope="module")
def asking(client: httpx.Client, llm: LLM) -> Asking:
    (one,) = client.post("/v1/embeddings", json={"input": "Once upon"}).json()["data"]
    ids, once = llm.tokenizer.encode("Once upon"), llm.tokenizer.encode("Once")
    values = {"ids": json.dumps(ids), "once": json.dumps(once)[1:-1]}
    values["long"] = json.dumps([{"role": "user", "content": "word " * 5000}])
    names: dict[str, Any] = {
        "llm": llm, "quire": quire, "json": json, "re": re, "tiny": TINY, "timings": TIMINGS, "ids": ids,
        "ask": json.loads(CASES.values["ask"]), "one": one["embedding"], "eventually": bool,
    }  # fmt: skip
    return Asking(client, names, values)


@pytest.mark.pythons
@each("request")
def test_what_an_answer_has(asking: Asking, row: list[str]) -> None:
    asking(*row)


@pytest.mark.pythons
@each("ignored", "denied")
def test_hints_are_named_and_what_would_change_the_answer_is_refused(client: httpx.Client, row: list[str]) -> None:
    kind, path, fields, name = row
    response = Sent.of(path, fields).to(client)
    if kind == "ignored":
        assert response.status_code == 200, response.text
        assert repr(name) in response.headers["x-quire-ignored"]
    else:
        assert response.status_code == 400, response.text
        assert name in response.text


@pytest.mark.pythons
@each("means")
def test_what_a_request_means(row: list[str]) -> None:
    path, fields, holds = row
    works = []
    for sent in (Sent.of(path, fields), Sent.of(path, "{}")):
        engine = FakeEngine()
        response = post(sent.path, sent.body, engine=engine)
        assert response.status_code == 200, response.text
        (work,) = [work for work in engine.asked if isinstance(work, Chat | Generate)]
        works.append(work)
    given, usual = works
    names = {"params": given.params, "hints": given.hints, "usual": usual}
    if isinstance(given, Chat):
        names |= {"options": given.options, "messages": given.messages}
    assert eval(holds, names), given


@each("off")
def test_what_changes_models_is_off(row: list[str]) -> None:
    sent = Sent.of(*row[:2])
    answer = call(sent.method, sent.path, **({} if sent.body is None else {"json": sent.body}))
    assert answer.status_code == 403
    assert row[2] in answer.text


def test_models_are_fetched_named_asked_and_deleted_by_requests(hub: LocalHub, asking: Asking, server: Served) -> None:
    with server.client() as other, other.stream("GET", "/models/sse") as stream:
        lines = stream.iter_lines()
        for _, route, fields, holds in session_rows(is_sent=True):
            if route != "GET /models/sse":
                asking(route, fields, holds)
                continue
            events: list[Any] = []
            while not eval(holds, {"events": events}):
                line = next(lines)
                events += [json.loads(line.removeprefix("data: "))] if line.startswith("data: ") else []
    assert not list(server.log_path.parent.rglob("*Q8_0.gguf"))


# Scripts


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where the model files that scripts open are the package's model."""
    root = tmp_path_factory.mktemp("scripts")
    for name in ("models/7B/llama-model.gguf", "tiny-chat.gguf"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(packaged_model())
    return root


@pytest.fixture(scope="module")
def opened(scripts: Path) -> Iterator[dict[str, dict[str, Any]]]:
    """The variables of each origin's scripts after their common beginning."""
    found: dict[str, dict[str, Any]] = {}
    yield found
    for names in found.values():
        names["llm"].close()


SCRIPTS = [row for table in CASES.tables if table.kind == "script" for row in table.rows]


@pytest.mark.parametrize("row", [pytest.param(row, id=_id(row)) for row in SCRIPTS])
def test_a_script_runs(
    scripts: Path, opened: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch, row: list[str]
) -> None:
    monkeypatch.chdir(scripts)
    origin, program, holds = row
    if origin not in opened:
        opened[origin] = {}
        exec(CASES.programs[origin], opened[origin])
    usual = opened[origin]["llm"]
    if origin == "llama-cpp-python":
        usual.set_seed(7)  # makes scripts that sample reproducible
    names = dict(opened[origin])
    exec(CASES.filled(program), names)
    try:
        assert eval(CASES.filled(holds), names), {k: v for k, v in names.items() if not k.startswith("__")}
    finally:
        if names["llm"] is not usual:
            names["llm"].close()


def test_whole_scripts_run(scripts: Path) -> None:
    """Run complete scripts in their own process; the other tests share one."""
    firsts = {origin: next(row for row in SCRIPTS if row[0] == origin) for origin in CASES.programs}
    text = "\n".join(
        f"{CASES.programs[origin]}\n{CASES.filled(program)}\nassert {CASES.filled(holds)}\nllm.close()"
        for origin, program, holds in firsts.values()
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", text], cwd=scripts, env=environment(), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr


# The table


def test_there_are_thirty_scripts_of_each() -> None:
    origins = [row[0] for row in SCRIPTS]
    assert min(origins.count("llama-cpp-python"), origins.count("vLLM")) >= 30


def test_rows_have_the_columns_of_their_kind() -> None:
    known = {"llama.cpp", "llama-cpp-python", "vLLM", "Ollama", "seed", "OpenAI", "Anthropic", "Python", "all"}
    n_cells = {"same": 3, "asks": 4, "note": 3, "refused": 3, "prints": 3, "script": 3}
    for table in CASES.tables:
        for row in table.rows:
            assert row[0] in known
            assert len(row) == n_cells.get(table.kind, 4) or (table.kind == "session" and len(row) == 3), row


def test_the_page_is_current() -> None:
    if not PAGE.PAGE.is_file():
        pytest.skip("needs a checkout")
    assert PAGE.page() == PAGE.PAGE.read_text(encoding="utf-8"), "run ci/make_compatibility_page.py"
