"""``quire devices``: list what models can run on."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

import click

from .help_page import Command
from .tables import print_table
from .text import size_text

if TYPE_CHECKING:
    from .._native.core import Device
    from ..hardware import ModuleReport
    from ..selftest import Checked

__all__ = ["command"]


@click.command("devices", cls=Command)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--operations", is_flag=True, help="Also list the operations of each device.")
@click.option(
    "--check", is_flag=True,
    help="Compare every operation and some tiny models with the CPU, and store the verdict for --device gpu and auto.",
)  # fmt: skip
@click.option("--device", "name", metavar="NAME", help="With --check: check only this device.")
def command(*, as_json: bool, operations: bool, check: bool, name: str | None) -> None:
    """List the devices of all loaded backends: name, kind, memory, features, supported operations.

    For a module that fails to load, the reason and the remedy are shown.
    """
    from ..hardware import devices, find_device, module_reports

    if name is not None and not check:
        raise click.UsageError("--device requires --check")
    reports = module_reports()
    found = devices() if name is None else [find_device(name)]
    if name is not None and found[0].kind == "cpu":
        raise click.UsageError("cannot check the CPU: it is the reference for other devices")
    checks = [_checked(device, as_json) for device in found if device.kind != "cpu"] if check else []
    if as_json:
        print(json.dumps(_as_json(found, reports, checks), ensure_ascii=False))
    elif not check:
        _print_devices(found, operations)
        _print_modules(reports)
    elif not checks:
        print("Nothing to check: there is no device besides the CPU, which is the reference.")
        _print_modules(reports)
    if not all(one.verdict.passed for one in checks):
        raise click.exceptions.Exit(1)


def _print_devices(found: list[Device], operations: bool) -> None:
    from .._native.kernels import supported_isas

    print_table(
        ("name", "kind", "free>", "memory>", "operations>", "checked", "description", "features"),
        (
            (
                device.name,
                device.kind,
                size_text(device.memory_free_bytes),
                size_text(device.memory_total_bytes),
                str(len(device.operations)),
                _verdict_text(device),
                device.description,
                " ".join(_features(device)),
            )
            for device in found
        ),
    )
    known = supported_isas()
    print(f"kernels: {known[-1]} (this machine runs {', '.join(known)}; --isa forces a lower one)")
    if operations:
        for device in found:
            print(f"{device.name}: {' '.join(device.operations)}")


def _print_modules(reports: list[ModuleReport]) -> None:
    for report in reports:
        where = f"{report.path} ({report.source})"
        if report.state == "loaded":
            print(f"{where}: {', '.join(report.devices)}")
        else:
            print(f"{where}: {report.state}: {report.reason}" + (f"; {report.advice}" if report.advice else ""))


def _verdict_text(device: Device) -> str:
    from ..hardware import verdict_of

    if device.kind == "cpu":
        return "-"
    verdict = verdict_of(device)
    return "no" if verdict is None else "passed" if verdict.passed else "failed"


def _checked(device: Device, quiet: bool) -> Checked:
    from ..selftest import check_device

    return check_device(device, (lambda line: None) if quiet else partial(print, flush=True))


def _as_json(found: list[Device], reports: list[ModuleReport], checks: list[Checked]) -> dict[str, object]:
    from .._native.kernels import supported_isas

    known = supported_isas()
    return {
        "devices": [_as_object(device) for device in found],
        "kernels": {"isa": known[-1], "supported": list(known)},
        "modules": [asdict(report) for report in reports],
        "checks": [
            {"device": one.verdict.device, "passed": one.verdict.passed, "cases": [asdict(case) for case in one.cases]}
            for one in checks
        ],
    }


def _features(device: Device) -> list[str]:
    """Shorten ``"AVX2 = 1"`` to ``"AVX2"`` and ``"X = 2"`` to ``"X=2"``."""
    pairs = (text.partition(" = ") for text in device.features)
    return [name if value == "1" else f"{name}={value}" for name, _, value in pairs]


def _as_object(device: Device) -> dict[str, object]:
    from ..selftest import capabilities

    return {
        "name": device.name,
        "description": device.description,
        "backend": device.backend,
        "kind": device.kind,
        "memory_free_bytes": device.memory_free_bytes,
        "memory_total_bytes": device.memory_total_bytes,
        "features": _features(device),
        "operations": list(device.operations),
        "capabilities": capabilities(device),
        "checked": _verdict_text(device),
    }
