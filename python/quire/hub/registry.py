"""The registry: a TOML file of model names, each with options, sampling parameters and a system message.

[models.coder]
model = "Qwen/Qwen2.5-Coder-7B-Instruct-GGUF:Q4_K_M"
system = "You write short programs."
options = { ctx-size = 8192, threads = 4 }
sampling = { temperature = 0.2 }
keep-alive = "10m"
"""

from __future__ import annotations

import importlib
import json
import os
import re
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..errors import LoadError, RequestError

__all__ = ["Preset", "Registry", "registry_path"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")
_KEYS = ("model", "system", "template", "adapters", "options", "sampling", "keep-alive")
_NOT_YET = {
    "draft": "a draft model is an option, options = { draft = ... }",
}


@dataclass(frozen=True)
class Preset:
    """A registered name: a model with its default options.

    ``options`` are engine options by their long command-line names, ``sampling`` fields of ``SamplingParams``.
    ``template`` is the Jinja source of a chat template in place of the model's.
    """

    model: str
    system: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    keep_alive: str | float | None = None
    template: str | None = None


def registry_path() -> Path:
    """Return ``QUIRE_MODELS``, or ``quire/models.toml`` in the system's folder for configuration."""
    if given := os.environ.get("QUIRE_MODELS"):
        return Path(given).expanduser()
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "quire" / "models.toml"


class Registry:
    """The presets of a file, which need not exist.  LoadError naming an invalid entry."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = registry_path() if path is None else path
        self.presets = _read(self.path)

    def get(self, name: str) -> Preset | None:
        """Return the preset of a name, with or without Ollama's ``:latest`` suffix."""
        return self.presets.get(name) or self.presets.get(name.removesuffix(":latest"))

    def add(self, name: str, preset: Preset) -> None:
        """Store a preset under a name, replacing an existing one.

        Raises:
            RequestError: The name is invalid, or TOML cannot represent a value of the preset.
        """
        if not _NAME.fullmatch(name) or name.endswith(".gguf"):
            raise RequestError(f"[registry] invalid name {name!r:.80}: only letters, digits and . _ - : / are allowed")
        before = dict(self.presets)
        self.presets[name] = preset
        try:
            self._write()
        except BaseException:
            self.presets = before
            raise

    def remove(self, name: str) -> bool:
        """Remove a name; False if it does not exist."""
        if self.presets.pop(name, None) is None:
            return False
        self._write()
        return True

    def _write(self) -> None:
        """Write a new file and replace the old one only after reading it back.

        An unreadable registry would make every program fail to find its models.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        scratch = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            with scratch.open("w", encoding="utf-8") as file:
                file.write(self._text())
                file.flush()
                os.fsync(file.fileno())
            read = _read(scratch)
            changed = [name for name, preset in self.presets.items() if _plain(read.get(name)) != _plain(preset)]
            if changed:
                raise RequestError(f"[registry] preset {changed[0]!r:.80} has a value that TOML cannot hold")
            scratch.replace(self.path)
        except (LoadError, TypeError, ValueError) as error:
            raise RequestError(f"[registry] a preset has a value that TOML cannot hold: {error}") from None
        finally:
            scratch.unlink(missing_ok=True)

    def _text(self) -> str:
        lines = ["# Names for models: docs/registry.md of Quire."]
        for name, preset in sorted(self.presets.items()):
            lines += ["", f"[models.{json.dumps(name)}]", f"model = {_toml(preset.model)}"]
            rows = {"system": preset.system, "template": preset.template, "options": dict(preset.options) or None,
                    "sampling": dict(preset.sampling) or None, "keep-alive": preset.keep_alive}  # fmt: skip
            lines += [f"{key} = {_toml(value)}" for key, value in rows.items() if value is not None]
        return "\n".join(lines) + "\n"


def _plain(value: Any) -> Any:
    """Convert a preset or a value in one to the types that TOML returns."""
    if isinstance(value, Preset):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _toml(value: Any) -> str:
    """Format a value as TOML.  TOML strings are like JSON's except that DEL must be escaped."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _read(path: Path) -> dict[str, Preset]:
    try:
        state = path.stat()
    except OSError:
        return {}
    if not stat.S_ISREG(state.st_mode):
        return {}
    return dict(_parsed(path, state.st_mtime_ns, state.st_size, state.st_ino))


@lru_cache(4)
def _parsed(path: Path, mtime_ns: int, size: int, inode: int) -> dict[str, Preset]:
    """Parse a file, cached by its state because servers consult the registry whenever they look up a model."""
    tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise LoadError(f"[registry] cannot read {path} as TOML: {error}") from None
    if set(given) - {"models"} or not isinstance(given.get("models", {}), dict):
        raise LoadError(
            f"[registry] {path} has unknown keys: only tables [models.NAME] are allowed, not {sorted(given)!s:.100}"
        )
    return {name: _preset(path, name, table) for name, table in given.get("models", {}).items()}


def _preset(path: Path, name: str, table: Any) -> Preset:
    place = f"[registry] {path}: models.{name}"
    if not isinstance(table, dict) or not isinstance(table.get("model"), str):
        raise LoadError(f'{place} is not a table with model = "...": {table!r:.80}')
    for key in table:
        if key in _NOT_YET:
            raise LoadError(f"{place} has unsupported key {key!r}: {_NOT_YET[key]}")
        if key not in _KEYS:
            raise LoadError(f"{place} has unknown key {key!r:.80} (known: {', '.join(_KEYS)})")
    kinds_of = {"system": str, "template": str, "options": dict, "sampling": dict, "keep-alive": str | int | float}
    for key, kinds in kinds_of.items():
        if key in table and (not isinstance(table[key], kinds) or isinstance(table[key], bool)):
            raise LoadError(f"{place}.{key} has the wrong type: {table[key]!r:.80}")
    adapters = table.get("adapters", [])
    if not isinstance(adapters, list) or not all(isinstance(each, str) and each for each in adapters):
        raise LoadError(f"{place}.adapters is not a list of FILE or FILE:SCALE: {adapters!r:.80}")
    return Preset(
        table["model"],
        table.get("system"),
        {**table.get("options", {}), **({"lora": adapters} if adapters else {})},
        {key.replace("-", "_"): value for key, value in table.get("sampling", {}).items()},
        table.get("keep-alive"),
        table.get("template"),
    )
