"""The functions of ``posix.py`` for Windows.

Calls of the Windows API have never been run.  Tests run connections, and limits without a fork, on Linux.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import queue
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

if TYPE_CHECKING:
    import asyncio

_Protocol = TypeVar("_Protocol", bound="asyncio.BaseProtocol")
EVENT_LOOP = "asyncio"  # uvloop does not support Windows
# For subprocess.Popen: Ctrl-C does not reach the process.
GROUP: dict[str, Any] = {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)}
TRIES_GO_ON = False  # try_within() has no fork, so exceeding a limit ends the process itself
# Exit codes from here on are the reason: access violation, stack overflow, heap corruption, abort.
_FIRST_EXCEPTION = 0xC0000000
_TOKEN_BYTES = 32
_HELLO_S = 5.0  # for a peer to send its token
_START_S = 60.0  # for a process to connect
_LOOK_S = 0.01
_BELOW_NORMAL_CLASS, _BELOW_NORMAL_THREAD = 0x4000, -1


def _library(name: str) -> Any:
    """Return a Windows library; its functions report errors with ``ctypes.get_last_error``."""
    if sys.platform == "win32":
        return ctypes.WinDLL(name, use_last_error=True)
    raise OSError(f"this system has no {name}")


# Processes that are connected


def start_connected(command: Sequence[str]) -> tuple[subprocess.Popen[bytes], Callable[[], socket.socket]]:
    """Start a process that is connected to this one; it passes its last argument to ``connection_of``.

    Call the returned function once: it waits for the process to connect and returns this process's end.  The connection
    goes through a local port, where the process sends a secret that it reads from its standard input.
    """
    token = secrets.token_hex(_TOKEN_BYTES).encode()
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        if hasattr(socket, "SO_EXCLUSIVEADDRUSE"):  # nobody else may bind the port
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        listening.bind(("127.0.0.1", 0))
        listening.listen(8)
        process = subprocess.Popen(
            [*command, str(listening.getsockname()[1])], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, **GROUP
        )
    except BaseException:
        listening.close()
        raise
    assert process.stdin is not None
    with contextlib.suppress(OSError), process.stdin:
        process.stdin.write(token + b"\n")
    return process, lambda: _accepted(listening, process, token)


def _accepted(listening: socket.socket, process: subprocess.Popen[bytes], token: bytes) -> socket.socket:
    """Return the connection from the process, or one with a closed peer if the process has ended."""
    end_s = time.monotonic() + _START_S
    with listening:
        listening.settimeout(_LOOK_S)
        while process.poll() is None:
            try:
                connection, _ = listening.accept()
            except TimeoutError:
                if time.monotonic() > end_s:
                    process.kill()
                continue
            if _shows(connection, token):
                connection.settimeout(None)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return connection
            connection.close()
        # Readers see the end of the process, as on other systems.
        connection = socket.create_connection(listening.getsockname())
        listening.accept()[0].close()
        return connection


def _shows(connection: socket.socket, token: bytes) -> bool:
    """Return True if the peer sends the secret in time."""
    shown, end_s = b"", time.monotonic() + _HELLO_S
    while len(shown) < len(token):
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            return False
        connection.settimeout(left_s)
        try:
            came = connection.recv(len(token) - len(shown))
        except OSError:
            return False
        if not came:
            return False
        shown += came
    return secrets.compare_digest(shown, token)


def connection_of(argument: str) -> socket.socket:
    """Return the started process's end of the connection."""
    token = sys.stdin.buffer.readline().strip()
    connection = socket.create_connection(("127.0.0.1", int(argument)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(token)
    return connection


async def connect(make: Callable[[], _Protocol], connection: socket.socket) -> _Protocol:
    """Let the running loop serve a connection of ``start_connected``."""
    import asyncio  # not for workers

    _, protocol = await asyncio.get_running_loop().create_connection(make, sock=connection)
    return protocol


def allow_open_files(n: int) -> None:
    """Do nothing: Windows has no such limit."""


def peer_is_gone(connection: socket.socket) -> bool:
    """Return False: Windows does not report it."""
    return False


def peer_has_ended(connection: socket.socket) -> bool:
    """Return False: Windows does not report it."""
    return False


# How processes end


def ignore_stops() -> None:
    """Ignore Ctrl-C and Ctrl-Break, which reach all processes of a console; this one is ended in another way."""
    for name in ("SIGINT", "SIGBREAK"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process that was started with ``GROUP``; it has no child processes."""
    process.kill()


def ended_by(code: int) -> str:
    """Return the exception that ended a process, ``"exception 0xC0000005"``, or "" if it exited by itself."""
    return f"exception {code & 0xFFFFFFFF:#X}".replace("0X", "0x") if code & 0xFFFFFFFF >= _FIRST_EXCEPTION else ""


def was_killed(code: int) -> bool:
    """Return False: on Windows the caller that ends a process chooses its exit code."""
    return False


# Limits and priorities


def try_within(work: Callable[[], object], processor_s: float, clock_s: int) -> tuple[float, str]:
    """Do work in this process, which must end soon if the result is not "done".

    A thread watches the time.  Work that keeps other Python threads from running is ended by the parent, with
    ``taken_s``.
    """
    begun_s, end_s = time.process_time(), time.monotonic() + clock_s
    ends: queue.SimpleQueue[str] = queue.SimpleQueue()

    def run() -> None:
        try:
            work()
        except BaseException:
            ends.put("broken")
        else:
            ends.put("done")

    threading.Thread(target=run, name="quire-try", daemon=True).start()
    how = ""
    while not how:
        try:
            how = ends.get(timeout=_LOOK_S)
        except queue.Empty:
            if time.process_time() - begun_s > processor_s:
                how = "slow"
            elif time.monotonic() > end_s:
                how = "late"
    return time.process_time() - begun_s, how


def taken_s(process: subprocess.Popen[bytes]) -> float:
    """Return the processor time of a running process in seconds, 0 if unknown."""
    with contextlib.suppress(OSError, AttributeError):
        handle = ctypes.c_void_p(int(getattr(process, "_handle")))  # noqa: B009
        times = (ctypes.c_uint64 * 4)()  # creation, exit, kernel and user time, in 100 ns
        places = [ctypes.byref(times, 8 * i) for i in range(4)]
        if _library("kernel32").GetProcessTimes(handle, *places):
            return (times[2] + times[3]) / 1e7
    return 0.0


class _JobLimits(ctypes.Structure):
    """JOBOBJECT_EXTENDED_LIMIT_INFORMATION of 64-bit Windows."""

    _fields_ = (
        ("per_process_user_time", ctypes.c_int64),
        ("per_job_user_time", ctypes.c_int64),
        ("limit_flags", ctypes.c_uint32),
        ("minimum_working_set", ctypes.c_uint64),
        ("maximum_working_set", ctypes.c_uint64),
        ("active_processes", ctypes.c_uint32),
        ("affinity", ctypes.c_uint64),
        ("priority_class", ctypes.c_uint32),
        ("scheduling_class", ctypes.c_uint32),
        ("io_counters", ctypes.c_uint64 * 6),
        ("process_memory", ctypes.c_uint64),
        ("job_memory", ctypes.c_uint64),
        ("peak_process_memory", ctypes.c_uint64),
        ("peak_job_memory", ctypes.c_uint64),
    )


_EXTENDED_LIMITS, _LIMIT_PROCESS_MEMORY = 9, 0x100


def limit_memory(n_bytes: int) -> None:
    """Limit this process's memory with a job object, or not at all if that fails."""
    with contextlib.suppress(OSError):
        kernel32 = _library("kernel32")
        kernel32.CreateJobObjectW.restype = kernel32.GetCurrentProcess.restype = ctypes.c_void_p
        job = ctypes.c_void_p(kernel32.CreateJobObjectW(None, None))
        limits = _JobLimits(limit_flags=_LIMIT_PROCESS_MEMORY, process_memory=n_bytes)
        size = ctypes.c_uint32(ctypes.sizeof(limits))
        kernel32.SetInformationJobObject(job, _EXTENDED_LIMITS, ctypes.byref(limits), size)
        kernel32.AssignProcessToJobObject(job, ctypes.c_void_p(kernel32.GetCurrentProcess()))


def lower_priority(steps: int) -> None:
    """Give this process a lower priority."""
    with contextlib.suppress(OSError):
        kernel32 = _library("kernel32")
        kernel32.GetCurrentProcess.restype = ctypes.c_void_p
        kernel32.SetPriorityClass(ctypes.c_void_p(kernel32.GetCurrentProcess()), _BELOW_NORMAL_CLASS)


def lower_thread_priority(steps: int) -> None:
    """Give the calling thread a lower priority."""
    with contextlib.suppress(OSError):
        kernel32 = _library("kernel32")
        kernel32.GetCurrentThread.restype = ctypes.c_void_p
        kernel32.SetThreadPriority(ctypes.c_void_p(kernel32.GetCurrentThread()), _BELOW_NORMAL_THREAD)


# Information from the system


def clock_of_this_thread() -> Callable[[], float]:
    """Return the wall clock, as Python has no thread clocks on Windows."""
    return time.monotonic


class _MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX."""

    _fields_ = (
        ("length", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        ("total", ctypes.c_uint64),
        ("others", ctypes.c_uint64 * 6),
    )


class _ProcessMemory(ctypes.Structure):
    """PROCESS_MEMORY_COUNTERS_EX."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("page_faults", ctypes.c_uint32),
        ("peak_working_set", ctypes.c_size_t),
        ("working_set", ctypes.c_size_t),
        ("quotas", ctypes.c_size_t * 4),
        ("pagefile", ctypes.c_size_t),
        ("peak_pagefile", ctypes.c_size_t),
        ("private", ctypes.c_size_t),
    )


def machine_memory_bytes() -> int | None:
    """Return the machine's memory, None if unknown."""
    status = _MemoryStatus(length=ctypes.sizeof(_MemoryStatus))
    with contextlib.suppress(OSError):
        if _library("kernel32").GlobalMemoryStatusEx(ctypes.byref(status)):
            return int(status.total)
    return None


def process_memory() -> tuple[int, int]:
    """Return the resident and private bytes of this process, zeros if unknown."""
    found = _ProcessMemory(size=ctypes.sizeof(_ProcessMemory))
    with contextlib.suppress(OSError):
        kernel32 = _library("kernel32")
        kernel32.GetCurrentProcess.restype = ctypes.c_void_p
        here = ctypes.c_void_p(kernel32.GetCurrentProcess())
        if kernel32.K32GetProcessMemoryInfo(here, ctypes.byref(found), found.size):
            return int(found.working_set), int(found.private)
    return 0, 0


def loaded_files() -> list[str]:
    """Return []: not implemented on Windows."""
    return []


# Files and the terminal


def give_usual_mode(path: Path) -> None:
    """Do nothing: files inherit the permissions of their folder."""


def sync_folder(folder: Path) -> None:
    """Do nothing: the file system's journal keeps names."""


def open_below(root: str, parts: Sequence[str]) -> int:
    """Return a descriptor of the file ``parts`` below a folder.  OSError if it is a link or cannot be opened."""
    path = Path(root, *parts)
    if path.resolve() != path:
        raise PermissionError(13, "a link")
    with path.open("rb") as file:
        return os.dup(file.fileno())


def input_waits(seconds: float) -> bool:
    """Return False: a Windows console cannot be polled."""
    return False


def drop_input() -> None:
    """Drop what was typed at the console and not yet read."""
    console = importlib.import_module("msvcrt")
    while console.kbhit():
        console.getwch()


def try_lock(file: BinaryIO) -> bool | None:
    """Return None: a lock would keep its own process from renaming the file."""
    return None
