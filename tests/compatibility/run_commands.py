"""Run command lines from standard input one after another, as a user would, and print their outcomes."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import IO

from quire.cli.main import main


@contextlib.contextmanager
def taken(stream: IO[str]) -> Iterator[IO[bytes]]:
    """Capture a stream's file descriptor, since some output is written to the original stream."""
    number = stream.fileno()
    before = os.dup(number)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), number)
        try:
            yield file
        finally:
            stream.flush()
            os.dup2(before, number)
            os.close(before)


def outcome(words: list[str]) -> dict[str, object]:
    """Run a command; return its exit code and output."""
    shown = []
    with taken(sys.stdout) as out, taken(sys.stderr) as err:
        code = main(words)
        sys.stdout.flush()
        sys.stderr.flush()
        for file in (out, err):
            file.seek(0)
            shown.append(file.read().decode())
    return {"code": code, "out": shown[0], "err": shown[1]}


if __name__ == "__main__":
    lines = json.load(sys.stdin)
    print(json.dumps([outcome(words) for words in lines]))
