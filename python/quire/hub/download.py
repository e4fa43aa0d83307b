"""Fetches models from a hub through ``huggingface_hub``, whose cache, variables and resuming they get with it."""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import LoadError, QuireError, UnsupportedError
from ..system import machine_memory_bytes
from .choose import Choice, RepositoryFile, choose
from .names import HubName

__all__ = ["Progress", "fetch", "is_offline", "repository_files", "usable_memory_bytes"]

Progress = Callable[[int, int, str], None]
"""Bytes done, bytes in all, the file's name.  It may raise to end the download."""

_PIECE_BYTES = 1 << 22


def is_offline() -> bool:
    """Whether the hub's own variables forbid the network."""
    return any(os.environ.get(name, "").lower() in ("1", "true", "yes", "on") for name in _OFFLINE)


_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


def usable_memory_bytes() -> int | None:
    """The memory of the machine, or of this process's container if less; None if the system does not tell."""
    memory = machine_memory_bytes()
    if memory is None:
        return None
    try:
        return min(memory, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    except (OSError, ValueError):
        return memory


def _hub() -> Any:
    """The library; UnsupportedError naming what installs it."""
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError:
        raise UnsupportedError(
            "[hub] downloading models needs huggingface_hub, which is not installed: pip install 'quire-llm[hub]'"
        ) from None


@contextmanager
def _told(name: HubName) -> Iterator[None]:
    """The library's errors as ours, in a line."""
    _hub()
    errors: Any = importlib.import_module("huggingface_hub.errors")
    try:
        yield
    except QuireError:
        raise
    except errors.GatedRepoError:
        raise LoadError(
            f"[hub] {name.repository} is gated: accept its terms on the hub first, and set HF_TOKEN"
        ) from None
    except errors.RepositoryNotFoundError:
        raise LoadError(
            f"[hub] no such repository: {name.repository} (a private one needs HF_TOKEN; a prompt with a slash is "
            "given by -p)"
        ) from None
    except errors.RevisionNotFoundError:
        raise LoadError(f"[hub] no such revision of {name.repository}: {name.revision}") from None
    except (errors.EntryNotFoundError, errors.HFValidationError) as error:
        raise LoadError(f"[hub] {name} is not on the hub: {_first_line(error)}") from None
    except Exception as error:
        if not isinstance(error, OSError | RuntimeError) and "http" not in type(error).__module__:
            raise
        raise LoadError(
            f"[hub] cannot download {name.repository}: {type(error).__name__}: {_first_line(error)} "
            "(try again: it goes on where it ended)"
        ) from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]


def repository_files(name: HubName) -> list[RepositoryFile]:
    """The files of a repository.  LoadError where there is none or the hub cannot be reached."""
    if is_offline():
        raise LoadError(
            f"[hub] {name} is not on this machine, and HF_HUB_OFFLINE forbids downloading it (quire pull {name} does "
            "that without)"
        )
    with _told(name):
        info = (
            _hub().HfApi(library_name="quire").model_info(name.repository, revision=name.revision, files_metadata=True)
        )
    return [_file(each) for each in info.siblings or ()]


def _file(sibling: Any) -> RepositoryFile:
    lfs = sibling.lfs
    digest = None if lfs is None else lfs.sha256
    return RepositoryFile(sibling.rfilename, sibling.size or 0, digest)


def fetch(
    name: HubName, memory_bytes: int | None = None, progress: Progress | None = None, *, shows_bars: bool = False
) -> tuple[Path, Choice]:
    """Fetch what a name means, or find it in the hub's cache; the file or folder to be opened, and what was chosen.

    ``shows_bars``: the library shows its own progress bars, in a terminal or a notebook.

    Parts that have come stay, and the next call goes on there.  A file's SHA-256 must be the one that the hub tells;
    LoadError where it is not, and the file is gone then.
    """
    choice = choose(name, repository_files(name), memory_bytes)
    paths = [_fetch_file(name, file, progress, shows_bars=shows_bars) for file in choice.files]
    first = paths[0]
    return (first.parent if choice.is_folder else first), choice


def _fetch_file(name: HubName, file: RepositoryFile, progress: Progress | None, *, shows_bars: bool) -> Path:
    hub = _hub()
    known = hub.try_to_load_from_cache(name.repository, file.path, revision=name.revision)
    with _told(name):
        got = Path(
            hub.hf_hub_download(
                name.repository, file.path, revision=name.revision, library_name="quire",
                tqdm_class=None if shows_bars else _bar(progress, file.path),
            )
        )  # fmt: skip
    if known is None or not isinstance(known, str):
        _check(name, file, got, progress)
    return got


def _check(name: HubName, file: RepositoryFile, path: Path, progress: Progress | None) -> None:
    """LoadError for a file that is not what the hub says."""
    if file.sha256 is None:
        return
    digest, done = hashlib.sha256(), 0
    with path.open("rb") as opened:
        while piece := opened.read(_PIECE_BYTES):
            digest.update(piece)
            done += len(piece)
            if progress is not None:
                progress(done, file.size_bytes or done, f"checking {file.path}")
    if digest.hexdigest() != file.sha256:
        blob = path.resolve()
        path.unlink(missing_ok=True)
        blob.unlink(missing_ok=True)
        raise LoadError(
            f"[hub] {file.path} of {name.repository} must have the SHA-256 {file.sha256[:16]}... but has "
            f"{digest.hexdigest()[:16]}...: it was deleted, the same command fetches it again"
        )


def _bar(progress: Progress | None, path: str) -> type[Any]:
    """A progress bar for the library, which shows nothing and tells ``progress``."""
    base: type[Any] = importlib.import_module("tqdm").tqdm

    class Bar(base):  # type: ignore[misc]
        def __init__(self, *args: Any, **values: Any) -> None:
            values.pop("name", None)
            super().__init__(*args, **{**values, "disable": True})
            self._done, self._all = values.get("initial") or 0, values.get("total") or 0

        def update(self, n: float | None = 1) -> None:
            self._done += int(n or 0)
            if progress is not None:
                progress(self._done, self._all or self._done, path)

    return Bar
