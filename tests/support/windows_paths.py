"""Run Quire's Windows code on another system, as far as possible; a script for separate processes.

python windows_paths.py imports      imports every module, without what Windows lacks, and prints those that fail
python windows_paths.py worker PORT  a worker that connects as on Windows
python windows_paths.py trials       tries grammars without a fork: the program that quire.grammar.trial starts
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
import time
from pathlib import Path

MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "uvloop")
ATTRIBUTES = {
    os: "fork forkpty killpg getpgid setsid getsid nice setpriority getpriority wait4 sysconf getuid geteuid getgid"
    " statvfs fstatvfs sched_getaffinity sched_setaffinity WIFSIGNALED WTERMSIG WEXITSTATUS fchmod mkfifo uname getloadavg pread pwrite"
    " O_CLOEXEC O_NONBLOCK O_DIRECTORY O_NOFOLLOW",
    signal: "SIGHUP SIGKILL SIGSTOP SIGCONT SIGALRM SIGPROF SIGUSR1 SIGUSR2 SIGPIPE SIGQUIT alarm setitimer ITIMER_PROF"
    " pthread_kill pthread_sigmask sigwait",
    socket: "AF_UNIX TCP_INFO TCP_USER_TIMEOUT SO_REUSEPORT",
    select: "poll epoll kqueue",
    time: "pthread_getcpuclockid clock_gettime clock_settime",
}  # fmt: skip


def choose_windows() -> None:
    """Use the Windows version of ``quire.system`` from now on, and nothing else of Windows."""
    importlib.import_module("quire")
    before, sys.platform = sys.platform, "win32"
    try:
        importlib.import_module("quire.system")
    finally:
        sys.platform = before


def hide() -> None:
    """Hide what Windows lacks, after importing other packages, which have their own code for Windows."""
    for name in (
        "asyncio", "http.client", "huggingface_hub", "jinja2", "llguidance", "msgspec", "multiprocessing", "numpy",
        "opentelemetry.sdk.trace", "prometheus_client", "readline", "regex", "rich.console", "rich.progress", "sqlite3", "starlette.routing",
        "tempfile", "urllib.request", "uvicorn.protocols.http.httptools_impl", "uvicorn.server",
    ):  # fmt: skip
        try:
            importlib.import_module(name)
        except ImportError:
            continue
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    for module, names in ATTRIBUTES.items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)


def imports() -> None:
    choose_windows()
    hide()
    import quire

    failed, n_modules = {}, 0
    for info in pkgutil.walk_packages(quire.__path__, "quire."):
        # posix.py is not imported on Windows, frameworks may be missing, and one module is a command.
        if info.name in ("quire.system.posix", "quire.__main__") or info.name.startswith(
            ("quire.integrations.", "quire.ray.")
        ):
            continue
        n_modules += 1
        try:
            importlib.import_module(info.name)
        except BaseException as error:
            failed[info.name] = repr(error)
    chosen = sys.modules["quire.system"].try_within.__module__
    print(json.dumps({"failed": failed, "n_modules": n_modules, "chosen": chosen}))


def worker() -> None:
    choose_windows()
    from quire.server.worker import process

    process.main()


def trials() -> None:
    """Run the process in which grammars are tried."""
    choose_windows()
    import quire.grammar

    program = Path(quire.grammar.__path__[0]) / "trial_process.py"
    runpy.run_path(str(program), run_name="__main__")


if __name__ == "__main__":
    {"imports": imports, "worker": worker, "trials": trials}[sys.argv.pop(1)]()
