"""Download models with ``huggingface_hub``, using its cache, environment variables and resumption."""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import LoadError, QuireError, UnsupportedError
from ..system import machine_memory_bytes
from .choose import Choice, RepositoryFile, choose, is_model_file
from .names import HubName
from .projectors import best_projector

__all__ = ["Progress", "fetch", "is_offline", "repository_files", "usable_memory_bytes"]

Progress = Callable[[int, int, str], None]
"""Called with bytes done, total bytes and the file's name.  It may raise to cancel the download."""

_PIECE_BYTES = 1 << 22


def is_offline() -> bool:
    """Return True if the hub's own variables forbid network access."""
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
    """Import the library.  UnsupportedError saying how to install it."""
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError:
        raise UnsupportedError("[hub] downloading models needs huggingface_hub: pip install 'quire-llm[hub]'") from None


@contextmanager
def _told(name: HubName) -> Iterator[None]:
    """Turn the library's errors into one-line errors of Quire."""
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
            f"[hub] no such repository: {name.repository} (a private one needs HF_TOKEN; give a prompt with a slash "
            "with -p)"
        ) from None
    except errors.RevisionNotFoundError:
        raise LoadError(f"[hub] no such revision of {name.repository}: {name.revision}") from None
    except (errors.EntryNotFoundError, errors.HFValidationError) as error:
        raise LoadError(f"[hub] cannot find {name} on the hub: {_first_line(error)}") from None
    except Exception as error:
        if not isinstance(error, OSError | RuntimeError) and "http" not in type(error).__module__:
            raise
        raise LoadError(
            f"[hub] cannot download {name.repository}: {type(error).__name__}: {_first_line(error)} "
            "(try again to resume)"
        ) from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]


def repository_files(name: HubName) -> list[RepositoryFile]:
    """Return the files of a repository.  LoadError if it does not exist or the hub cannot be reached."""
    if is_offline():
        raise LoadError(
            f"[hub] {name} is not on this machine, and HF_HUB_OFFLINE forbids downloading it (unset it for quire pull "
            f"{name})"
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
    name: HubName,
    memory_bytes: int | None = None,
    progress: Progress | None = None,
    *,
    shows_bars: bool = False,
    projector: bool = True,
) -> tuple[Path, Choice]:
    """Download the files that a name refers to, unless they are cached; return the path to open and the choice made.

    ``shows_bars`` lets the library show its own progress bars, in a terminal or a notebook.  ``projector``: also
    download the encoder that the repository has for the model, an ``mmproj`` file.

    Partial downloads are kept and resumed by the next call.  A file whose SHA-256 differs from the hub's is deleted,
    with a LoadError.
    """
    listed = repository_files(name)
    choice = choose(name, listed, memory_bytes)
    if projector and not choice.is_folder and is_model_file(choice.files[0].path):
        best = best_projector(choice.files[0].path, [file.path for file in listed])
        choice = replace(choice, projector=next((file for file in listed if file.path == best), None))
    paths = [_fetch_file(name, file, progress, shows_bars=shows_bars) for file in choice.files]
    if choice.projector is not None:
        _fetch_file(name, choice.projector, progress, shows_bars=shows_bars)
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
    """Verify a file's SHA-256.  LoadError if it differs from the hub's."""
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
            f"[hub] {file.path} of {name.repository} is damaged: SHA-256 {digest.hexdigest()[:16]}... instead of "
            f"{file.sha256[:16]}... (deleted; run the command again to download it)"
        )


def _bar(progress: Progress | None, path: str) -> type[Any]:
    """Return a progress bar class for the library that shows nothing and calls ``progress``."""
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
