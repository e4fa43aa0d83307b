"""Fetch a file over HTTP for a client, who chooses the URL and may want more than the file.

A name is resolved once, all its addresses are checked, and the connection goes to the address that was checked, so that
a second answer of the name server has no effect.  Every redirect is checked like the first URL.  Size and time are
limited.  No proxy is used: it would resolve names itself.
"""

from __future__ import annotations

import http.client
import ipaddress
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import SplitResult, urljoin, urlsplit

from ..errors import RequestError

__all__ = ["Address", "FetchLimits", "HostRules", "fetch"]

Address: TypeAlias = "ipaddress.IPv4Address | ipaddress.IPv6Address"
Network: TypeAlias = "ipaddress.IPv4Network | ipaddress.IPv6Network"
# Returns the addresses of a host and a port.
Resolve: TypeAlias = Callable[[str, int], Iterable[Address]]

_HOST = re.compile(r"(?!-)[a-z0-9-]{1,63}(?:\.(?!-)[a-z0-9-]{1,63})*\.?")
_REDIRECTS = (301, 302, 303, 307, 308)
# Prefix of IPv6 addresses that a gateway translates to the IPv4 address in their last four bytes.
_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")
_PIECE_BYTES = 1 << 16


@dataclass(frozen=True)
class FetchLimits:
    """Limits of one file; ``total_s`` includes redirects and everything else."""

    max_bytes: int = 32 << 20
    total_s: float = 10.0
    max_redirects: int = 5


@dataclass(frozen=True)
class HostRules:
    """The hosts to fetch from.

    Attributes:
        names: Host names in lower case; ``"*"`` allows all.
        networks: Addresses that are allowed although they are not public, and as hosts themselves.
    """

    names: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = field(default=())

    @classmethod
    def of(cls, entries: Iterable[str]) -> HostRules:
        """Return the rules of host names, addresses and networks.  RequestError for anything else."""
        names, networks = set(), []
        for entry in entries:
            text = entry.strip().lower()
            try:
                networks.append(ipaddress.ip_network(text.strip("[]")))
                continue
            except ValueError:
                pass
            if text != "*" and not _HOST.fullmatch(text):
                raise RequestError(
                    f"[serve] allowed_media_domains: {entry!r:.80} is not a host name, an address or a network"
                )
            names.add(text.rstrip("."))
        return cls(frozenset(names), tuple(networks))

    def allows_host(self, host: str) -> bool:
        """Return True for a host, a name or an address, that may be asked for a file."""
        address = _address_of(host)
        if address is None:
            return host in self.names or "*" in self.names
        return self._is_named(address) or ("*" in self.names and _is_public(address))

    def allows_address(self, address: Address) -> bool:
        """Return True for an address that may be connected to."""
        return _is_public(address) or self._is_named(address)

    def _is_named(self, address: Address) -> bool:
        return any(address.version == network.version and address in network for network in self.networks)


