"""Compare a device with the CPU, in a process that the device may crash."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UnsupportedError
from ..hardware import Verdict
from ..hardware.verdicts import keep_verdict
from ..system import GROUP, Lines, end_group
from .results import CaseResult

if TYPE_CHECKING:
    from .._native.core import Device

__all__ = ["Checked", "capabilities", "check_device"]

# Limit for one step; drivers may compile their programs at first use.
STEP_S = 180.0
SAY_S = 15.0  # a case that runs longer is announced
MOST_DEATHS = 3  # crashes after which the rest is skipped


@dataclass(frozen=True)
class Checked:
    verdict: Verdict
    cases: tuple[CaseResult, ...]


def capabilities(device: Device) -> dict[str, list[str]]:
    """Return the types that a device supports, by operation."""
    return {
        "multiply": device.dtypes("mul_mat"),
        "multiply_experts": device.dtypes("mul_mat_id"),
        "read_rows": device.dtypes("get_rows"),
        "write_rows": device.dtypes("set_rows"),
    }


def case_names() -> list[str]:
    """Return the names of all cases: operations, then models."""
    from .models import model_names
    from .operations import OPERATIONS

    return [*(case.name for case in OPERATIONS), *(f"model {name}" for name in model_names())]


def check_device(device: Device, say: Callable[[str], None] = print) -> Checked:
    """Compare every operation and the tiny models with ggml's operators on the CPU, and keep the verdict.

    Each case is reported as it ends.  A device that crashes or hangs fails.
    """
    cases: list[CaseResult] = []
    todo, deaths = case_names(), 0
    say(f"{device.name} ({device.description}):")
    while todo:
        for result in _run(device.name, todo, say):
            cases.append(result)
            say(_line(result))
            todo = todo[todo.index(result.name) + 1 :]
            deaths += result.state == "died"
        if deaths >= MOST_DEATHS:
            break
    failed = [case for case in cases if not case.passed]
    n_unsupported = sum(case.state == "unsupported" for case in cases)
    agreed = f"{len(cases) - len(failed) - n_unsupported} of {len(cases)} agree, {n_unsupported} unsupported"
    first = f"{failed[0].name} {failed[0].state}" if failed else ""
    reason = f"{first}; {agreed}" if failed else agreed
    verdict = Verdict(not failed, reason, device.name, device.description)
    path = keep_verdict(device, verdict)
    say(f"{device.name}: {'passed' if verdict.passed else 'FAILED'}: {reason} (kept in {path})")
    return Checked(verdict, tuple(cases))


def _line(result: CaseResult) -> str:
    deviation = "-" if result.deviation is None else f"{result.deviation:.1e}"
    return f"  {result.name:32} {result.state:11} {deviation:>8} of {result.tolerance:.1e}  {result.reason}".rstrip()


def _run(device: str, names: list[str], say: Callable[[str], None]) -> Iterator[CaseResult]:
    """Yield the results of one process until it ends.  It reports the start of a case, each step, and the end."""
    if not sys.executable:
        raise UnsupportedError(
            "[device] cannot check devices here: this program has no Python interpreter to start a process with"
        )
    with subprocess.Popen(
        [sys.executable, "-I", "-S", str(Path(__file__).with_name("gate_process.py"))],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **GROUP,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(json.dumps({"path": sys.path, "device": device, "cases": names}).encode() + b"\n")
        process.stdin.close()
        begun, lines = "", Lines(process.stdout)
        since = time.monotonic()
        try:
            while (line := _next(lines, since, begun, say)) is not None:
                if not line.startswith(b"{"):  # drivers may write others
                    continue
                since = time.monotonic()
                answer = json.loads(line)
                if "begin" in answer:
                    begun = answer["begin"]
                elif "name" in answer:
                    yield CaseResult(**answer)
                    begun = ""
        except TimeoutError:
            end_group(process)
            yield CaseResult(begun or names[0], "died", 0.0, reason=f"no answer within {STEP_S:g} s")
            return
        code = process.wait()
        if code != 0 or begun:
            said = " ".join(process.stderr.read().decode(errors="replace").split())[-300:]
            yield CaseResult(begun or names[0], "died", 0.0, reason=f"the process ended with {code}: {said}")


def _next(lines: Lines, since: float, begun: str, say: Callable[[str], None]) -> bytes | None:
    """Return the next line of the process.  TimeoutError if it does not answer, whatever a driver writes."""
    while (left := since + STEP_S - time.monotonic()) > 0:
        try:
            return lines.next(min(left, SAY_S))
        except TimeoutError:
            say(f"  {begun or 'the start'} has run for {time.monotonic() - since:.0f} s (of a step's {STEP_S:g} s)")
    raise TimeoutError
