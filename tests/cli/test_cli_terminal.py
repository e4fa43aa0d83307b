"""``quire chat`` and ``quire run`` on a pseudo-terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from test_cli_model import environment

CTRL_C, CTRL_D, UP = b"\x03", b"\x04", b"\x1b[A"
TIMEOUT_S = 180.0
IDENTITY = "I am Tiny, a very small language model."


class Terminal:
    """The keyboard and screen of a process."""

    def __init__(self, descriptor: int, process: subprocess.Popen[bytes]) -> None:
        self._descriptor = descriptor
        self.process = process
        self._screen = b""

    def type(self, keys: bytes | str) -> None:
        os.write(self._descriptor, keys if isinstance(keys, bytes) else keys.encode())

    def until(self, text: str, within_s: float = TIMEOUT_S) -> str:
        """Wait until ``text`` is shown and return everything up to it since the last call."""
        wanted = text.encode()
        deadline = time.monotonic() + within_s
        while wanted not in self._screen:
            left = deadline - time.monotonic()
            assert left > 0, f"{text!r} did not appear: {self._screen.decode()!r}"
            if select.select([self._descriptor], [], [], left)[0]:
                self._screen += os.read(self._descriptor, 4096)
        found, _, self._screen = self._screen.partition(wanted)
        return (found + wanted).decode().replace("\r\n", "\n")

    def end(self) -> tuple[int, str]:
        """Wait for the process to end; return its exit code and the rest of its output."""
        while True:
            try:
                data = os.read(self._descriptor, 4096)
            except OSError:  # on Linux, the other side is closed
                break
            if not data:
                break
            self._screen += data
        return self.process.wait(TIMEOUT_S), self._screen.decode().replace("\r\n", "\n")


@contextmanager
def terminal(*arguments: str, kind: str = "dumb", program: tuple[str, ...] = ("-m", "quire")) -> Iterator[Terminal]:
    keyboard, screen = pty.openpty()
    command = [sys.executable, *program, *arguments]
    variables = {**environment(), "TERM": kind}
    process = subprocess.Popen(
        command,
        stdin=screen,
        stdout=screen,
        stderr=screen,
        env=variables,
        start_new_session=True,
        preexec_fn=_control,  # noqa: PLW1509 - this process has no other thread
    )
    os.close(screen)
    try:
        yield Terminal(keyboard, process)
    finally:
        process.kill()
        process.wait()
        os.close(keyboard)


def _control() -> None:
    """Make the pseudo-terminal the process's controlling terminal, so that Ctrl-C sends a signal."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@contextmanager
def chat(*arguments: str) -> Iterator[Terminal]:
    with terminal("chat", "--temp", "0", *arguments) as screen:
        assert "no model given" in screen.until("> ")
        yield screen


def test_questions_and_answers() -> None:
    with chat() as screen:
        screen.type("Who are you?\n")
        assert IDENTITY in screen.until("\n> ")
        screen.type("What is the capital of France?\n")
        assert "Paris" in screen.until("\n> ")
        screen.type(CTRL_D)
        assert screen.end()[0] == 0


def test_ctrl_c_stops_the_answer_and_not_the_program(tmp_path: Path) -> None:
    saved = tmp_path / "talk.json"
    with chat("--ignore-eos") as screen:
        screen.type("Tell me a story about a fox\n")
        screen.until("fox\r\n")  # skip the echo of the input
        begin = screen.until(" ")
        screen.type(CTRL_C)
        screen.until("\n> ")
        screen.type(f"/save {saved}\n")
        screen.until("saved 2 messages")
        screen.until("> ")
        screen.type("/exit\n")
        assert screen.end()[0] == 0
    question, answer = json.loads(saved.read_text(encoding="utf-8"))["messages"]
    assert question["content"] == "Tell me a story about a fox"
    assert answer["content"].startswith(begin.strip())
    # Without Ctrl-C the answer would have filled the context.
    assert len(answer["content"]) < 7000


