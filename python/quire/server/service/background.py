"""Responses that are made in the background and asked for later."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from ..failures import ApiError
from .batch_runner import post_when_free

if TYPE_CHECKING:
    from collections.abc import Callable

    from .batch_runner import Post
    from .caller import Caller
    from .response_store import ResponseStore

__all__ = ["BackgroundResponses"]

MOST = 64  # of one caller
_OURS = ("id", "created_at", "background")


class BackgroundResponses:
    """Runs ``/v1/responses`` for requests whose clients do not wait; the answers go into the store of responses."""

    def __init__(self, post: Callable[[], Post], kept: ResponseStore) -> None:
        self._post, self._kept = post, kept
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}

    def start(self, caller: Caller, response: dict[str, Any], body: bytes) -> None:
        """Store a response that is in progress, and begin to answer ``body``.  ApiError 429 for too many."""
        if sum(name == caller.name for name, _ in self._tasks) >= MOST:
            raise ApiError(429, "too_many_responses", f"{MOST} responses are in progress already", retry_after_s=10)
        id_ = response["id"]
        self._kept.add(caller, id_, response, [])
        task = asyncio.create_task(self._answer(caller, response, body))
        self._tasks[caller.name, id_] = task
        task.add_done_callback(lambda _: self._tasks.pop((caller.name, id_), None))

    def cancel(self, caller: Caller, id_: str) -> dict[str, Any]:
        """End a response and return it.  ApiError 404 for an unknown one, 400 for one not made in the background."""
        response = self._kept.get(caller, id_).response
        if not response.get("background"):
            raise ApiError(400, "not_in_background", f"response {id_} is not in the background")
        if (task := self._tasks.get((caller.name, id_))) is not None:
            task.cancel()
            response = {**response, "status": "cancelled"}
            self._kept.replace(caller, id_, response)
        return response

    async def stop(self) -> None:
        """End all."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, caller: Caller, response: dict[str, Any], body: bytes) -> None:
        answer = await post_when_free(self._post(), "/v1/responses", body, caller, in_batch=False)
        found, id_ = json.loads(answer.content), response["id"]
        if answer.status == 200:
            self._kept.rename(caller, found["id"], id_, {**found, **{name: response[name] for name in _OURS}})
            return
        error = {"code": found["error"]["code"], "message": found["error"]["message"]}
        self._kept.replace(caller, id_, {**response, "status": "failed", "error": error})
