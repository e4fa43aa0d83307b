"""``quire serve --ray``: run the application on a cluster, as ``serve run`` does."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

import ray
from ray import serve
from ray.serve.context import _get_global_client

from ..errors import RequestError
from .application import build

__all__ = ["run"]

_NAME = "default"  # as serve run has it
_NUMBERS = ("replicas", "max_replicas", "ingresses", "num_cpus", "num_gpus", "max_ongoing_requests",
            "queued_tokens", "multiplexed")  # fmt: skip
_MOST = 1_000_000_000


def run(
    address: str,
    given: Mapping[str, str],
    arguments: Sequence[str],
    *,
    host: str,
    port: int,
    check: Callable[[str], None],
    say: Callable[[str], None],
) -> None:
    """Do what ``quire.ray.deploy`` says."""
    numbers = _numbers(given)
    try:
        ray.init(address=address, namespace="serve")
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise RequestError(f"[ray] no cluster at {address!r:.80}: {_first_line(error)}") from None
    with contextlib.ExitStack() as ended:
        ended.callback(ray.shutdown)
        with _interrupted():
            is_ours = _get_global_client(raise_if_no_controller_running=False) is None
            ended.callback(serve.shutdown if is_ours else _delete)
            serve.start(http_options={"host": host, "port": port or _free_port(host)})
            http = _get_global_client().http_config
            if not is_ours and (http.host, http.port) != (host, port):
                say(f"--host and --port have no effect: Ray Serve already listens on {http.host}:{http.port}")
            check(http.host)
            try:
                serve.run(build({**numbers, "options": _with_host(arguments, http.host)}), name=_NAME, route_prefix="/")
            except RuntimeError as error:
                raise RequestError(f"[ray] {_first_line(error)}") from None
            shown = f"[{http.host}]" if ":" in http.host else http.host
            say(f"serving on http://{shown}:{http.port} (Ctrl-C stops the replicas)")
            threading.Event().wait()


def _numbers(given: Mapping[str, str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in given.items():
        if name not in _NUMBERS:
            raise RequestError(f"[ray] unknown argument {name!r:.80} (known: {', '.join(_NUMBERS)})")
        is_share = name.startswith("num_")
        try:
            number = float(value) if is_share else int(value)
        except ValueError:
            expected = "a number" if is_share else "a whole number"
            raise RequestError(f"[ray] {name} is {value[:40]!r}: expected {expected}") from None
        least = 0 if is_share or name == "multiplexed" else 1
        if not least <= number <= _MOST:  # false for NaN
            raise RequestError(f"[ray] {name} {value[:40]} is out of range: expected {least} to {_MOST}")
        found[name] = number
    if (most := found.get("max_replicas")) is not None and most < (least_replicas := found.get("replicas", 1)):
        raise RequestError(f"[ray] max_replicas {most} is less than replicas {least_replicas}")
    return found


def _with_host(arguments: Sequence[str], host: str) -> list[str]:
    """Return the arguments for a replica, which checks the names of hosts for the address that is listened on."""
    at = list(arguments).index("--") if "--" in arguments else len(arguments)
    return [*arguments[:at], "--host", host, *arguments[at:]]


def _delete() -> None:
    serve.delete(_NAME)


def _free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as made:
        made.bind((host, 0))
        return int(made.getsockname()[1])


def _first_line(error: Exception) -> str:
    return f"{error}".strip().split("\n")[0][:500]


@contextlib.contextmanager
def _interrupted() -> Iterator[None]:
    """End the block at SIGINT or SIGTERM."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = {each: signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
