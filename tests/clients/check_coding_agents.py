"""Check Claude Code and Codex, from their npm packages: ``python check_coding_agents.py NODE_MODULES``.

Each program runs twice.  With a server of the package's model, which is too small to use tools, it prints the answer to
a question.  With a server whose model is a script (tests/support/tool_loop_server.py), it reads a file: it runs the
tool that the model calls, sends the result back, and prints the answer.  The server may not refuse any request.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from checks import CAPITAL, Checks, finish

BIN = Path(sys.argv[1]).resolve() / ".bin"
SUPPORT = Path(__file__).resolve().parent.parent / "support"
QUESTION = str(CAPITAL[0]["content"])
PATIENCE_S = 300
# Codex's prompt and tools take eleven thousand tokens of the small model.
QUIRE = [sys.executable, "-m", "quire", "serve", "--port", "0", "-c", "16384"]


@contextmanager
def server(folder: Path, command: list[str]) -> Iterator[tuple[str, Path]]:
    """Run a server until the block ends; yield its address and log."""
    log = folder / "server.log"
    path = os.pathsep.join([str(SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with log.open("wb") as file:
        process = subprocess.Popen(command, stderr=file, env={**os.environ, "PYTHONPATH": path})
    try:
        for _ in range(600):
            if found := re.search(r"on (http://\S+)", log.read_text(encoding="utf-8")):
                break
            time.sleep(0.1)
        else:
            sys.exit(f"the server did not print its address: {log.read_text(encoding='utf-8')}")
        yield found[1], log
    finally:
        process.terminate()
        process.wait()


def statuses(log: Path) -> list[int]:
    """Return the status of each request that the server answered, from its log."""
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("{")]
    return [line["status"] for line in lines]


def run(folder: Path, command: list[str], more: dict[str, str]) -> str:
    """Run a program without this user's settings and return its output."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), **more}
    done = subprocess.run(
        command,
        check=False,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    if done.returncode:
        sys.exit(f"{command[0]} exited with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def claude(folder: Path, url: str, question: str, *arguments: str) -> Any:
    """Run Claude Code and return its result."""
    more = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_AUTH_TOKEN": "unused", "ANTHROPIC_MODEL": "local"}
    more |= {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
    command = [str(BIN / "claude"), "-p", question, "--output-format", "json", *arguments]
    return json.loads(run(folder, command, more))


def codex(folder: Path, url: str, question: str) -> str:
    """Run Codex and return its last message."""
    provider = {"name": "Quire", "base_url": f"{url}/v1", "wire_api": "responses", "env_key": "QUIRE_KEY"}
    settings = {"model": "local", "model_provider": "quire", "model_providers.quire": provider}
    shown = [f"-c{name}={toml(value)}" for name, value in settings.items()]
    said = folder / "said.txt"
    command = [str(BIN / "codex"), "exec", "--skip-git-repo-check", "-s", "danger-full-access", "-o", str(said), *shown]
    run(folder, [*command, question], {"QUIRE_KEY": "unused"})
    return said.read_text(encoding="utf-8")


def toml(value: Any) -> str:
    """Format a value for Codex's command line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {toml(item)}" for name, item in value.items()) + "}"
    return json.dumps(value)


def check(checks: Checks, name: str, answer: str, log: Path) -> None:
    checks.true(f"{name} prints an answer", answer.strip())
    checks.true(f"{name}: no request is refused: {statuses(log)}", statuses(log) and max(statuses(log)) < 400)


def main() -> None:
    checks = Checks()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with server(folder, QUIRE) as (url, log):
            # Its shortest prompt, as the full one takes 34 thousand tokens of this model.
            few = ["--bare", "--system-prompt", "Be brief.", "--tools", "Read"]
            check(checks, "Claude Code", claude(folder, url, QUESTION, *few)["result"], log)
        with server(folder, QUIRE) as (url, log):
            check(checks, "Codex", codex(folder, url, QUESTION), log)
        word = secrets.token_hex(8)
        note = folder / "note.txt"
        note.write_text(f"{word}\n", encoding="utf-8")
        for program, ask in (("Claude Code", claude), ("Codex", codex)):
            with server(folder, [sys.executable, str(SUPPORT / "tool_loop_server.py")]) as (url, log):
                answer = ask(folder, url, f"What does the file {note} say?")
                said = answer if isinstance(answer, str) else answer["result"]
                check(checks, f"{program} with a tool", said, log)
                checks.true(f"{program} says what the file says: {said!r}", word in said)
    finish(checks, "Claude Code and Codex", 10)


main()
