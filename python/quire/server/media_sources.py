"""Images and sounds that requests give as URLs: off by default, and only from named hosts or a named folder."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote, urlsplit

from ..errors import RequestError
from ..system import open_below
from .pinned_fetch import FetchLimits, HostRules, fetch

if TYPE_CHECKING:
    from .settings import Settings

__all__ = ["MediaSources", "wanted_urls", "with_contents"]

Messages: TypeAlias = "Sequence[Mapping[str, Any]]"

_KINDS = {
    "image": "image", "image_url": "image", "input_image": "image",
    "audio": "audio", "audio_url": "audio", "input_audio": "audio",
    "video": "video", "video_url": "video", "input_video": "video",
}  # fmt: skip
_SCHEMES = ("http:", "https:", "file:")


@dataclass(frozen=True)
class MediaSources:
    """Where images and sounds may come from besides the request itself.

    Attributes:
        hosts: None: no URL is fetched.
        folder: ``file:`` URLs below this folder are read; None: none are.
        limits: Limits of a file; its time is that of all files of a request together.
        max_urls: Most URLs of a request.
        max_total_bytes: Most bytes of a request's files together.
    """

    hosts: HostRules | None = None
    folder: Path | None = None
    limits: FetchLimits = field(default_factory=FetchLimits)
    max_urls: int = 32
    max_total_bytes: int = 128 << 20

    @classmethod
    def of(cls, settings: Settings) -> MediaSources:
        """Return what a server's settings allow."""
        domains, folder = settings.allowed_media_domains, settings.allowed_local_media_path
        return cls(HostRules.of(domains) if domains else None, None if folder is None else Path(folder))

    @property
    def is_open(self) -> bool:
        """True if there are any."""
        return self.hosts is not None or self.folder is not None

    def contents(self, urls: Mapping[str, str]) -> dict[str, bytes]:
        """Return the files of URLs, each given with its place in the request.  Blocks.

        Raises:
            RequestError: A file is not allowed, too large or cannot be had; its place is named.
        """
        if len(urls) > self.max_urls:
            raise RequestError(f"[chat] the messages have {len(urls)} URLs: at most {self.max_urls} are fetched")
        found: dict[str, bytes] = {}
        n_bytes = 0
        end_s = time.monotonic() + self.limits.total_s
        for url, place in urls.items():
            left_s = max(end_s - time.monotonic(), 0.001)
            try:
                found[url] = self.read(url, replace(self.limits, total_s=left_s))
            except RequestError as error:
                raise RequestError(f"[chat] {place}: {error}") from None
            n_bytes += len(found[url])
            if n_bytes > self.max_total_bytes:
                raise RequestError(f"[chat] {place}: the files have more than {self.max_total_bytes} bytes together")
        return found

    def read(self, url: str, limits: FetchLimits) -> bytes:
        """Return the file of a URL.  RequestError if it is not allowed, too large or cannot be had."""
        if url[:5].lower() == "file:":
            if self.folder is None:
                raise RequestError("file: URLs are not read (the server has no --allowed-local-media-path)")
            return _local(url, self.folder, limits.max_bytes)
        if self.hosts is None:
            raise RequestError("URLs are not fetched (the server has no --allowed-media-domains)")
        return fetch(url, self.hosts, limits)


def _local(url: str, folder: Path, max_bytes: int) -> bytes:
    """Read a file below a folder.  Links that lead out of it, and ``..``, are refused."""
    parts = urlsplit(url)
    path = unquote(parts.path)
    root = os.path.realpath(folder)
    if parts.netloc not in ("", "localhost"):  # file://name, below the folder
        path = f"{root}/{unquote(parts.netloc)}{path}"
    elif not path.startswith("/"):
        path = f"{root}/{path}"
    if "\0" in path or ".." in PurePosixPath(path).parts:
        raise RequestError("invalid file: URL")
    real = os.path.realpath(path)
    if os.path.commonpath((root, real)) != root or real == root:
        raise RequestError("the file is not below the server's --allowed-local-media-path")
    try:
        return _read_below(root, Path(real).relative_to(root).parts, max_bytes)
    except OSError as error:
        raise RequestError(f"cannot read the file ({error.strerror})") from None


def _read_below(root: str, parts: Sequence[str], max_bytes: int) -> bytes:
    """Read a regular file, following no link, as one may have been put there since the path was checked."""
    with open(open_below(root, parts), "rb") as file:
        state = os.fstat(file.fileno())
        if not stat.S_ISREG(state.st_mode):
            raise RequestError("the URL is not that of a regular file")
        if state.st_size > max_bytes or len(data := file.read(max_bytes + 1)) > max_bytes:
            raise RequestError(f"the file has more than {max_bytes} bytes")
        return data


def wanted_urls(messages: Messages) -> dict[str, str]:
    """Return the URLs of images and sounds in messages that are to be fetched, each with its first place."""
    found: dict[str, str] = {}
    for i, message in enumerate(messages):
        content = message.get("content")
        for k, part in enumerate(content if isinstance(content, list) else ()):
            url = _url_of(part)
            if url is not None:
                found.setdefault(url, f"messages[{i}].content[{k}]")
    return found


def with_contents(messages: Messages, files: Mapping[str, bytes]) -> list[dict[str, Any]]:
    """Return the messages with the bytes of files in place of their URLs."""

    def part_of(part: Any) -> Any:
        url = _url_of(part)
        if url is None or url not in files:
            return part
        kind = _KINDS[part["type"]]
        rate = {"fps": part["fps"]} if kind == "video" and "fps" in part else {}
        return {"type": kind, kind: files[url], **rate}

    made = []
    for message in messages:
        content = message.get("content")
        parts = {"content": [part_of(part) for part in content]} if isinstance(content, list) else {}
        made.append({**message, **parts})
    return made


def _url_of(part: object) -> str | None:
    """Return the URL of an image or a sound that is not in the request itself."""
    kind = _KINDS.get(str(part.get("type"))) if isinstance(part, Mapping) else None
    if kind is None or not isinstance(part, Mapping):
        return None
    url = next((part[name] for name in (f"{kind}_url", kind, f"input_{kind}", "url") if part.get(name)), None)
    if isinstance(url, Mapping):
        url = url.get("url")
    return url if isinstance(url, str) and url[:8].lower().lstrip().startswith(_SCHEMES) else None
