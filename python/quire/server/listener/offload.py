"""Run the listener's larger jobs on a thread, so that they do not block its event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from ..fair_pool import FairPool

__all__ = ["offload"]

T = TypeVar("T")


async def offload(pool: FairPool, caller: str, size: int, make: Callable[[], T]) -> T:
    """Run a function on a thread of a pool and return its result.

    If the caller is cancelled, a job that has started still finishes and its result is dropped.
    """
    loop = asyncio.get_running_loop()
    made: asyncio.Future[T] = loop.create_future()

    def tell(result: T) -> None:
        if not made.done():
            made.set_result(result)

    def fail(error: BaseException) -> None:
        if not made.done():
            made.set_exception(error)

    def job() -> None:
        if made.cancelled():
            return
        try:
            result = make()
        except BaseException as error:
            loop.call_soon_threadsafe(fail, error)
        else:
            loop.call_soon_threadsafe(tell, result)

    pool.submit(caller, size, job)
    return await made
