"""Responses that are made in the background and asked for later."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

from ..failures import ApiError
from .batch_runner import post_when_free

if TYPE_CHECKING:
    from collections.abc import Callable

    from .batch_runner import Post
    from .caller import Caller
    from .response_store import ResponseStore

__all__ = ["BackgroundResponses"]

MOST = 64  # for one caller
MOST_BYTES = 64 << 20  # the sum for a caller's requests that are not answered
_log = logging.getLogger("quire.server")
_OURS = ("id", "created_at", "background")


class BackgroundResponses:
    """Runs ``/v1/responses`` for requests whose clients do not wait; the answers go into the store of responses."""

    def __init__(self, post: Callable[[], Post], kept: ResponseStore) -> None:
        self._post, self._kept = post, kept
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._n_bytes: Counter[str] = Counter()

    def start(self, caller: Caller, response: dict[str, Any], body: bytes) -> None:
        """Store a response that is in progress, and begin to answer ``body``.  ApiError 429 for too many."""
        n_bytes = self._n_bytes[caller.name] + len(body)
        if sum(name == caller.name for name, _ in self._tasks) >= MOST or n_bytes > max(MOST_BYTES, len(body)):
            raise ApiError(429, "too_many_responses", "too many responses are in progress", retry_after_s=10)
        id_ = response["id"]
        self._kept.add(caller, id_, response, [])
        task = asyncio.create_task(self._answer(caller, response, body))
        self._tasks[caller.name, id_] = task
        self._n_bytes[caller.name] = n_bytes

        def ended(_: asyncio.Task[None]) -> None:
            self._tasks.pop((caller.name, id_), None)
            self._n_bytes[caller.name] -= len(body)
            if self._n_bytes[caller.name] <= 0:
                del self._n_bytes[caller.name]

        task.add_done_callback(ended)

    def cancel(self, caller: Caller, id_: str) -> dict[str, Any]:
        """End a response and return it.  ApiError 404 for an unknown one, 400 for one not made in the background."""
        response = self._kept.get(caller, id_).response
        if not response.get("background"):
            raise ApiError(400, "not_in_background", f"response {id_} is not in the background")
        if self._end(caller, id_):
            response = {**response, "status": "cancelled"}
            self._kept.replace(caller, id_, response)
        return response

    def remove(self, caller: Caller, id_: str) -> None:
        """Delete a stored response, and end it if it is in progress.  ApiError 404 for an unknown one."""
        self._kept.remove(caller, id_)
        self._end(caller, id_)

    def _end(self, caller: Caller, id_: str) -> bool:
        task = self._tasks.get((caller.name, id_))
        return task is not None and task.cancel()  # False if it has just finished

    async def stop(self) -> None:
        """End all."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, caller: Caller, response: dict[str, Any], body: bytes) -> None:
        id_ = response["id"]
        try:
            answer = await post_when_free(self._post(), "/v1/responses", body, caller, in_batch=False)
            found = json.loads(answer.content)
            if answer.status == 200:
                self._kept.rename(caller, found["id"], id_, {**found, **{name: response[name] for name in _OURS}})
                return
            error = {"code": found["error"]["code"], "message": found["error"]["message"]}
        except ApiError:  # larger than the store
            error = {"code": "not_stored", "message": "the response is too large to be stored"}
        except Exception as failure:
            _log.exception("[serve] response %s in the background failed", id_)
            error = {"code": "server_error", "message": type(failure).__name__}
        self._kept.replace(caller, id_, {**response, "status": "failed", "error": error})
