"""``quire top``: watch a server live in the terminal."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from ..errors import RequestError
from .help_page import Command
from .server_call import reason_of
from .text import one_line

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["command"]

BARS = "▁▂▃▄▅▆▇█"
N_SAMPLES = 60
_TIMEOUT_S = 5.0


@click.command("top", cls=Command)
@click.argument("url", default="http://127.0.0.1:8080", metavar="[URL]")
@click.option("--api-key", envvar="QUIRE_API_KEY", metavar="KEY", help="The server's key [QUIRE_API_KEY].")
@click.option(
    "--every",
    type=click.FloatRange(0.1, 3600),
    default=1.0,
    show_default=True,
    metavar="S",
    help="Seconds between updates.",
)
@click.option("--once", is_flag=True, help="Print the status once and exit.")
@click.pass_obj
def command(_: object, *, url: str, api_key: str | None, every: float, once: bool) -> None:
    """Watch the server at URL: throughput, latency, queue, cache and models.  Ctrl-C quits."""
    look = _looker(url, api_key)
    history: dict[str, deque[float]] = {name: deque(maxlen=N_SAMPLES) for name, _, _ in FIGURES}
    from rich.console import Console
    from rich.live import Live

    if once or not sys.stdout.isatty():
        Console().print(_view(url, look(), history))
        return
    with Live(_view(url, look(), history), auto_refresh=False, screen=True) as live:
        while True:
            time.sleep(every)
            live.update(_view(url, look(), history), refresh=True)


def _looker(url: str, api_key: str | None) -> Callable[[], dict[str, Any]]:
    """Return a function that fetches the server's status.  It raises RequestError if that fails."""
    from urllib.error import URLError
    from urllib.request import ProxyHandler, Request, build_opener

    if not url.startswith(("http://", "https://")):
        url = f"http://{url}"
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    request = Request(f"{url.rstrip('/')}/v1/status", headers=headers)  # noqa: S310 -- the schemes are checked above
    opener = build_opener(ProxyHandler({}))

    def look() -> dict[str, Any]:
        try:
            with opener.open(request, timeout=_TIMEOUT_S) as answer:
                status = json.load(answer)
        except (URLError, OSError, ValueError) as error:
            raise RequestError(f"[top] no Quire server at {url}: {reason_of(error)}") from None
        if not isinstance(status, dict) or "models" not in status:
            raise RequestError(f"[top] no Quire server at {url}: another program answered")
        return status

    return look


def _sum(status: Mapping[str, Any], part: str, name: str) -> float:
    return float(sum((model.get(part) or {}).get(name, 0) for model in status["models"]))


def _cache_share(status: Mapping[str, Any]) -> float:
    blocks = _sum(status, "cache", "blocks")
    return 100 * _sum(status, "cache", "used") / blocks if blocks else 0.0


# Name, unit, and how to compute the figure from a status.
FIGURES: tuple[tuple[str, str, Callable[[Mapping[str, Any]], float]], ...] = (
    ("throughput", "tokens/s", lambda status: float(status["tokens_per_second"] or 0)),
    ("first token", "ms", lambda status: 1000 * float(status["time_to_first_token_s"] or 0)),
    ("running", "requests", lambda status: _sum(status, "queue", "running")),
    ("waiting", "requests", lambda status: _sum(status, "queue", "waiting")),
    ("cache", "%", _cache_share),
)


def sparkline(values: Iterable[float]) -> str:
    """Draw values as bars scaled to the largest."""
    values = list(values)
    most = max(values, default=0.0)
    return "".join(BARS[min(int(value / most * len(BARS)), len(BARS) - 1)] if most else BARS[0] for value in values)


def _view(url: str, status: Mapping[str, Any], history: Mapping[str, deque[float]]) -> RenderableType:
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    figures = Table(box=None, show_header=False, pad_edge=False)
    for name, unit, figure in FIGURES:
        value = figure(status)
        history[name].append(value)
        figures.add_row(
            name, Text(f"{value:.1f} {unit}", justify="right"), Text(sparkline(history[name]), style="blue")
        )
    models = Table(
        "model", "state", "context", "running", "waiting", "blocks", "tokens", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for model in status["models"]:
        queue, cache, totals = (model.get(name) or {} for name in ("queue", "cache", "totals"))
        cells = (
            model["id"], model["state"], model.get("n_ctx", "-"), queue.get("running", "-"), queue.get("waiting", "-"),
            f"{cache['used']}/{cache['blocks']}" if cache else "-", totals.get("generated_tokens", "-"),
        )  # fmt: skip
        models.add_row(*(Text(one_line(str(cell))) for cell in cells))
    title = f"Quire {one_line(str(status['version']))} at {url}, up for {status['uptime_s'] / 60:.0f} min"
    return Group(Text(title, style="bold"), figures, models)
