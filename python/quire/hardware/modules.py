"""Backend modules other than the CPU's: found, tried in a process of their own, and only then loaded.

A module brings a vendor's driver into the process.  One that is broken, or whose driver is, must end neither a command
that did not ask for it nor one that did.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import QuireError
from .kinds import Kind, kind_of_module

__all__ = ["ModuleReport", "load_modules", "module_reports"]

State = Literal["loaded", "no device", "unusable"]
_NAME = re.compile(r"libggml-([a-z0-9]+)[^/]*\.(so|dylib)")
START_S = 30.0
NOTHING = "found nothing to run on"  # as native/core/device.cpp says it
_LOG = logging.getLogger("quire")
_lock = threading.Lock()
_reports: dict[Path, ModuleReport] = {}


@dataclass(frozen=True)
class ModuleReport:
    """What became of a module.  ``devices``: their names, where it is loaded.  ``advice``: what to do otherwise."""

    path: str
    module: str
    state: State
    reason: str = ""
    advice: str = ""
    devices: tuple[str, ...] = ()


def module_folders() -> list[Path]:
    """Where modules lie: beside ggml in the package, and in the folders of ``QUIRE_MODULE_PATH``."""
    given = [
        Path(folder).expanduser().absolute()
        for folder in os.environ.get("QUIRE_MODULE_PATH", "").split(os.pathsep)
        if folder
    ]
    return [Path(__file__).parent.parent / "lib", *given]


def module_files(kind: Kind | None = None) -> list[Path]:
    """The modules of a kind, or all but the CPU's; each file once, the package's first."""
    found: dict[Path, Path] = {}
    for folder in module_folders():
        for path in sorted(folder.glob("libggml-*")):
            match = _NAME.fullmatch(path.name)
            # Those two are what modules are linked to, of builds that do not rename them.
            if match is None or match[1] in ("cpu", "base"):
                continue
            if kind is None or match[1] == kind.module:
                found.setdefault(path.resolve(), path)
    return list(found.values())


def load_modules(kind: Kind | None = None) -> list[ModuleReport]:
    """Load what is wanted and can be used, once; what became of each."""
    with _lock:
        files = module_files(kind)
        new = [path for path in files if path not in _reports]
        if new:
            with ThreadPoolExecutor(len(new)) as pool:  # drivers take their time
                tried = list(pool.map(_tried, new))
            for path, report in zip(new, tried, strict=True):
                _reports[path] = report if report.state != "loaded" else _loaded(report)
                _log(_reports[path])
        return [_reports[path] for path in files]


def _log(report: ModuleReport) -> None:
    """What became of a module, for ``QUIRE_LOG``."""
    found = ", ".join(report.devices) if report.state == "loaded" else report.reason
    _LOG.info("[device] module %s: %s: %s%s", report.path, report.state, found, report.advice and f" ({report.advice})")


def module_reports() -> list[ModuleReport]:
    """What became of every module that there is; all are loaded that can be."""
    return load_modules()


def _report(path: Path, state: State, reason: str, devices: tuple[str, ...] = ()) -> ModuleReport:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    kind = kind_of_module(match[1])
    advice = ""
    if state == "no device" and kind is not None:
        advice = kind.needs
    elif state == "unusable":
        build = f"build it again (-D{kind.option}=ON) or " if kind is not None else ""
        advice = f"{build}remove the file"
        if "cannot open shared object" in reason and kind is not None:
            advice = kind.needs
    return ModuleReport(str(path), match[1], state, reason, advice, devices)


def _tried(path: Path) -> ModuleReport:
    """What a process of its own finds: state ``"loaded"`` where the module can be."""
    from .._native.core import check_module_file

    try:
        check_module_file(str(path))
        # A program that embeds Python has nothing to start.
        names = _tried_apart(path) if sys.executable else ()
    except _NoDevice as error:
        return _report(path, "no device", str(error))
    except (_Unusable, QuireError) as error:
        return _report(path, "unusable", _bare(str(error), path))
    return _report(path, "loaded", "", names)


class _Unusable(Exception):
    """Why a module cannot be used."""


class _NoDevice(Exception):
    """Why a module offers nothing."""


def _tried_apart(path: Path) -> tuple[str, ...]:
    """The names of the devices that a process with the module has."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("module_process.py"))],
            input=json.dumps({"path": sys.path, "module": str(path)}).encode(),
            capture_output=True,
            timeout=START_S,
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _Unusable(f"its driver did not answer within {START_S:g} s") from None
    except OSError as error:
        raise _Unusable(f"no process could be started to try it in: {error}") from error
    said = " ".join(done.stderr.decode(errors="replace").split())[-500:]
    if done.returncode < 0:
        raise _Unusable(f"a process that loads it ends by {_signal(-done.returncode)}: {said}")
    try:
        answer = json.loads(done.stdout.decode(errors="replace").splitlines()[-1])
    except (IndexError, ValueError):
        raise _Unusable(f"a process that loads it ends with {done.returncode}: {said}") from None
    if "error" in answer:
        raise (_NoDevice if answer["error"].endswith(NOTHING) else _Unusable)(_bare(answer["error"], path))
    if not answer["devices"]:
        raise _NoDevice(said or "its driver lists none")
    return tuple(answer["devices"])


def _loaded(report: ModuleReport) -> ModuleReport:
    """Load a module that can be, here."""
    from .._native.core import devices, load_backend

    before = {device.name for device in devices()}
    try:
        load_backend(report.path)
    except QuireError as error:
        return _report(Path(report.path), "unusable", _bare(str(error), Path(report.path)))
    names = tuple(device.name for device in devices() if device.name not in before)
    return ModuleReport(report.path, report.module, "loaded", devices=names)


def _bare(text: str, path: Path) -> str:
    """A message without what the report says itself: place, path, and what must hold."""
    return re.sub(rf"^\[device\] '{re.escape(str(path))}' must .*? but ", "", text)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
