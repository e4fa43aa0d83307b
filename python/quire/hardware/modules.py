"""Backend modules other than the CPU's: found, tried in a process of their own, and only then loaded.

A module brings a vendor's driver into the process.  One that is broken, or whose driver is, must end neither a command
that did not ask for it nor one that did.
"""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import QuireError
from ..system import GROUP, ended_by
from .kinds import Kind, kind_of_module
from .module_files import ModuleFile, module_files

__all__ = ["ModuleReport", "load_modules", "module_reports"]

State = Literal["loaded", "not used", "no device", "unusable"]
START_S = 30.0
NOTHING = "found nothing to run on"  # as native/core/device.cpp says it
_LOG = logging.getLogger("quire")
_lock = threading.Lock()
_reports: dict[ModuleFile, ModuleReport] = {}


@dataclass(frozen=True)
class ModuleReport:
    """What became of a module.

    ``source``: what brought it: ``"quire"``, ``"QUIRE_MODULE_PATH"``, or a wheel, ``"quire-llm-vulkan 0.2.0"``.
    ``devices``: their names, where it is loaded.  ``advice``: what to do otherwise.
    """

    path: str
    module: str
    source: str
    state: State
    reason: str = ""
    advice: str = ""
    devices: tuple[str, ...] = ()


def load_modules(kind: Kind | None = None) -> list[ModuleReport]:
    """Load what is wanted and can be used, once; what became of each."""
    with _lock:
        files = module_files(kind)
        new = [file for file in files if file not in _reports]
        if new:
            with ThreadPoolExecutor(len(new)) as pool:  # drivers take their time
                tried = list(pool.map(_tried, new))
            for file, report in zip(new, tried, strict=True):
                _reports[file] = report if report.state != "loaded" else _loaded(file)
                _log(_reports[file])
        return [_reports[file] for file in files]


def _log(report: ModuleReport) -> None:
    """What became of a module, for ``QUIRE_LOG``."""
    found = ", ".join(report.devices) if report.state == "loaded" else report.reason
    _LOG.info("[device] module %s: %s: %s%s", report.path, report.state, found, report.advice and f" ({report.advice})")


def module_reports() -> list[ModuleReport]:
    """What became of every module that there is; all are loaded that can be."""
    return load_modules()


def _report(file: ModuleFile, state: State, reason: str, devices: tuple[str, ...] = ()) -> ModuleReport:
    kind = kind_of_module(file.module)
    advice = file.advice
    if kind is not None and (state == "no device" or "cannot open shared object" in reason):
        advice = kind.needs
    elif state == "unusable" and not advice:
        build = f"build it again (-D{kind.option}=ON) or " if kind is not None else ""
        advice = f"{build}remove the file"
    return ModuleReport(str(file.path), file.module, file.source, state, reason, advice, devices)


def _tried(file: ModuleFile) -> ModuleReport:
    """What a process of its own finds: state ``"loaded"`` where the module can be."""
    from .._native.core import check_module_file

    path = file.path
    try:
        if file.refusal:
            raise _Unusable(file.refusal)
        check_module_file(str(path))
        # A program that embeds Python has nothing to start.
        names = _tried_apart(path) if sys.executable else ()
    except _NoDevice as error:
        return _report(file, "no device", str(error))
    except (_Unusable, QuireError) as error:
        return _report(file, "unusable", _bare(str(error), path))
    return _report(file, "loaded", "", names)


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
            check=False,
            **GROUP,
        )
    except subprocess.TimeoutExpired:
        raise _Unusable(f"its driver did not answer within {START_S:g} s") from None
    except OSError as error:
        raise _Unusable(f"no process could be started to try it in: {error}") from error
    said = " ".join(done.stderr.decode(errors="replace").split())[-500:]
    if by := ended_by(done.returncode):
        raise _Unusable(f"a process that loads it ends by {by}: {said}")
    try:
        answer = json.loads(done.stdout.decode(errors="replace").splitlines()[-1])
    except (IndexError, ValueError):
        raise _Unusable(f"a process that loads it ends with {done.returncode}: {said}") from None
    if "error" in answer:
        raise (_NoDevice if answer["error"].endswith(NOTHING) else _Unusable)(_bare(answer["error"], path))
    if not answer["devices"]:
        raise _NoDevice(said or "its driver lists none")
    return tuple(answer["devices"])


def _loaded(file: ModuleFile) -> ModuleReport:
    """Load a module that can be, here, unless one of its kind is."""
    from .._native.core import devices, load_backend

    for other in _reports.values():
        if (other.module, other.state) == (file.module, "loaded"):
            return _report(file, "not used", f"{other.path} goes before it")
    before = {device.name for device in devices()}
    try:
        load_backend(str(file.path))
    except QuireError as error:
        return _report(file, "unusable", _bare(str(error), file.path))
    names = tuple(device.name for device in devices() if device.name not in before)
    return _report(file, "loaded", "", names)


def _bare(text: str, path: Path) -> str:
    """A message without what the report says itself: place, path, and what must hold."""
    return re.sub(rf"^\[device\] '{re.escape(str(path))}' must .*? but ", "", text)
