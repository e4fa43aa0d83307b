"""Tries a backend module, as the program of a process of its own: a line of JSON comes in, and one goes out."""

from __future__ import annotations

import json
import sys


def main() -> None:
    task = json.loads(sys.stdin.readline())
    sys.path[:] = task["path"]
    from quire._native.core import devices, load_backend
    from quire.errors import QuireError

    before = {device.name for device in devices()}
    answer: dict[str, object]
    try:
        load_backend(task["module"])
        # Memory is asked for as some drivers start only then.
        found = [device for device in devices() if device.name not in before]
        answer = {"devices": [device.name for device in found if device.memory_total_bytes >= 0]}
    except QuireError as error:
        answer = {"error": str(error)}
    print("\n" + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
