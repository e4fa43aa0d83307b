"""Merge the answers of several requests that run for one call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from ..worker.engine_client import StreamEvent
from .answers import ResponseStream

__all__ = ["merged"]

# Few, because each may hold everything that arrived while the client did not read.  Data waiting before the queue is
# counted, and pauses the answer.
_QUEUED_BATCHES = 2


async def merged(answers: Sequence[ResponseStream]) -> AsyncGenerator[tuple[int, Sequence[StreamEvent]], None]:
    """Yield the batches of all answers as they arrive, with the answer's number.  The first failure ends them all."""
    queue: asyncio.Queue[tuple[int, Sequence[StreamEvent] | Exception | None]] = asyncio.Queue(_QUEUED_BATCHES)

    async def read(number: int, answer: ResponseStream) -> None:
        try:
            async for batch in answer.batches():
                await queue.put((number, batch))
            await queue.put((number, None))
        except Exception as error:
            await queue.put((number, error))

    readers = [asyncio.ensure_future(read(number, answer)) for number, answer in enumerate(answers)]
    try:
        n_left = len(readers)
        while n_left:
            number, batch = await queue.get()
            if isinstance(batch, Exception):
                raise batch
            if batch is None:
                n_left -= 1
            else:
                yield number, batch
    finally:
        for reader in readers:
            reader.cancel()
