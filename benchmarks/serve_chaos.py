"""Kill, stop and crash the worker repeatedly under load; measure how soon it is back and whether anything hangs.

    python benchmarks/serve_chaos.py [--rounds 20]

Killed: SIGKILL.  Stopped: SIGSTOP, which the server notices only by missing heartbeats.  Thrown: an exception where the
worker receives messages, caused by a signal (throwing_server.py).  Twenty rounds of each take about five minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import socket
import time
from pathlib import Path

from serving import Answer, Figure, Running, ask, loop_run, running, shown

FAULTS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP, "made to throw": signal.SIGUSR1}
# A worker that exits within two seconds after it was ready is assumed to fail always, and is restarted more slowly.
SETTLED_S = 2.5
LONGEST_S = 15.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--clients", type=int, default=8)
    return parser.parse_args()


def health(port: int) -> int:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        return int(connection.recv(4096)[9:12])


async def client(port: int, name: int, answers: list[Answer], stop: asyncio.Event) -> None:
    """Send requests with a different prompt each, since a request that was in flight in two crashes is refused."""
    n = 0
    while not stop.is_set():
        n += 1
        body = {"prompt": f"Tell {name} of {n}", "max_tokens": 200, "ignore_eos": True, "stream": True}
        answer = await ask(port, "/v1/completions", body)
        answers.append(answer)
        if answer.status != 200:
            await asyncio.sleep(0.1)


async def fault(server: Running, signum: int) -> tuple[float, float]:
    """Return the seconds until /health reports the fault, and until it reports recovery."""
    await asyncio.sleep(SETTLED_S)
    (worker,) = server.children()
    started = time.monotonic()
    with contextlib.suppress(ProcessLookupError):
        os.kill(worker, signum)
    while await asyncio.to_thread(health, server.port) == 200 and server.children() == [worker]:
        if time.monotonic() - started > 30:
            raise SystemExit("/health does not report the fault")
        await asyncio.sleep(0.005)
    told_s = time.monotonic() - started
    while await asyncio.to_thread(health, server.port) != 200:
        if time.monotonic() - started > 60:
            raise SystemExit("the worker is not restarted")
        await asyncio.sleep(0.005)
    return told_s, time.monotonic() - started


async def rounds(
    server: Running, signum: int, options: argparse.Namespace
) -> tuple[list[tuple[float, float]], list[Answer]]:
    answers: list[Answer] = []
    stop = asyncio.Event()
    clients = [asyncio.ensure_future(client(server.port, i, answers, stop)) for i in range(options.clients)]
    times = [await fault(server, signum) for _ in range(options.rounds)]
    stop.set()
    await asyncio.gather(*clients)
    return times, answers


def measure(options: argparse.Namespace) -> list[Figure]:
    figures = []
    program = [str(Path(__file__).with_name("throwing_server.py"))]
    for name, signum in FAULTS.items():
        with running(program=program) as server:
            times, answers = loop_run(rounds(server, signum, options))
        told, well = zip(*times, strict=True)
        longest = max(answer.total_s for answer in answers)
        if longest > LONGEST_S:
            raise SystemExit(f"a request hung for {longest:.1f} s")
        value = f"{shown(told, 's', most=True)}; {shown(well, 's', most=True)}; {longest:.1f} s of {len(answers)}"
        what = f"worker {name} {options.rounds} times under load: reported, recovered (p50, p99, most); longest request"
        figures.append(Figure(what, value, f"nothing over {LONGEST_S:.0f} s"))
    return figures


if __name__ == "__main__":
    for figure in measure(arguments()):
        print(figure, flush=True)
