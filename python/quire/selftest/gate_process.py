"""Run cases of the self-test on a device in a separate process: JSON in, a line per case out."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from quire._native.core import Device
    from quire.selftest.results import CaseResult


def compare(name: str, device: Device, ended: Callable[[], None] = lambda: None) -> CaseResult:
    """Run one case on the device and on the CPU.  ``ended``: called after each step."""
    from quire._native.core import find_device
    from quire.errors import DeviceError, QuireError, UnsupportedError
    from quire.selftest.bench import Bench
    from quire.selftest.models import TOLERANCE, run_model
    from quire.selftest.operations import OPERATIONS
    from quire.selftest.results import CaseResult, worst_step

    case = next((case for case in OPERATIONS if case.name == name), None)
    tolerance = TOLERANCE if case is None else case.tolerance
    found = []
    for where in (find_device("CPU"), device):
        try:
            if case is None:
                found.append(run_model(name.removeprefix("model "), where, ended=ended))
            else:
                bench = Bench(where, case.cache, blocks=case.blocks)
                found.append(bench.run(case.build(bench), ended=ended))
        except UnsupportedError as error:
            if where.kind == "cpu":  # the case itself is wrong
                return CaseResult(name, "error", tolerance, reason=str(error))
            return CaseResult(name, "unsupported", tolerance, reason=str(error))
        except DeviceError as error:
            return CaseResult(name, "died", tolerance, reason=str(error))
        except (QuireError, RuntimeError, MemoryError) as error:  # drivers raise various errors
            return CaseResult(name, "error", tolerance, reason=str(error))
    deviation, reason = worst_step(found[1], found[0], tolerance)
    return CaseResult(name, "differs" if reason else "agrees", tolerance, deviation, reason)


def main() -> None:
    task = json.loads(sys.stdin.readline())
    sys.path[:] = task["path"]
    from dataclasses import asdict

    from quire.hardware import find_device

    device = find_device(task["device"])

    def said() -> None:
        print('\n{"step": "ended"}', flush=True)

    for name in task["cases"]:
        print("\n" + json.dumps({"begin": name}), flush=True)
        result = compare(name, device, said)
        print("\n" + json.dumps(asdict(result)), flush=True)
        if result.state == "died":  # this process cannot use the device any more; another one continues
            return


if __name__ == "__main__":
    main()
