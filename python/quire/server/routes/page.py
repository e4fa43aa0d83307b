"""The page at ``/``: chats and a view of the server, without a build step or external resources."""

from __future__ import annotations

import functools
import json
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
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    ]
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-cache"),
)
MEDIA_TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
}


@functools.cache
def _files() -> dict[str, Reply]:
    """Load the files of the page and return a reply for each, by name."""
    folder = files("quire.server").joinpath("page")
    found = {entry.name: MEDIA_TYPES.get(PurePath(entry.name).suffix) for entry in folder.iterdir()}
    contents = {
        name: folder.joinpath(name).read_bytes() for name, media_type in found.items() if media_type is not None
    }
    contents["parameters.js"] = page_script().encode()
    return {
        name: Reply(content, media_type=MEDIA_TYPES[PurePath(name).suffix], headers=HEADERS)
        for name, content in contents.items()
    }


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
    accepted = [value for name, value in context.scope["headers"] if name == b"accept"]
    return _files()["index.html"] if any(b"text/html" in value for value in accepted) else _RUNNING


async def page_file(context: RequestContext[None]) -> Reply:
    """Return a script, style or picture of the page."""
    name = context.path("file")
    if name not in _files():
        raise ApiError(404, "no_such_route", f"the page has no file {name!r:.80}")
    return _files()[name]
