"""Work of the listener that its event loop does not wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from ..fair_pool import FairPool

__all__ = ["made_apart"]

T = TypeVar("T")


async def made_apart(pool: FairPool, caller: str, size: int, make: Callable[[], T]) -> T:
    """The result of a function that a thread of a pool calls.  Who is cancelled meanwhile leaves it to itself."""
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
