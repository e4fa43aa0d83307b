"""The open connections: limits on their number, in total and per address, and on the bytes they hold unread."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

__all__ = ["Connection", "Connections", "address_group"]

# A network interface typically has a whole /64 of IPv6 addresses.
_IPV6_PREFIX = 64
# Number of idle connections to try to close before giving up.
_MOST_LOOKS = 8


class Connection(Protocol):
    """A connection, as this table uses it."""

    def drop_idle(self) -> bool:
        """Close the connection at once; False if it is still sending an answer."""

    def drop_holder(self) -> None:
        """Reject what the client sent beyond its in-flight request."""


@dataclass
class _Address:
    n_open: int = 0
    idle: dict[Connection, None] = field(default_factory=dict)  # least recently used first


def address_group(host: str | None) -> str:
    """Return the address under which connections are counted: the client's own, or its /64 network for IPv6."""
    try:
        address = ipaddress.ip_address((host or "").partition("%")[0])
    except ValueError:
        return host or ""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.IPv6Network((int(address), _IPV6_PREFIX), strict=False))
    return str(address)


class Connections:
    """Counts connections and the bytes they hold unread.

    A new connection beyond a limit replaces an idle one; if none is idle, it is rejected.
    """

    def __init__(self, most: int, most_of_address: int, most_bytes: int) -> None:
        self._most, self._most_of_address, self._most_bytes = most, most_of_address, most_bytes
        self._groups: dict[Connection, str] = {}
        self._addresses: dict[str, _Address] = {}
        self._held: dict[Connection, int] = {}
        self.n_bytes = 0

    def __len__(self) -> int:
        return len(self._groups)

    def enter(self, connection: Connection, host: str | None) -> bool:
        """Count a new connection; False if there is no room for it."""
        group = address_group(host)
        address = self._addresses.get(group)
        if address is not None and address.n_open >= self._most_of_address and not self._drop_idle(address):
            return False
        if len(self._groups) >= self._most and not self._make_room():
            return False
        address = self._addresses.setdefault(group, _Address())
        address.n_open += 1
        address.idle[connection] = None
        self._groups[connection] = group
        return True

    def leave(self, connection: Connection) -> None:
        """Forget a connection.  May be called again."""
        self.n_bytes -= self._held.pop(connection, 0)
        group = self._groups.pop(connection, None)
        if group is None:
            return
        address = self._addresses[group]
        address.n_open -= 1
        address.idle.pop(connection, None)
        if address.n_open == 0:
            del self._addresses[group]

    def mark(self, connection: Connection, *, idle: bool) -> None:
        """Record if a connection is idle or has a request in flight."""
        group = self._groups.get(connection)
        if group is None:
            return
        waiting = self._addresses[group].idle
        waiting.pop(connection, None)
        if idle:
            waiting[connection] = None

    def hold(self, connection: Connection, n_bytes: int) -> None:
        """Record the unread bytes of a connection.  If the total exceeds its limit, the largest holder is rejected."""
        before = self._held.get(connection, 0)
        if n_bytes == before or connection not in self._groups:
            return
        if n_bytes:
            self._held[connection] = n_bytes
        else:
            del self._held[connection]
        self.n_bytes += n_bytes - before
        if self.n_bytes > self._most_bytes and n_bytes > before:
            largest = max(self._held, key=self._held.__getitem__)
            self.n_bytes -= self._held.pop(largest)
            largest.drop_holder()

    def _make_room(self) -> bool:
        """Close an idle connection of the address with the most connections."""
        having = [address for address in self._addresses.values() if address.idle]
        return bool(having) and self._drop_idle(max(having, key=lambda address: address.n_open))

    def _drop_idle(self, address: _Address) -> bool:
        for connection in list(islice(address.idle, _MOST_LOOKS)):
            if connection.drop_idle():
                self.leave(connection)
                return True
        return False
