"""Load a backend module in a process of its own: reads one line of JSON, writes one line of JSON."""

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
        # Some drivers start only when asked for their memory.
        found = [device for device in devices() if device.name not in before]
        answer = {"devices": [device.name for device in found if device.memory_total_bytes >= 0]}
    except QuireError as error:
        answer = {"error": str(error)}
    print("\n" + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
