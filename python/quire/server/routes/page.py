"""The page at ``/``: a chat without a build step or anything from elsewhere."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from importlib.resources import files

from ..listener.replies import Reply
from ..listener.request_context import RequestContext

__all__ = ["page"]


@functools.cache
def _reply() -> Reply:
    """The page, and a policy that lets its own script and style run and nothing else."""
    content = files("quire.server").joinpath("page").joinpath("index.html").read_bytes()
    policy = [
        "default-src 'none'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    ]
    for name, tag in (("script", b"script"), ("style", b"style")):
        found = re.search(b"<%s>(.*?)</%s>" % (tag, tag), content, re.DOTALL)
        assert found is not None
        digest = base64.b64encode(hashlib.sha256(found[1]).digest()).decode()
        policy.append(f"{name}-src 'sha256-{digest}'")
    headers = (
        (b"content-security-policy", "; ".join(policy).encode()),
        (b"referrer-policy", b"no-referrer"),
        (b"x-content-type-options", b"nosniff"),
    )
    return Reply(content, media_type=b"text/html; charset=utf-8", headers=headers)


# What Ollama's server says there, by which programs find it.
_RUNNING = Reply(b"Ollama is running", media_type=b"text/plain; charset=utf-8")


async def page(context: RequestContext[None]) -> Reply:
    """The page for browsers, which ask for HTML; for programs, a word that the server is there."""
    accepted = [value for name, value in context.scope["headers"] if name == b"accept"]
    return _reply() if any(b"text/html" in value for value in accepted) else _RUNNING