def _address_of(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _is_public(address: Address) -> bool:
    """Return True for an address on the internet; addresses that contain another are judged by it."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
        if inner is None and address in _TRANSLATED:
            inner = ipaddress.IPv4Address(address.packed[-4:])
        if inner is not None:
            return _is_public(inner)
        if address.is_site_local:
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def _resolve(host: str, port: int) -> list[Address]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [ipaddress.ip_address(str(each[4][0]).partition("%")[0]) for each in found]


def fetch(url: str, rules: HostRules, limits: FetchLimits, resolve: Resolve = _resolve) -> bytes:
    """Return the contents of an ``http:`` or ``https:`` URL.

    Raises:
        RequestError: The host or one of its addresses is not allowed, a limit is exceeded, or the file cannot be had.
    """
    with _Deadline(limits.total_s) as deadline:
        try:
            for _ in range(limits.max_redirects + 1):
                target = _Target.of(url, rules)
                found = _get(target, _checked_address(target, rules, resolve), limits, deadline)
                if isinstance(found, bytes):
                    return found
                url = urljoin(url, found)
        except RequestError:
            raise
        except (OSError, http.client.HTTPException, ValueError) as error:
            if deadline.is_over:
                raise RequestError(f"the URL took more than {limits.total_s:g} s") from None
            raise RequestError(f"cannot fetch the URL ({type(error).__name__})") from None
    raise RequestError(f"the URL redirects more than {limits.max_redirects} times")


@dataclass(frozen=True)
class _Target:
    """A URL in parts that have been checked."""

    is_secure: bool
    host: str
    port: int
    path: str

    @staticmethod
    def of(url: str, rules: HostRules) -> _Target:
        if len(url) > 8192 or any(letter <= " " or letter == "\\" or ord(letter) > 126 for letter in url):
            raise RequestError("invalid URL: expected at most 8192 ASCII characters without spaces")
        try:
            parts: SplitResult = urlsplit(url)
            host, port = (parts.hostname or "").rstrip("."), parts.port
        except ValueError:
            raise RequestError(f"invalid URL {url[:40]!r}") from None
        if parts.scheme not in ("http", "https"):
            raise RequestError(f"unsupported URL {url[:40]!r}: expected http: or https:")
        if parts.username is not None or parts.password is not None:
            raise RequestError("the URL contains a user name or a password")
        if _address_of(host) is None and (not _HOST.fullmatch(host) or host.rpartition(".")[2].isdecimal()):
            raise RequestError(f"invalid host {host[:40]!r} in the URL")
        if not rules.allows_host(host):
            raise RequestError(f"host {host[:80]!r} is not one of the server's --allowed-media-domains")
        is_secure = parts.scheme == "https"
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return _Target(is_secure, host, port or (443 if is_secure else 80), path)


def _checked_address(target: _Target, rules: HostRules, resolve: Resolve) -> Address:
    """Resolve a host.  RequestError unless all its addresses are allowed."""
    address = _address_of(target.host)
    addresses = list(resolve(target.host, target.port)) if address is None else [address]
    if not addresses or not all(map(rules.allows_address, addresses)):
        raise RequestError(f"host {target.host[:80]!r} has no public address (name the address to allow it)")
    return addresses[0]


class _Deadline:
    """Closes the current connection when the time is over, whatever it waits for."""

    def __init__(self, seconds: float) -> None:
        self._end_s = time.monotonic() + seconds
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        self._timer = threading.Timer(seconds, self._shut)
        self._timer.daemon = True

    def __enter__(self) -> _Deadline:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    @property
    def left_s(self) -> float:
        return max(self._end_s - time.monotonic(), 0.001)

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._end_s

    def watch(self, connected: socket.socket) -> None:
        with self._lock:
            self._socket = connected
        if self.is_over:
            self._shut()

    def _shut(self) -> None:
        with self._lock:
            if self._socket is not None:
                with suppress(OSError):
                    # Not the method of a TLS socket, which would change its state under the thread that reads.
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


def _get(target: _Target, address: Address, limits: FetchLimits, deadline: _Deadline) -> bytes | str:
    """Return the contents, or the new URL of a redirect."""
    connected = socket.create_connection((str(address), target.port), deadline.left_s)
    connection = http.client.HTTPConnection(target.host, target.port)
    try:
        connected.settimeout(deadline.left_s)
        deadline.watch(connected)
        if target.is_secure:
            connected = ssl.create_default_context().wrap_socket(connected, server_hostname=target.host)
            deadline.watch(connected)
        connection.sock = connected
        shown = f"[{target.host}]" if ":" in target.host else target.host
        usual = target.port == (443 if target.is_secure else 80)
        headers = {
            "Host": shown if usual else f"{shown}:{target.port}", "Accept": "image/*,*/*;q=0.1",
            "Accept-Encoding": "identity", "User-Agent": "quire", "Connection": "close",
        }  # fmt: skip
        connection.request("GET", target.path, headers=headers)
        with connection.getresponse() as response:
            if response.status in _REDIRECTS and (location := response.headers.get("Location")):
                return location
            if response.status != 200:
                raise RequestError(f"the URL answers with status {response.status}")
            return _read(response, limits, deadline)
    finally:
        connection.close()
        connected.close()


def _read(response: http.client.HTTPResponse, limits: FetchLimits, deadline: _Deadline) -> bytes:
    pieces: list[bytes] = []
    n_bytes = 0
    told = response.headers.get("Content-Length", "0")
    n_told = int(told) if told.isdecimal() and len(told) < 20 else 0
    while n_bytes <= limits.max_bytes and n_told <= limits.max_bytes:
        piece = response.read1(_PIECE_BYTES)
        if deadline.is_over:
            raise TimeoutError
        if not piece:
            if n_bytes < n_told:
                raise http.client.IncompleteRead(b"")
            return b"".join(pieces)
        pieces.append(piece)
        n_bytes += len(piece)
    raise RequestError(f"the URL has more than {limits.max_bytes} bytes")
