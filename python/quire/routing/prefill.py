"""Servers that only read prompts: another server reads their blocks and writes the answer."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from typing import Any

import httpx

from .policy import Policy
from .replicas import HttpReplica, Lost, unless_lost

__all__ = ["Prefill"]

LEAST_BLOCKS = 8
"""Unknown blocks of a prompt, about 500 tokens, that are worth the detour."""
_PATHS = frozenset(("/v1/chat/completions", "/v1/completions", "/v1/messages"))
# Fields that concern the answer alone, and might not go with one token.
_OF_ANSWERS = frozenset(
    ("max_completion_tokens", "min_tokens", "n", "best_of", "stream_options", "response_format", "logprobs",
     "top_logprobs", "guided_json", "guided_regex", "guided_grammar", "guided_choice", "structured_outputs")
)  # fmt: skip
# The time a prompt may take: some, and what a server needs that reads 128 tokens a second.
_LEAST_S, _BLOCK_S, _MOST_S = 10.0, 0.5, 120.0
REST_S = 60.0
"""How long a server that took too long is not asked again, however healthy it calls itself."""
_log = logging.getLogger("quire.route")


class Prefill:
    """Has prompts read by the server with the least to read.  Its failures cost time alone."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.replicas = [HttpReplica(url.rstrip("/"), is_ready=False) for url in urls]
        self._policy = Policy()
        self._rests: dict[HttpReplica, float] = {}  # until when

    async def read(self, client: httpx.AsyncClient, request: httpx.Request, hashes: Sequence[int]) -> bool:
        """Return whether a server has read a request's prompt."""
        path = request.url.path
        if path not in _PATHS:
            return False
        now_s = asyncio.get_running_loop().time()
        resting = [each for each, until_s in self._rests.items() if now_s < until_s]
        replica, n_known = self._policy.choose_with_known(self.replicas, hashes, resting)
        if not isinstance(replica, HttpReplica):
            return False
        n_unread = len(hashes) - n_known
        self._policy.index.add(replica, hashes)
        replica.n_active += 1
        replica.n_unread += n_unread
        limit_s = min(_LEAST_S + _BLOCK_S * replica.n_unread, _MOST_S)
        try:
            content = await asyncio.to_thread(_of_one_token, request.content)
            headers = [each for each in request.headers.raw if each[0].lower() not in (b"host", b"content-length")]
            headers.append((b"x-quire-prefill", b"1"))
            sending = client.post(f"{replica.url}{path}", headers=headers, content=content)
            answer = await unless_lost(replica.lost, sending, limit_s)
        except asyncio.TimeoutError:
            self._rest(replica, limit_s)
            return False
        except (httpx.HTTPError, Lost, ValueError) as error:
            _log.warning("[route] %s did not read a prompt: %s", replica.url, type(error).__name__)
            if isinstance(error, httpx.TransportError):
                replica.fail()
            return False
        finally:
            replica.n_active -= 1
            replica.n_unread -= n_unread
        if answer.status_code != 200:
            _log.warning("[route] %s did not read a prompt: status %d", replica.url, answer.status_code)
        return answer.status_code == 200

    def _rest(self, replica: HttpReplica, seconds: float) -> None:
        """Do not ask a server for a while; requests that wait for it go on without it."""
        _log.warning("[route] %s did not read a prompt in %.0f s: not asked for %.0f s", replica.url, seconds, REST_S)
        self._rests[replica] = asyncio.get_running_loop().time() + REST_S
        replica.epoch += 1  # its cache may lack what it was sent
        before, replica.lost = replica.lost, asyncio.Event()
        before.set()


def _of_one_token(body: bytes) -> bytes:
    """Return a request whose answer has one token, which nobody reads."""
    given: dict[str, Any] = json.loads(body)
    kept = {name: value for name, value in given.items() if name not in _OF_ANSWERS}
    return json.dumps({**kept, "max_tokens": 1, "stream": False}).encode()
