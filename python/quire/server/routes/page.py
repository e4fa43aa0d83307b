"""The page at ``/``: chats and a view of the server, without a build step or external resources."""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import PurePath

from ...params.sampling import PARAMETERS
from ..failures import ApiError
from ..listener.replies import Reply
from ..listener.request_context import RequestContext

__all__ = ["MEDIA_TYPES", "page", "page_file", "page_script"]

# Scripts and styles load only as files from this server, so text from a model or user can never become one.
POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "font-src 'self'",
        "img-src 'self' blob:",
        "media-src blob:",
        "connect-src 'self'",
        "worker-src 'self'",
        "frame-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types quire",
    ]
)
# The frame that previews what a model wrote: its scripts run, with an origin of their own and without a network.
PREVIEW = "preview.html"
PREVIEW_POLICY = "; ".join(
    [
        "sandbox allow-scripts",
        "default-src 'none'",
        "script-src 'unsafe-inline'",
        "style-src 'unsafe-inline'",
        "img-src data: blob:",
        "media-src data: blob:",
        "font-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'self'",
    ]
)
HEADERS = (
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-cache"),
    (b"vary", b"accept-encoding"),
)
MEDIA_TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
    ".woff2": b"font/woff2",
}


@dataclass(frozen=True)
class _File:
    """A file of the page as it is sent, compressed or not, and the tag by which browsers ask for changes."""

    name: str
    compressed: bytes

    @functools.cached_property
    def plain(self) -> bytes:
        return gzip.decompress(self.compressed)

    @functools.cached_property
    def tag(self) -> bytes:
        return b'"' + hashlib.sha256(self.compressed).hexdigest()[:20].encode() + b'"'

    def reply(self, headers: dict[bytes, bytes]) -> Reply:
        policy = PREVIEW_POLICY if self.name == PREVIEW else POLICY
        own = [*HEADERS, (b"content-security-policy", policy.encode()), (b"etag", self.tag)]
        if self.name == "offline.js":  # a script below /page/ that works for the whole page
            own.append((b"service-worker-allowed", b"/"))
        media_type = MEDIA_TYPES[PurePath(self.name).suffix]
        if headers.get(b"if-none-match") == self.tag:
            return Reply(b"", 304, media_type=media_type, headers=tuple(own))
        if b"gzip" not in headers.get(b"accept-encoding", b""):
            return Reply(self.plain, media_type=media_type, headers=tuple(own))
        return Reply(self.compressed, media_type=media_type, headers=(*own, (b"content-encoding", b"gzip")))


@functools.cache
def _files() -> dict[str, _File]:
    """Load the files of the page, by name.  Large libraries are stored compressed."""
    found = {"parameters.js": _File("parameters.js", gzip.compress(page_script().encode(), mtime=0))}
    for entry in files("quire.server").joinpath("page").iterdir():
        name = entry.name.removesuffix(".gz")
        if PurePath(name).suffix in MEDIA_TYPES:
            content = entry.read_bytes()
            found[name] = _File(name, content if entry.name != name else gzip.compress(content, mtime=0))
    return found


def page_script() -> str:
    """Write the script with the settings for sampling, made from the declarations of the parameters."""
    settings = []
    for name, parameter in PARAMETERS.items():
        if (slider := parameter.page) is not None:
            low = -1 if parameter.none and name != "seed" else max(getattr(parameter.rule, "low", 0), -(2**31))
            field = (parameter.names_in("openai", name) or (name,))[-1]
            about = {"name": field, "label": slider.label, "title": parameter.help, "rare": slider.rare}
            settings.append({**about, "min": low, "max": slider.high, "step": slider.step})
    return f"export const PARAMETERS = {json.dumps(settings, ensure_ascii=False, indent=1)};\n"


# Programs recognize Ollama's server by this text.
_RUNNING = Reply(b"Ollama is running", media_type=b"text/plain; charset=utf-8")


async def page(context: RequestContext[None]) -> Reply:
    """Return the page to browsers, which ask for HTML; other programs get a line that the server is running."""
    headers = dict(context.scope["headers"])
    return _files()["index.html"].reply(headers) if b"text/html" in headers.get(b"accept", b"") else _RUNNING


async def page_file(context: RequestContext[None]) -> Reply:
    """Return a script, style or picture of the page."""
    name = context.path("file")
    if name not in _files():
        raise ApiError(404, "no_such_route", f"the page has no file {name!r:.80}")
    return _files()[name].reply(dict(context.scope["headers"]))
