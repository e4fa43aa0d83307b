"""What the server may be told, with its limits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..errors import RequestError
from .keep_alive import FOREVER
from .origins import Origins

__all__ = ["Settings", "check_key", "is_loopback", "read_keys"]

MIB = 1 << 20
_KEY_LINE = re.compile(r"(.*?)(?:\s+max-priority=(-?\d{1,4}))?")
_LIMITS: dict[str, tuple[float, float]] = {
    "port": (0, 65535),
    "max_body_bytes": (1024, 1 << 30),
    "max_depth": (4, 512),
    "max_priority": (-100, 100),
    "max_queue": (0, 100_000),
    "max_queue_tokens": (1, 2**31),
    "request_timeout_s": (0.1, 86_400),
    "queue_timeout_s": (0.1, 86_400),
    "first_token_timeout_s": (0.1, 86_400),
    "header_timeout_s": (0.1, 3600),
    "body_timeout_s": (0.1, 3600),
    "send_timeout_s": (0.1, 3600),
    "ping_s": (-1, 3600),
    "drain_s": (0, 3600),
    "batch_delay_s": (0, 60),
    "rate_requests_per_minute": (1, 10**9),
    "rate_tokens_per_minute": (1, 10**12),
    "max_connections": (1, 100_000),
    "max_connections_per_address": (1, 100_000),
    "memory_budget_bytes": (1, 2**60),
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Options of the server; RequestError naming the one that does not hold.

    ``host``, ``port``: where it listens; port 0 takes a free one.  ``insecure``: a public address without a key is
    allowed.  ``api_keys``: every route but ``/health`` asks for one of them, when there are any.  ``max_priority``: the
    most that a request may have (None: any), ``key_priorities`` those of single keys.  ``allowed_hosts``:
    further names of the ``Host`` header (on a loopback address, only names of loopback are taken otherwise).
    ``cors_origins``: origins whose pages may call the server, as ``Origins`` reads them.
    ``strict``: requests that name an unknown model are refused even where there is one only, and so are unknown fields
    of a body, which otherwise have no effect and are named in the header ``x-quire-ignored``.  ``lenient``: such fields
    are taken all the same.  ``aliases``: further names of the model.  ``sampling``: fields of ``SamplingParams`` that
    requests get which say nothing of them, before what models' files advise.  ``system``: the system message of chats
    that begin without one.  ``defaults``: what else requests get that say nothing of it (``worker.protocol.Open``).
    ``chat_template``: one in place of the models' own.  ``tags``: words about the model that ``/v1/models`` shows.
    ``models_dir``: a folder whose models are opened when they are asked for, within ``memory_budget_bytes`` together
    (None: three quarters of the machine's memory).  One model stays within the budget, too (None: what is left).
    ``keep_s``: a model that nothing has used for so long is closed, and opened again when it is asked for; negative:
    never.  ``allow_changes``: clients may fetch, name and delete models, and all models of this machine's stores are
    served.

    ``max_body_bytes``, ``max_depth``: of a request's body.  8 MiB are two million tokens of text; to decode them takes
    10 to 25 ms, in which nobody else is answered, and more takes more.  ``max_queue``, ``max_queue_tokens``: requests,
    and their tokens of prompt and answer, that may wait beside those that run.  ``request_timeout_s``: from arrival to
    the last token; ``first_token_timeout_s``: to the first; ``queue_timeout_s``: until it runs (None: any
    time).  ``header_timeout_s``, ``body_timeout_s``, ``send_timeout_s``: for slow clients.  ``ping_s``: silence after
    which a stream carries a ping, 0 or less: none does; the first comes after a second at most.  ``batch_delay_s``:
    how long the first request waits for others while nothing runs.  ``drain_s``: how long a stopping server lets
    answers go on.  ``traces_endpoint``: where a span of each request is sent by OTLP over HTTP (None: nowhere).
    ``rate_requests_per_minute``, ``rate_tokens_per_minute``: of each key (or of all without a key).
    ``max_connections``, ``max_connections_per_address``: beyond these, a new connection takes the place of an idle one.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    insecure: bool = False
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    key_priorities: Mapping[str, int] = field(default_factory=dict, repr=False)
    max_priority: int | None = None
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    lenient: bool = False
    strict: bool = False
    aliases: tuple[str, ...] = ()
    sampling: Mapping[str, Any] = field(default_factory=dict)
    system: str | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    chat_template: str | None = None
    tags: tuple[str, ...] = ()
    models_dir: str | None = None
    memory_budget_bytes: int | None = None
    keep_s: float = FOREVER
    allow_changes: bool = False
    max_body_bytes: int = 8 * MIB
    max_depth: int = 128
    max_queue: int = 256
    max_queue_tokens: int = 4_000_000
    request_timeout_s: float = 600.0
    first_token_timeout_s: float | None = None
    queue_timeout_s: float | None = None
    header_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    send_timeout_s: float = 30.0
    ping_s: float = 5.0
    batch_delay_s: float = 0.0
    drain_s: float = 30.0
    rate_requests_per_minute: int | None = None
    rate_tokens_per_minute: int | None = None
    max_connections: int = 4096
    max_connections_per_address: int = 1024
    traces_endpoint: str | None = None
    access_log: bool = True

    @property
    def refuses_unknown(self) -> bool:
        """Whether unknown fields of a body are refused."""
        return self.strict and not self.lenient

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = self.__dict__[entry.name]
            if entry.name in _LIMITS and value is not None:
                low, high = _LIMITS[entry.name]
                if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                    raise RequestError(f"[serve] {entry.name} must be from {low:g} to {high:g} but is {value!r:.40}")
        Origins(self.cors_origins)
        if self.models_dir is not None and not Path(self.models_dir).is_dir():
            raise RequestError(f"[serve] models_dir must be a folder but {self.models_dir} is not")
        if not self.api_keys and not self.insecure and not is_loopback(self.host):
            raise RequestError(
                f"[serve] an address beyond this machine must have an API key but {self.host} has none: "
                "--api-key-file gives it one, --insecure serves it to everybody"
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    import ipaddress

    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_keys(path: Path) -> tuple[tuple[str, ...], dict[str, int]]:
    """API keys of a file, one a line, and the highest priorities of those that have one: ``KEY max-priority=N``.

    Empty lines and those that begin with # do not count.  RequestError where the file cannot be read, has no key, or
    one that is too short to be a secret.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"[serve] the file of API keys must be readable but {error}") from None
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if not lines:
        raise RequestError(f"[serve] no API key in {path}")
    priorities: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        key, option = _KEY_LINE.fullmatch(line).groups()  # type: ignore[union-attr]
        if option is not None:
            priorities[key] = int(option)
        check_key(key, f"number {number} of {path}")
        lines[number - 1] = key
    return tuple(lines), priorities


def check_key(key: str, which: str) -> None:
    """RequestError for a text that is no API key."""
    if len(key) < 8 or not key.isascii() or not key.isprintable() or " " in key:
        raise RequestError(f"[serve] an API key must be 8 or more printable ASCII characters but {which} is not")