def test_ctrl_c_at_the_prompt_drops_the_line() -> None:
    with chat() as screen:
        screen.type("Tell me a very long")
        screen.until("very long")
        # Python misses a Ctrl-C between echoing a key and waiting for the next one; a person types it again.
        for _ in range(60):
            screen.type(CTRL_C)
            with suppress(AssertionError):
                assert "Ctrl-D" in screen.until("quit", 3)
                break
        screen.until("> ")
        screen.type("/exit\n")
        assert screen.end()[0] == 0


def test_the_arrow_key_recalls_lines_of_this_and_earlier_sessions(tmp_path: Path) -> None:
    pytest.importorskip("readline")
    history = tmp_path / "history"
    with chat("--history", str(history)) as screen:
        screen.type("Who are you?\n")
        screen.until("\n> ")
        screen.type(UP + b"\n")
        assert IDENTITY in screen.until("\n> ")
        screen.type(CTRL_D)
        assert screen.end()[0] == 0
    assert "Who are you?" in history.read_text()
    with chat("--history", str(history)) as screen:
        screen.type(UP)
        screen.until("Who are you?")
        screen.type(b"\n")
        assert IDENTITY in screen.until("\n> ")


def test_continued_lines_and_help() -> None:
    with chat() as screen:
        screen.type("Who are \\\n")
        screen.until("... ")
        screen.type("you?\n")
        screen.until("\n> ")
        screen.type("/help\n")
        assert "/reset" in screen.until("of several lines.")


def test_run_without_a_prompt_starts_a_conversation() -> None:
    with terminal("run", "--temp", "0") as screen:
        assert "no model given" in screen.until("> ")
        screen.type("Who are you?\n")
        assert IDENTITY in screen.until("\n> ")
        screen.type(CTRL_D)
        assert screen.end()[0] == 0


def test_run_raw_requires_a_prompt() -> None:
    with terminal("run", "--raw") as screen:
        code, shown = screen.end()
    assert code == 2
    assert shown.startswith("quire: [run] no prompt: ")


def test_bench_shows_its_progress() -> None:
    with terminal("bench", "-p", "8", "-n", "2", "-b", "1", "-r", "1", kind="xterm") as screen:
        assert "measuring" in screen.until("measuring")
        code, shown = screen.end()
    assert code == 0
    assert "tokens/s" in shown


def test_pasted_and_quoted_lines_are_one_message(tmp_path: Path) -> None:
    saved = tmp_path / "talk.json"
    with chat() as screen:
        screen.type("Who are you?\nAnd what\ncan you do?\n")
        screen.until("\n> ")
        screen.type('"""first\n')
        screen.until("... ")
        screen.type('second"""\n')
        screen.until("\n> ")
        screen.type(f"/save {saved}\n")
        assert "saved 4 messages" in screen.until("> ")
    messages = json.loads(saved.read_text(encoding="utf-8"))["messages"]
    assert messages[0]["content"] == "Who are you?\nAnd what\ncan you do?"
    assert messages[2]["content"] == "first\nsecond"


def test_what_was_typed_before_a_question_does_not_answer_it() -> None:
    """A "yes" that waits in the terminal is no approval of a call that the user has not seen."""
    code = (
        "from quire.cli.terminal_input import Keyboard; from quire.system import input_waits\n"
        "keyboard = Keyboard([]); print('ready', flush=True); input_waits(30)\n"
        "print('said', keyboard.word('run it? '), flush=True)"
    )
    with terminal(program=("-c", code)) as screen:
        screen.until("ready")
        screen.type("yes\n")
        screen.until("run it? ")
        screen.type("no\n")
        screen.until("said no")


def test_tab_completes_commands_and_edit_recalls_the_message() -> None:
    pytest.importorskip("readline")
    with chat() as screen:
        screen.type("Who are you\n")
        screen.until("\n> ")
        screen.type("/ed\t\n")
        screen.until("Who are you")
        screen.type("?\n")
        assert IDENTITY in screen.until("\n> ")
