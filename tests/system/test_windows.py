"""The parts of Windows support that run on other systems: no module uses what Windows lacks, listener and worker connect
through a local port, grammars are tried without a fork, and structures have the documented sizes."""

from __future__ import annotations

import ast
import asyncio
import ctypes
import inspect
import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import quire
from grammar_texts import byte_vocabulary
from quire.errors import RequestError
from quire.grammar import Compiler, CompilerLimits, grammar_source, trial
from quire.params.structured import StructuredOutputsParams
from quire.server.worker import launch, supervisor
from quire.server.worker.engine_client import EngineState
from quire.server.worker.protocol import Delta, Generate, Open
from quire.server.worker.supervisor import Watch, WorkerSupervisor
from quire.system import Lines, windows
from windows_paths import ATTRIBUTES, MODULES

pytestmark = [
    pytest.mark.python_only,
    pytest.mark.pythons,
    pytest.mark.skipif(sys.platform == "win32", reason="elsewhere"),
]
PACKAGE = Path(quire.__file__).resolve().parent
SCRIPT = (sys.executable, str(Path(__file__).resolve().parents[1] / "support" / "windows_paths.py"))
OWN = PACKAGE / "system" / "posix.py"


@pytest.fixture(autouse=True)
def same_quire(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let other processes import the same quire from any folder."""
    monkeypatch.setenv("PYTHONPATH", str(PACKAGE.parent))


def test_every_module_can_be_imported_without_modules_that_windows_lacks() -> None:
    done = subprocess.run([*SCRIPT, "imports"], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    # The parts that read transformers' classes are only imported where torch is installed.
    failed = {name: error for name, error in found["failed"].items() if "No module named 'torch'" not in error}
    assert (failed, found["chosen"]) == ({}, "quire.system.windows")
    assert found["n_modules"] > 400


def asked_for(source: str) -> list[str]:
    """Return the names in a source that Windows lacks, except those it checks for."""
    absent = {(module.__name__, name) for module, names in ATTRIBUTES.items() for name in names.split()}
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            named = (node.value.id, node.attr)
            if named in absent and f'hasattr({named[0]}, "{named[1]}")' not in source:
                found.append(".".join(named))
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        found += [name for name in names if name in MODULES]
    return found


def test_only_one_file_uses_names_that_windows_lacks() -> None:
    assert set(asked_for("import os, signal\nos.killpg(1, signal.SIGKILL)\ndef f():\n    import fcntl")) == {
        "fcntl", "os.killpg", "signal.SIGKILL",
    }  # fmt: skip
    found = {str(path): asked_for(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py") if path != OWN}
    assert {path: names for path, names in found.items() if names} == {}
    assert "os.fork" in asked_for(OWN.read_text(encoding="utf-8"))


def test_both_systems_have_the_same_functions() -> None:
    from quire import system
    from quire.system import posix

    names = set(system.__all__) - {"Lines"}
    assert len(names) > 15
    for name in names:
        ours, theirs = getattr(posix, name), getattr(windows, name)
        if callable(ours):
            assert inspect.signature(ours) == inspect.signature(theirs), name
        else:
            assert type(ours) is type(theirs), name


def test_structures_have_the_documented_sizes() -> None:
    found = [ctypes.sizeof(kind) for kind in (windows._JobLimits, windows._MemoryStatus, windows._ProcessMemory)]
    assert found == [144, 64, 80]
    assert windows._JobLimits.process_memory.offset == 112


def test_listener_and_worker_connect_through_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers equal those of a worker on POSIX sockets, and a worker that ends is restarted."""
    work = Generate(0, "Once upon a time", {"temperature": 0.0, "max_tokens": 12})

    async def text_of(engine: WorkerSupervisor) -> str:
        texts = []
        with engine.submit(work) as stream:
            await stream.start()
            while (batch := await stream.batch()) is not None:
                texts += [event.content for event in batch if isinstance(event, Delta)]
        return "".join(texts)

    async def answers(command: tuple[str, ...] | None, *, ends: bool) -> list[str]:
        engine = WorkerSupervisor(
            Open(None, {"threads": 1, "n_ctx": 256, "kv_dtype": "f32"}), Watch(check_s=0.05), command
        )
        try:
            await engine.start()
            found = [await text_of(engine)]
            if ends:
                before = engine.process_id
                assert engine._worker is not None
                engine._worker.process.kill()
                end_s = time.monotonic() + 60
                while engine.process_id == before or engine.state is not EngineState.READY:
                    assert time.monotonic() < end_s
                    await asyncio.sleep(0.01)
                found.append(await text_of(engine))
                assert engine._worker.connection.family is socket.AF_INET
        finally:
            await engine.stop()
        return found

    (expected,) = asyncio.run(answers(None, ends=False))
    assert len(expected) > 10
    monkeypatch.setattr(launch, "start_connected", windows.start_connected)
    for name in ("connect", "ended_by", "was_killed"):
        monkeypatch.setattr(supervisor, name, getattr(windows, name))
    assert asyncio.run(answers((*SCRIPT, "worker"), ends=True)) == [expected, expected]


SHOWS_ITS_TOKEN = (
    "import socket, sys, time; from quire.system import windows; time.sleep(0.3);"
    " windows.connection_of(sys.argv[1]).sendall(b'it is me')"
)


def test_a_peer_without_the_secret_is_not_accepted_as_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "_HELLO_S", 0.2)
    process, connected = windows.start_connected([sys.executable, "-c", SHOWS_ITS_TOKEN])
    port = int(process.args[-1])  # type: ignore[index]
    others = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
    others[0].sendall(b"0" * 64)  # a wrong secret
    others[1].close()  # closes without a secret; the third one stays open and sends nothing
    with connected() as connection:
        assert connection.makefile("rb").read() == b"it is me"
    assert process.wait() == 0
    for other in others:
        other.close()


