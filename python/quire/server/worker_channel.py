"""The worker's end of the channel.  Apart from the listener's, as the worker does not import asyncio."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Iterator, Sequence

import msgspec

from .frames import HEAD, body_length, frame
from .protocol import FromEngine, ToEngine

__all__ = ["WorkerSide"]

# The worker's frames gather so long at least, and are so far apart: less than anybody sees.
_TOGETHER_S, _APART_S = 0.0003, 0.012


class WorkerSide:
    """The worker's end: one thread reads, one writes what any thread puts in."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._decoder = msgspec.msgpack.Decoder(list[ToEngine])
        self._outbox: queue.SimpleQueue[Sequence[FromEngine] | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="quire-channel", daemon=True)
        self._writer.start()

    def send(self, messages: Sequence[FromEngine]) -> None:
        """Have messages sent, in order.  Returns at once."""
        self._outbox.put(messages)

    def finish(self) -> None:
        """Wait until all that was put in is sent."""
        self._outbox.put(None)
        self._writer.join(5.0)

    def messages(self) -> Iterator[ToEngine]:
        """What comes, until the other end is closed."""
        with self._connection.makefile("rb") as file:
            while len(head := file.read(HEAD)) == HEAD:
                length = body_length(head)
                body = file.read(length)
                if len(body) < length:
                    return
                yield from self._decoder.decode(body)

    def _write(self) -> None:
        sent_s = 0.0
        ended = False
        while not ended:
            taken = [self._outbox.get()]
            # What many requests have to say after one step goes out together; and a model that is quicker than people
            # read does not wake the listener, and the clients, for every token.
            time.sleep(max(_TOGETHER_S, sent_s + _APART_S - time.monotonic()))
            while not self._outbox.empty():
                taken.append(self._outbox.get())
            ended = None in taken
            messages = [message for group in taken if group is not None for message in group]
            try:
                if messages:
                    self._connection.sendall(frame(messages))
            except OSError:  # the listener is gone, and the reading thread ends the process
                return
            sent_s = time.monotonic()
