"""A local hub with the few endpoints that huggingface_hub uses to download files, and a record of requests."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class LocalHub:
    """Repositories with their files.

    The next download of a path in ``cut`` ends after that many bytes.  The bytes of paths in ``wrong`` do not match the
    hub's hashes.  Repositories in ``gated`` require a token.
    """

    repositories: dict[str, dict[str, bytes]]
    cut: dict[str, int] = field(default_factory=dict)
    wrong: set[str] = field(default_factory=set)
    gated: set[str] = field(default_factory=set)
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    address: str = ""


@contextmanager
def local_hub(repositories: dict[str, dict[str, bytes]]) -> Iterator[LocalHub]:
    """Run a hub until the block ends."""
    hub = LocalHub(repositories)

    class Handler(_Handler):
        of = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    of: LocalHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.of.asked.append((self.command, path, self.headers.get("range")))
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        found = api or file
        if found is None or found[1] not in self.of.repositories:
            self._fail(404, "RepoNotFound")
        elif found[1] in self.of.gated and "authorization" not in self.headers:
            self._fail(401, "GatedRepo")
        elif api is not None:
            self._describe(api[1])
        elif file is not None and file[3] in self.of.repositories[file[1]]:
            self._send(file[3], self.of.repositories[file[1]][file[3]])
        else:
            self._fail(404, "EntryNotFound")

    def _fail(self, status: int, code: str) -> None:
        body = json.dumps({"error": code}).encode()
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _describe(self, repository: str) -> None:
        files = self.of.repositories[repository]
        siblings = [
            {
                "rfilename": name,
                "size": len(data),
                "blobId": hashlib.sha1(data).hexdigest(),
                "lfs": {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134},
            }
            for name, data in files.items()
        ]
        body = json.dumps({"id": repository, "modelId": repository, "sha": COMMIT, "siblings": siblings}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _send(self, name: str, data: bytes) -> None:
        begin = 0
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("range") or "")
        if asked is not None:
            begin = int(asked[1])
        body = data[begin:]
        self.send_response(206 if asked else 200)
        if asked is not None:
            self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if name in self.of.wrong:
            body = bytes(len(body))
        if name in self.of.cut:
            self.wfile.write(body[: self.of.cut.pop(name)])
            self.close_connection = True
            return
        self.wfile.write(body)
