"""The server's settings and their limits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..errors import RequestError
from ..params.tool_options import ToolOptions
from .keep_alive import FOREVER
from .origins import Origins
from .pinned_fetch import HostRules

__all__ = ["Settings", "check_key", "is_loopback", "read_keys", "read_peer_key"]

MIB = 1 << 20
_MOST_KEY_CHARACTERS = 1 << 20
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
    "max_logprobs": (-1, 2**31 - 1),
    "max_connections": (1, 100_000),
    "max_connections_per_address": (1, 100_000),
    "memory_budget_bytes": (1, 2**60),
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Options of the server.  RequestError naming an invalid one.

    Address and access:
        host, port: Where to listen; port 0 takes a free one.
        insecure: Allow a public address without an API key.
        api_keys: If there are any, every route except ``/health`` requires one of them.
        max_priority, key_priorities: The highest priority of requests, for all (None: any) and for single keys.
        allowed_hosts: More names for the ``Host`` header.  On a loopback address only names of loopback are allowed
            otherwise.
        cors_origins: Origins whose pages may call the server, in the format of ``Origins``.
        strict: Reject unknown model names even if there is only one model, and unknown body fields.  Otherwise such
            fields have no effect and are named in the header ``x-quire-ignored``.
        lenient: Accept unknown body fields even if ``strict``.
        allow_changes: Let clients download, name and delete models, and serve all models in this machine's stores.
        allow_lora_updates: Let clients load LoRA adapters from this machine's files beside running models, and unload
            them.
        allowed_media_domains: Host names, addresses and networks that images in requests are fetched from; ``"*"``: any
            host with a public address.  Addresses that are not public are used only if they are listed.
        allowed_local_media_path: Folder whose files requests may name as images.
        tools: MCP servers whose tools callers may use, and the limits of calls.

    Models:
        models_dir: A folder whose models are loaded on first use.
        state_dir: A folder that keeps files, batches and conversations of callers over restarts (None: no files and
            batches are accepted, and conversations are in memory).
        slot_save_path: A folder for texts that callers save: sessions and llama.cpp's slots (None: nothing is saved).
        training_routes: Clients may pause models, free their memory and change their weights.
        weights_dir: A folder whose checkpoints may replace a model's weights (None: none may).
        memory_budget_bytes: Memory for all models together (None: three quarters of the machine's memory).  It also
            limits a single model (None: what is free).
        cache_disk: The folder of the engine's option, which peers may read.
        cache_peers, cache_peer_key: URLs of servers that are asked for blocks of the cache, and the key that peers
            present to each other (None: no peer may read blocks).
        keep_s: Idle time after which a model is unloaded, until it is asked for again; negative: never.
        aliases, tags: More names of the model, and words about it that ``/v1/models`` shows.
        sampling: Fields of ``SamplingParams`` for requests that do not set them.  They take precedence over the advice
            in model files.
        system: System message of chats that begin without one.
        chat_template: Template to use instead of the models' own.
        trust_request_chat_template: Requests may bring templates of their own.
        defaults: Other defaults for requests (``worker.protocol.Open``).

    Limits of requests:
        max_body_bytes, max_depth: Size and nesting of a body.  8 MiB are two million tokens of text; decoding them
            takes 10 to 25 ms, during which nobody else is answered.
        max_logprobs: Alternatives that a request may have beside each token's log-probability; -1: any number.
        max_queue, max_queue_tokens: Requests that may wait in addition to the running ones, and their prompt and answer
            tokens.
        request_timeout_s, first_token_timeout_s, queue_timeout_s: Time from a request's arrival to its last token, to
            its first token, and until it starts running (None: no limit).
        header_timeout_s, body_timeout_s, send_timeout_s: Time limits for slow clients.
        rate_requests_per_minute, rate_tokens_per_minute: For each key, or for all requests without keys.
        max_connections, max_connections_per_address: Beyond these, a new connection replaces an idle one.

    Others:
        ping_s: Silence after which a stream sends a ping; the first one comes after a second at most.  0 or less:
            never.
        batch_delay_s: How long the first request waits for others while nothing runs.
        drain_s: How long a stopping server waits for current answers.
        traces_endpoint: URL for a span of each request, sent with OTLP over HTTP (None: nowhere).
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
    trust_request_chat_template: bool = False
    tags: tuple[str, ...] = ()
    allowed_media_domains: tuple[str, ...] = ()
    allowed_local_media_path: str | None = None
    tools: ToolOptions = field(default_factory=ToolOptions)
    models_dir: str | None = None
    state_dir: str | None = None
    slot_save_path: str | None = None
    training_routes: bool = False
    weights_dir: str | None = None
    memory_budget_bytes: int | None = None
    cache_disk: str | None = None
    cache_peers: tuple[str, ...] = ()
    cache_peer_key: str | None = field(default=None, repr=False)
    keep_s: float = FOREVER
    allow_changes: bool = False
    allow_lora_updates: bool = False
    max_body_bytes: int = 8 * MIB
    max_depth: int = 128
    max_logprobs: int = 20
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
        """True if unknown body fields are rejected."""
        return self.strict and not self.lenient

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = self.__dict__[entry.name]
            if entry.name in _LIMITS and value is not None:
                low, high = _LIMITS[entry.name]
                if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                    raise RequestError(
                        f"[serve] {entry.name} {value!r:.40} is out of range: expected {low:g} to {high:g}"
                    )
        Origins(self.cors_origins)
        if self.models_dir is not None and not Path(self.models_dir).is_dir():
            raise RequestError(f"[serve] models_dir is not a folder: {self.models_dir}")
        HostRules.of(self.allowed_media_domains)
        if self.allowed_local_media_path is not None and not Path(self.allowed_local_media_path).is_dir():
            raise RequestError(f"[serve] allowed_local_media_path is not a folder: {self.allowed_local_media_path}")
        if self.weights_dir is not None and not Path(self.weights_dir).is_dir():
            raise RequestError(f"[serve] weights_dir is not a folder: {self.weights_dir}")
        if self.slot_save_path is not None and not Path(self.slot_save_path).is_dir():
            raise RequestError(f"[serve] slot_save_path is not a folder: {self.slot_save_path}")
        if not self.api_keys and not self.insecure and not is_loopback(self.host):
            raise RequestError(
                f"[serve] no API key for the public address {self.host}: "
                "give keys with --api-key-file, or serve it to everybody with --insecure"
            )
        if (self.cache_peers or self.cache_peer_key) and self.cache_disk is None:
            raise RequestError("[serve] peers exchange blocks of the cache's folder: give one with --cache-disk")
        if self.cache_peers and self.cache_peer_key is None:
            raise RequestError("[serve] --cache-peers needs the key of the peers: --cache-peer-key-file FILE")
        if self.cache_peer_key in self.api_keys:
            raise RequestError(
                "[serve] the key of the peers is an API key: with it, callers could read others' prompts"
            )
        if self.tools.mcp is not None and not self.api_keys and not is_loopback(self.host):
            raise RequestError(
                f"[serve] --mcp at the public address {self.host} would let everybody run your tools: "
                "give keys with --api-key-file"
            )


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach the address."""
    import ipaddress

    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_keys(path: Path) -> tuple[tuple[str, ...], dict[str, int]]:
    """Read API keys from a file, one per line, and the highest priorities of lines with ``KEY max-priority=N``.

    Empty lines and lines that begin with # are skipped.  RequestError if the file cannot be read, has no key, or has a
    key too short to be a secret.
    """
    try:
        with path.open(encoding="utf-8") as file:  # perhaps a pipe
            text = file.read(_MOST_KEY_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"[serve] cannot read the API keys: {error}") from None
    if len(text) > _MOST_KEY_CHARACTERS:
        raise RequestError(f"[serve] {path} is too large for a file of keys: at most {_MOST_KEY_CHARACTERS} characters")
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


def read_peer_key(path: Path) -> str:
    """Read the key that peers share from a file.  RequestError as for ``read_keys``, or if there are several."""
    key, *more = read_keys(path)[0]
    if more:
        raise RequestError(f"[serve] {path} has {1 + len(more)} keys: peers share one")
    return key


def check_key(key: str, which: str) -> None:
    """Raise RequestError if a text cannot be an API key."""
    if len(key) < 8 or not key.isascii() or not key.isprintable() or " " in key:
        raise RequestError(f"[serve] invalid API key ({which}): expected 8 or more printable ASCII characters")
