"""The functions of ``windows.py`` for Linux, macOS and similar systems."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

assert sys.platform != "win32"

if TYPE_CHECKING:
    import asyncio

_Protocol = TypeVar("_Protocol", bound="asyncio.BaseProtocol")
EVENT_LOOP = "uvloop"
# For subprocess.Popen: Ctrl-C does not reach the process, and it can be ended together with its children.
GROUP: dict[str, Any] = {"start_new_session": True}
TRIES_GO_ON = True  # try_within() forks, so exceeding a limit does not end this process
_TCP_CLOSED, _TCP_CLOSE_WAIT = 7, 8


# Processes that are connected


def start_connected(command: Sequence[str]) -> tuple[subprocess.Popen[bytes], Callable[[], socket.socket]]:
    """Start a process that is connected to this one; it passes its last argument to ``connection_of``.

    Call the returned function once to get this process's end.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [*command, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
    return process, lambda: ours


def connection_of(argument: str) -> socket.socket:
    """Return the started process's end of the connection."""
    return socket.socket(fileno=int(argument))


async def connect(make: Callable[[], _Protocol], connection: socket.socket) -> _Protocol:
    """Let the running loop serve a connection of ``start_connected``."""
    import asyncio  # not for workers

    _, protocol = await asyncio.get_running_loop().create_unix_connection(make, sock=connection)
    return protocol


def allow_open_files(n: int) -> None:
    """Raise this process's limit of open files to ``n``, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = n if hard == resource.RLIM_INFINITY else min(n, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def peer_is_gone(connection: socket.socket) -> bool:
    """Return True if the peer of a TCP connection no longer receives; False if unknown."""
    return _tcp_state(connection) == _TCP_CLOSED


def peer_has_ended(connection: socket.socket) -> bool:
    """Return True if the peer of a TCP connection has stopped sending, even if bytes from it are still unread."""
    return _tcp_state(connection) in (_TCP_CLOSED, _TCP_CLOSE_WAIT)


def _tcp_state(connection: socket.socket) -> int | None:
    if sys.platform != "linux":
        return None
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8)
    except OSError:
        return _TCP_CLOSED
    return int(struct.unpack_from("B", info)[0])


# How processes end


def ignore_stops() -> None:
    """Ignore Ctrl-C and a service's stop, which reach the whole process group; this process is ended in another way."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process that was started with ``GROUP``, and its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def ended_by(code: int) -> str:
    """Return the signal that ended a process, ``"SIGABRT"``, or "" if it exited by itself."""
    if code >= 0:
        return ""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def was_killed(code: int) -> bool:
    """Return True if a process was killed from outside: by an operator, or by the system when out of memory."""
    return code == -signal.SIGKILL


# Limits and priorities


def try_within(work: Callable[[], object], processor_s: float, clock_s: int) -> tuple[float, str]:
    """Do work in a fork; return its processor time in seconds and how it ended.

    "done", "slow" after ``processor_s`` of processor time, "late" after ``clock_s`` of wall time, or "broken" if it
    crashed.
    """
    child = os.fork()
    if child == 0:
        signal.setitimer(signal.ITIMER_PROF, processor_s)  # its signal ends the process
        signal.alarm(clock_s)  # works even if the parent is gone
        work()
        os._exit(0)
    _, status, usage = os.wait4(child, 0)
    by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status)
    ends: dict[int, str] = {0: "done", signal.SIGPROF: "slow", signal.SIGALRM: "late"}
    return usage.ru_utime + usage.ru_stime, ends.get(by, "broken")


def taken_s(process: subprocess.Popen[bytes]) -> float:
    """Return the processor time of a running process in seconds, 0 if unknown."""
    try:
        text = Path(f"/proc/{process.pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0.0
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def limit_memory(n_bytes: int) -> None:
    """Limit this process's memory, if the system can."""
    import resource

    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (n_bytes, n_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def lower_priority(steps: int) -> None:
    """Give this process a lower priority, even if the system schedules by session."""
    with contextlib.suppress(OSError):
        own = os.nice(steps)
        if os.getsid(0) == os.getpid() and sys.platform == "linux":
            with open("/proc/self/autogroup", "w", encoding="ascii") as file:
                file.write(str(own))


def lower_thread_priority(steps: int) -> None:
    """Give the calling thread a lower priority, if threads have priorities."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            own = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, own, os.getpriority(os.PRIO_PROCESS, own) + steps)


# Information from the system


def clock_of_this_thread() -> Callable[[], float]:
    """Return a function that gives the calling thread's processor time in seconds, callable from any thread.

    It raises OSError if the thread has ended.  On systems without thread clocks it is the wall clock.
    """
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.monotonic
    clock = time.pthread_getcpuclockid(threading.get_ident())
    return lambda: time.clock_gettime(clock)


def machine_memory_bytes() -> int | None:
    """Return the machine's memory, None if unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def process_memory() -> tuple[int, int]:
    """Return the resident and private bytes of this process, zeros if unknown."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            found = dict(line.split(":", 1) for line in file)
    except OSError:
        return 0, 0
    resident, private = (int(found.get(name, "0 kB").split()[0]) * 1024 for name in ("VmRSS", "RssAnon"))
    return resident, private


def loaded_files() -> list[str]:
    """Return the files that this process has mapped, [] if unknown."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return []
    return sorted({fields[5] for line in maps.splitlines() if len(fields := line.split(None, 5)) == 6})


# Files and the terminal


def give_usual_mode(path: Path) -> None:
    """Give a temporary file, which only its owner may read, the default permissions of new files."""
    umask = os.umask(0)
    os.umask(umask)
    path.chmod(0o666 & ~umask)


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, so that new and renamed files survive a power failure."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def open_below(root: str, parts: Sequence[str]) -> int:
    """Return a descriptor of the file ``parts`` below a folder, following no link.  OSError if it cannot be opened.

    Opening never waits, whatever the file is.
    """
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts[:-1]:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = inner
        return os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    finally:
        os.close(folder)


def input_waits(seconds: float) -> bool:
    """Return True if standard input has something to read within the given time."""
    return bool(select.select([sys.stdin], [], [], seconds)[0])


def drop_input() -> None:
    """Drop what was typed at the terminal and not yet read."""
    with contextlib.suppress(termios.error):
        termios.tcflush(sys.stdin, termios.TCIFLUSH)


def try_lock(file: BinaryIO) -> bool | None:
    """Try to lock a file; return False if another process has the lock, None if locks are unsupported."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
