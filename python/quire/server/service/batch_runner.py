"""Answer the lines of a batch, many at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from ..failures import says_shutting_down
from .batch_lines import BatchLine, answer_line
from .caller import Caller

__all__ = ["Answer", "Post", "answer_lines", "post_when_free"]

_RETRY_S = 0.2
_MOST_RETRY_S = 5.0
_MOST_TRIES = 12  # for a request that the server cannot answer now; about 45 seconds


@dataclass(frozen=True)
class Answer:
    """The answer to a request that the server sent to itself."""

    status: int
    content: bytes
    headers: dict[bytes, bytes] = field(default_factory=dict)


Post = Callable[[str, bytes, Caller, bool], Awaitable[Answer]]
"""Answers a request: its path, body and caller, and whether it belongs to a batch, in which no tools run."""


async def answer_lines(
    lines: Iterable[BatchLine], post: Post, caller: Caller, n_at_once: int
) -> AsyncIterator[tuple[BatchLine, int, bytes]]:
    """Yield each request with its answer's status and line, as answers are finished.

    Requests that the server has no room for wait; those that it does not accept because it stops are left out.  Closing
    the iterator cancels what runs.
    """
    waiting = iter(lines)
    running: set[asyncio.Task[tuple[BatchLine, Answer]]] = set()
    try:
        while True:
            while len(running) < n_at_once and (line := next(waiting, None)) is not None:
                running.add(asyncio.create_task(_answered(line, post, caller)))
            if not running:
                return
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                line, answer = task.result()
                if _is_stopping(answer):
                    continue
                request_id = answer.headers.get(b"x-request-id", b"").decode()
                yield line, answer.status, answer_line(line.custom_id, answer.status, request_id, answer.content)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _answered(line: BatchLine, post: Post, caller: Caller) -> tuple[BatchLine, Answer]:
    return line, await post_when_free(post, line.path, line.body, caller, in_batch=True)


async def post_when_free(post: Post, path: str, body: bytes, caller: Caller, *, in_batch: bool) -> Answer:
    """Answer a request as soon as the server has room for it.

    A server that cannot answer for another reason (503: its model is loading, or its worker crashed) is asked a few
    times, and then its refusal is the answer.
    """
    n_tries = 0
    while True:
        answer = await post(path, body, caller, in_batch)
        if answer.status == 503 and not _is_stopping(answer) and n_tries < _MOST_TRIES:
            await asyncio.sleep(min(_RETRY_S * 2**n_tries, _MOST_RETRY_S))
            n_tries += 1
        elif answer.status == 429:
            await asyncio.sleep(_RETRY_S)
        else:
            return answer


def _is_stopping(answer: Answer) -> bool:
    return answer.status == 503 and says_shutting_down(answer.content)
