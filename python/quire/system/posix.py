"""Linux, macOS and their like: what ``windows.py`` has as well, by the same names."""

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
# For subprocess.Popen: Ctrl-C is not for the process, and it can be ended with what it has started.
GROUP: dict[str, Any] = {"start_new_session": True}
TRIES_GO_ON = True  # of try_within: in processes of their own
_TCP_CLOSED, _TCP_CLOSE_WAIT = 7, 8


# Processes that are connected


def start_connected(command: Sequence[str]) -> tuple[subprocess.Popen[bytes], Callable[[], socket.socket]]:
    """Start a process with one more argument, of which ``connection_of`` makes its end of a connection there.

    The function gives the end that is kept here; it is called once.
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
    """The end of the process that was started."""
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
    """Whether the other end of a TCP connection takes nothing any more, where the system can tell."""
    return _tcp_state(connection) == _TCP_CLOSED


def peer_has_ended(connection: socket.socket) -> bool:
    """Return whether the peer of a TCP connection has stopped sending, even if bytes from it are still unread."""
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
    """Ctrl-C and a service's stop reach a whole group of processes: this one is ended otherwise."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process that was started with ``GROUP``, and what it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def ended_by(code: int) -> str:
    """What ended a process that did not end by itself, by its exit code: ``"SIGABRT"``; "" where it did."""
    if code >= 0:
        return ""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def was_killed(code: int) -> bool:
    """Whether it was ended from outside: by an operator, or by a system short of memory."""
    return code == -signal.SIGKILL


# Limits and priorities


def try_within(work: Callable[[], object], processor_s: float, clock_s: int) -> tuple[float, str]:
    """Do work in a fork, which may end by it: the processor time that it took, and how it ended.

    "done", "slow" after ``processor_s`` of processor time, "late" after ``clock_s`` by the clock, "broken" by itself.
    """
    child = os.fork()
    if child == 0:
        signal.setitimer(signal.ITIMER_PROF, processor_s)  # whose signal ends the process
        signal.alarm(clock_s)  # also where nobody is left to do so
        work()
        os._exit(0)
    _, status, usage = os.wait4(child, 0)
    by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status)
    ends: dict[int, str] = {0: "done", signal.SIGPROF: "slow", signal.SIGALRM: "late"}
    return usage.ru_utime + usage.ru_stime, ends.get(by, "broken")


def taken_s(process: subprocess.Popen[bytes]) -> float:
    """Processor time of a process that runs, where the system tells; else 0."""
    try:
        text = Path(f"/proc/{process.pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0.0
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def limit_memory(n_bytes: int) -> None:
    """Of this process, where the system can."""
    import resource

    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (n_bytes, n_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def lower_priority(steps: int) -> None:
    """Put this process behind others, also where the system shares the processor out by sessions."""
    with contextlib.suppress(OSError):
        own = os.nice(steps)
        if os.getsid(0) == os.getpid() and sys.platform == "linux":
            with open("/proc/self/autogroup", "w", encoding="ascii") as file:
                file.write(str(own))


def lower_thread_priority(steps: int) -> None:
    """Put the thread that calls behind others, where threads have priorities."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            own = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, own, os.getpriority(os.PRIO_PROCESS, own) + steps)


# What the system tells


def clock_of_this_thread() -> Callable[[], float]:
    """Seconds of processor time of the thread that calls, for any thread to ask; OSError when it has ended.

    Where the system does not tell, seconds by the clock.
    """
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.monotonic
    clock = time.pthread_getcpuclockid(threading.get_ident())
    return lambda: time.clock_gettime(clock)


def machine_memory_bytes() -> int | None:
    """What the machine has; None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def process_memory() -> tuple[int, int]:
    """Resident and private bytes of this process, where the system tells; else zeros."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            found = dict(line.split(":", 1) for line in file)
    except OSError:
        return 0, 0
    resident, private = (int(found.get(name, "0 kB").split()[0]) * 1024 for name in ("VmRSS", "RssAnon"))
    return resident, private


def loaded_files() -> list[str]:
    """The files that this process has mapped, where the system tells."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return []
    return sorted({fields[5] for line in maps.splitlines() if len(fields := line.split(None, 5)) == 6})


# Files and the terminal


def give_usual_mode(path: Path) -> None:
    """What a file that is made without a mode has; temporary ones are their owner's alone."""
    umask = os.umask(0)
    os.umask(umask)
    path.chmod(0o666 & ~umask)


def sync_folder(folder: Path) -> None:
    """Write a folder's names to the disk."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def input_waits(seconds: float) -> bool:
    """Whether something to read comes to standard input in time."""
    return bool(select.select([sys.stdin], [], [], seconds)[0])


def try_lock(file: BinaryIO) -> bool | None:
    """Whether the file's lock is ours now, and not another process's; None where there are none."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
