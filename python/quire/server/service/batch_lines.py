"""Lines of OpenAI's batch files: one request in JSON per line, and one answer per line."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ...errors import RequestError

__all__ = ["BATCH_PATHS", "BatchLine", "answer_line", "read_lines"]

BATCH_PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/messages",
    "/v1/rerank",
    "/v1/score",
)
_MOST_ID_CHARS = 512


@dataclass(frozen=True)
class BatchLine:
    """A request of a batch.  ``number`` counts lines from 1; ``body`` is the request's JSON."""

    number: int
    custom_id: str
    path: str
    body: bytes


def read_lines(lines: Iterable[bytes], path: str | None = None) -> Iterator[BatchLine]:
    """Yield the requests of a batch file; blank lines are left out.

    Args:
        lines: The file, line by line.
        path: The path of all requests; None: any of ``BATCH_PATHS``.

    Raises:
        RequestError: A line is not a request, or repeats a ``custom_id``.
    """
    known: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        found = _request(number, line, path)
        if found.custom_id in known:
            first = known[found.custom_id]
            raise RequestError(f"[batch] line {number}: custom_id {found.custom_id!r:.80} is that of line {first}")
        known[found.custom_id] = number
        yield found


def _request(number: int, line: bytes, path: str | None) -> BatchLine:
    def refused(why: str) -> RequestError:
        return RequestError(f"[batch] line {number}: {why}")

    try:
        given: Any = json.loads(line)
        json.dumps(given, ensure_ascii=False).encode()  # half a surrogate pair cannot be written again
    except (ValueError, RecursionError) as error:
        raise refused(f"not valid JSON: {error}") from None
    if not isinstance(given, dict):
        raise refused("not a JSON object")
    custom_id, url, body = given.get("custom_id"), given.get("url"), given.get("body")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= _MOST_ID_CHARS:
        raise refused(f"custom_id must be a string of 1 to {_MOST_ID_CHARS} characters")
    if given.get("method", "POST") != "POST":
        raise refused(f"unsupported method {given['method']!r:.40}: expected 'POST'")
    if url not in BATCH_PATHS:
        raise refused(f"unsupported url {url!r:.80}: expected one of {', '.join(BATCH_PATHS)}")
    if path is not None and url != path:
        raise refused(f"url is {url!r}, but the batch's endpoint is {path!r}")
    if not isinstance(body, dict):
        raise refused("body must be a JSON object")
    if body.get("stream"):
        raise refused("stream is unsupported in batches: leave it out")
    return BatchLine(number, custom_id, url, json.dumps(body, ensure_ascii=False).encode())


def answer_line(custom_id: str, status: int, request_id: str, content: bytes) -> bytes:
    """Return the line for an answer, as OpenAI writes it; ``content`` is the answer's JSON."""
    found = {
        "id": f"batch_req_{secrets.token_hex(12)}",
        "custom_id": custom_id,
        "response": {"status_code": status, "request_id": request_id, "body": json.loads(content)},
        "error": None,
    }
    return json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
