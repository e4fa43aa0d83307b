"""Run a task of this folder: ``python -m ci TASK [ARGUMENT ...]``; ``python -m ci --list`` lists them."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def tasks() -> dict[str, str]:
    """Return the first sentence of each task's description, by the task's name."""
    found = {}
    for path in sorted(FOLDER.iterdir()):
        if path.is_file() and os.access(path, os.X_OK):
            lines = path.read_text(encoding="utf-8").splitlines()
            # The comment or docstring at the start of the script.
            head = " ".join(line.lstrip("# ").strip() for line in lines[1:6] if line.startswith(("#", '"""')))
            found[path.name] = re.split(r"(?<=[.:;]) ", head.strip('"'), maxsplit=1)[0].rstrip(":;")
    return found


def main() -> None:
    """Run a task, or list them all."""
    names = tasks()
    task = sys.argv[1] if len(sys.argv) > 1 else "--list"
    if task == "--list":
        width = max(map(len, names))
        print("\n".join(f"{name:{width}}  {text}" for name, text in names.items()))
    elif task in names:
        os.execv(FOLDER / task, [task, *sys.argv[2:]])  # noqa: S606
    else:
        sys.exit(f"no such task: {task} (python -m ci --list)")


if __name__ == "__main__":
    main()