def test_a_process_that_ends_before_connecting_gives_a_closed_connection() -> None:
    process, connected = windows.start_connected([sys.executable, "-c", "raise SystemExit(3)"])
    with connected() as connection:
        connection.settimeout(10)
        assert connection.recv(1) == b""
    assert process.returncode == 3
    assert [windows.ended_by(code) for code in (0, 1, 3, 0xC0000005)] == ["", "", "", "exception 0xC0000005"]


SLOW = "start: T0\n" + "".join(f"T{i}: T{i + 1} T{i + 1}\n" for i in range(40)) + 'T40: "a"'
DEEP = "start: r0\n" + "".join(f'r{i}: r{i + 1} "x" | "y"\n' for i in range(9000)) + 'r9000: "a"'


def test_grammars_are_tried_without_a_fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A grammar that takes too long or ends the process is an error, and the next one gets a new process."""
    program = (
        f"import sys; sys.path[:0] = {[str(PACKAGE.parent), str(Path(SCRIPT[1]).parent)]!r} + {sys.path!r}\n"
        "import windows_paths; windows_paths.trials()\n"
    )
    (tmp_path / "trial_process.py").write_text(program)
    monkeypatch.setattr(trial, "__file__", str(tmp_path / "trial.py"))
    monkeypatch.setattr(trial, "STACK_BYTES", 1 << 20)
    for name in ("TRIES_GO_ON", "GROUP", "end_group"):
        monkeypatch.setattr(trial, name, getattr(windows, name))
    # Less time than the grammar library's own limit needs on a fast machine.
    compiler = Compiler(byte_vocabulary, CompilerLimits(trial_s=0.1))

    def compile_(grammar: str) -> object:
        return compiler.compile(grammar_source(StructuredOutputsParams(grammar=grammar)))

    def process() -> subprocess.Popen[bytes] | None:
        assert compiler._trial is not None
        return compiler._trial._process

    assert compile_('start: "a"')
    first = process()
    assert first is not None
    assert compile_('start: "b"')
    assert process() is first
    for bad, words in ((SLOW, "s to compile|too complex"), (DEEP, "too complex")):
        with pytest.raises(RequestError, match=words):
            compile_(bad)
        assert process() is None
        assert first.poll() is not None
    assert compile_('start: "c"')
    after = process()
    assert after is not None
    assert after is not first


def test_limited_work_without_a_fork() -> None:
    def fails() -> None:
        raise SystemExit

    assert windows.try_within(lambda: None, 5.0, 5)[1] == "done"
    assert windows.try_within(fails, 5.0, 5)[1] == "broken"
    taken_s, how = windows.try_within(lambda: time.sleep(30), 5.0, 0)
    assert how == "late"
    assert taken_s < 5.0
    seen = threading.Event()
    assert windows.try_within(lambda: [None for _ in iter(seen.is_set, True)], 0.05, 60)[1] == "slow"
    seen.set()


def test_lines_of_a_process_with_a_time_limit() -> None:
    program = "import sys; print('one', flush=True); sys.stdin.readline(); print('two')"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        lines = Lines(process.stdout)
        assert lines.next(30) == b"one\n"
        with pytest.raises(TimeoutError):
            lines.next(0.05)
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert [lines.next(30), lines.next(30), lines.next(30)] == [b"two\n", None, None]
