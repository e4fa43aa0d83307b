"""Parse model names: a local file or folder, or a repository on a hub."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["HubName", "hub_name", "is_adapter_folder", "is_local_model"]

_GGUF_MAGIC = b"GGUF"
_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9])?"
_REPOSITORY = re.compile(rf"({_PART}/{_PART})(?::([A-Za-z0-9_.-]{{1,64}}))?")
_HOSTS = ("huggingface.co", "hf.co")
_SCHEMES = ("https://", "http://", "hf://")


@dataclass(frozen=True)
class HubName:
    """A repository on a hub.

    ``tag`` is a quantization such as Q4_K_M as the user wrote it, ``file`` one of its files, and ``revision`` a branch,
    tag or commit.  None means the hub's default.
    """

    repository: str
    tag: str | None = None
    file: str | None = None
    revision: str | None = None

    def __str__(self) -> str:
        return self.repository + (f":{self.tag}" if self.tag else "")


def hub_name(text: str) -> HubName | None:
    """Parse ``org/name`` or ``org/name:QUANT``, optionally after ``hf.co/`` or ``hf://``, or the URL of a repository or
    of a file in one; None for anything else."""
    rest, is_address = _without_host(text)
    if rest is None:
        return None
    if is_address:
        parts = rest.split("?")[0].rstrip("/").split("/")
        if len(parts) >= 5 and parts[2] in ("resolve", "blob", "raw") and _REPOSITORY.fullmatch("/".join(parts[:2])):
            return HubName("/".join(parts[:2]), file="/".join(parts[4:]), revision=parts[3])
        if len(parts) == 4 and parts[2] == "tree":
            return HubName("/".join(parts[:2]), revision=parts[3])
        rest = "/".join(parts)
    found = _REPOSITORY.fullmatch(rest)
    return HubName(found[1], tag=found[2]) if found else None


def _without_host(text: str) -> tuple[str | None, bool]:
    """Strip scheme and host, and tell if there were any; None for a URL of another host."""
    rest, has_scheme = text, False
    for scheme in _SCHEMES:
        if rest.startswith(scheme):
            rest, has_scheme = rest.removeprefix(scheme), scheme != "hf://"
            if scheme == "hf://":
                return rest, True
    own = os.environ.get("HF_ENDPOINT", "")
    hosts = (*_HOSTS, own.partition("://")[2].rstrip("/")) if own else _HOSTS
    for host in hosts:
        if rest.lower().startswith(f"{host}/"):
            return rest[len(host) + 1 :], True
    return (None, True) if has_scheme else (rest, False)


def is_local_model(text: str) -> bool:
    """Return True for a folder, a file name ending in .gguf, existing or not, or a file with GGUF's magic bytes."""
    if not text or "\n" in text or "\0" in text or "://" in text:
        return False
    path = Path(text).expanduser()
    try:
        if path.is_dir():
            return True
        if path.suffix.lower() == ".gguf":
            return path.is_file() or " " not in text
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(4) == _GGUF_MAGIC
    except (OSError, ValueError):  # a prompt may be too long for a file name
        return False


def is_adapter_folder(path: Path) -> bool:
    """Return True if a folder holds a LoRA adapter in PEFT's format rather than a model."""
    return (path / "adapter_config.json").is_file() and not any(path.glob("model*.safetensors"))
