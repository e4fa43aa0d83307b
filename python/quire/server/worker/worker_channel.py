"""The worker's end of the channel, separate from the listener's so that the worker need not import asyncio."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

import msgspec

from .frames import HEAD, body_length, frame
from .protocol import Delta, FromEngine, ToEngine

__all__ = ["WorkerSide", "time_apart"]

# Messages gather for at least this long, and frames are this far apart, which people cannot notice.
_TOGETHER_S, _APART_S = 0.0003, 0.012
# With many streams frames are further apart, because handling them in the listener takes time from the decoder.
_LOGPROBS_TOGETHER = 1024
_APART_PER_STREAM_S, _FURTHEST_APART_S = 0.0012, 0.05


class WorkerSide:
    """The worker's end: one thread reads, another writes what any thread sends."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._decoder = msgspec.msgpack.Decoder(list[ToEngine])
        self._outbox: queue.SimpleQueue[Sequence[FromEngine] | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="quire-channel", daemon=True)
        self._writer.start()

    def send(self, messages: Sequence[FromEngine]) -> None:
        """Queue messages to be sent in order; returns at once."""
        self._outbox.put(messages)

    def finish(self) -> None:
        """Wait until all queued messages are sent."""
        self._outbox.put(None)
        self._writer.join(5.0)

    def messages(self) -> Iterator[ToEngine]:
        """Yield incoming messages until the other end is closed."""
        with self._connection.makefile("rb") as file, suppress(ConnectionResetError):
            while len(head := file.read(HEAD)) == HEAD:
                length = body_length(head)
                body = file.read(length)
                if len(body) < length:
                    return
                yield from self._decoder.decode(body)

    def _write(self) -> None:
        sent_s, apart_s = 0.0, _APART_S
        ended = False
        while not ended:
            taken = [self._outbox.get()]
            # Send the results of a step for many requests together, and do not wake the listener and clients for every
            # token of a model that is faster than people read.
            time.sleep(max(_TOGETHER_S, sent_s + apart_s - time.monotonic()))
            while not self._outbox.empty():
                taken.append(self._outbox.get())
            ended = None in taken
            messages = [message for group in taken if group is not None for message in group]
            try:
                for together in apart(messages):
                    self._connection.sendall(frame(together))
            except OSError:  # the listener is gone; the reading thread ends the process
                return
            sent_s = time.monotonic()
            apart_s = time_apart(messages)


def apart(messages: Sequence[FromEngine]) -> Iterator[Sequence[FromEngine]]:
    """Split messages into groups small enough not to block the listener."""
    begin = n = 0
    for at, message in enumerate(messages):
        if isinstance(message, Delta):
            n += len(message.logprobs) + len(message.prompt_logprobs)
            if n >= _LOGPROBS_TOGETHER:
                yield messages[begin : at + 1]
                begin, n = at + 1, 0
    if begin < len(messages):
        yield messages[begin:]


def time_apart(messages: Sequence[FromEngine]) -> float:
    """Return the seconds to wait after a frame with these messages."""
    n_streams = len({message.id for message in messages if isinstance(message, Delta)})
    return min(max(_APART_S, n_streams * _APART_PER_STREAM_S), _FURTHEST_APART_S)
