"""``quire gguf``: show and change the keys of GGUF files, split and merge them."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import QuireError, RequestError
from ..params.engine_rules import read_key_values
from .help_page import Command
from .text import one_line

if TYPE_CHECKING:
    from ..files.gguf import GGUFReader, Metadata

__all__ = ["command"]

_ACTIONS = ("cat", "set", "remove", "split", "merge")
_KINDS: dict[type, tuple[str, ...]] = {
    bool: ("bool",), int: ("u32", "i32", "u64", "i64", "u16", "i16", "u8", "i8"), float: ("f32", "f64"),
    str: ("string",),
}  # fmt: skip
_UNITS = {"K": 10**3, "M": 10**6, "G": 10**9}
_TEMPLATE = "tokenizer.chat_template"


def _bytes(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Parse a size such as 500M or 2G."""
    if value is None:
        return None
    number, unit = (value[:-1], _UNITS[value[-1].upper()]) if value[-1:].upper() in _UNITS else (value, 1)
    if not number.isdecimal() or len(number) > 12 or not int(number):
        raise click.BadParameter(f"expected a size such as 500M or 2G, got {value!r:.40}", ctx, param)
    return int(number) * unit


@click.command("gguf", cls=Command)
@click.argument("action", type=click.Choice(_ACTIONS), metavar="ACTION")
@click.argument("source", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE")
@click.argument("words", nargs=-1, metavar="[WORDS]...")
@click.option("--chat-template-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="PATH",
              help="With set: read the chat template from PATH.")  # fmt: skip
@click.option("--max-size", callback=_bytes, metavar="SIZE", help="With split: most weights in a part: 500M, 2G.")
@click.option("--max-tensors", type=click.IntRange(1), metavar="N", help="With split: most tensors in a part.")
@click.option("--force", is_flag=True, help="With set and remove: write a file even if Quire could not open it.")
def command(
    *,
    action: str,
    source: Path,
    words: tuple[str, ...],
    chat_template_file: Path | None,
    max_size: int | None,
    max_tensors: int | None,
    force: bool,
) -> None:
    """Show and change the keys of a GGUF FILE, split it, or merge its parts.  FILE itself is never changed.

    \b
    quire gguf cat FILE [KEY]...                   print all keys, or the whole values of some
    quire gguf set FILE OUT KEY=TYPE:VALUE...      set keys; TYPE is int, float, bool or str
    quire gguf remove FILE OUT KEY...              leave keys out
    quire gguf split FILE OUT --max-size SIZE      write OUT-00001-of-00003.gguf, ...
    quire gguf merge PART... OUT                   write one file; the first part is enough
    """
    from ..files.gguf import GGUFReader
    from ..files.gguf_tools import split_file, write_changed

    if force and action not in ("set", "remove"):
        raise click.UsageError("--force belongs to set and remove")
    if chat_template_file is not None and action != "set":
        raise click.UsageError("--chat-template-file belongs to set")
    if (max_size is not None or max_tensors is not None) != (action == "split"):
        raise click.UsageError("give split --max-size or --max-tensors; they belong to no other action")
    reader = GGUFReader(source)
    if action == "cat":
        _print(reader, words)
        return
    if not words:
        raise click.UsageError(f"no file to write: give one, as in quire gguf {action} FILE OUT")
    if action == "merge":
        words = _merging(reader, source, words)
    out, rest = Path(words[0]), words[1:]
    if not out.absolute().parent.is_dir():
        raise click.UsageError(f"cannot write {out}: there is no folder {out.parent}")
    if rest and action in ("split", "merge"):
        raise click.UsageError(f"unexpected argument {rest[0]!r:.80}")
    if action == "split":
        for path in split_file(reader, out, max_bytes=max_size, max_tensors=max_tensors):
            print(path)
        return
    if out.exists() and out.samefile(source):
        raise click.UsageError("OUT is FILE itself: name another file")
    changed = _changes(reader, rest, chat_template_file) if action == "set" else {}
    removed = rest if action == "remove" else ()
    if not changed and not removed and action != "merge":
        raise click.UsageError(f"no keys to {action}")
    keys = [] if force or action == "merge" else [*changed, *removed]
    write_changed(reader, out, changed=changed, removed=removed, check=lambda path: _check(reader, path, action, keys))
    print(out)


def _merging(reader: GGUFReader, source: Path, words: tuple[str, ...]) -> tuple[str, ...]:
    """Return OUT behind the parts.  UsageError if one is not the model's, or if OUT is one of them."""
    if "split.count" not in reader.metadata:
        raise click.UsageError(f"{source} is a whole model: merge takes the parts of a split one")
    n = reader.metadata.integer("split.count", 1)
    parts = {source.with_name(source.name.replace("-00001-of-", f"-{i:05}-of-")).resolve() for i in range(1, n + 1)}
    *given, out = words
    if others := [part for part in given if Path(part).resolve() not in parts]:
        raise click.UsageError(f"{others[0]} is not a part of {source}")
    if Path(out).resolve() in parts:
        raise click.UsageError(f"OUT is {out}, a part of the model: name another file")
    return (out,)


def _check(reader: GGUFReader, path: Path, action: str, keys: list[str]) -> None:
    """Raise RequestError if a change of keys makes a file that Quire cannot open, unless it could not before."""
    from ..files.gguf import GGUFReader
    from .verdict import verdict_of

    def reasons(of: GGUFReader) -> list[str]:
        verdict = verdict_of(of, None, "auto")
        return [*verdict.reasons, *([verdict.chat_refusal] if verdict.chat_refusal else [])]

    if not keys:
        return
    try:
        found = reasons(GGUFReader(path))
    except QuireError as error:
        found = [str(error)]
    known = reasons(reader) if found else []
    for reason in found:
        if reason not in known:
            key = next((each for each in keys if each in reason), ", ".join(keys))
            text = f"cannot {action} '{key:.80}', because Quire could not open the file: {one_line(reason):.200}"
            raise RequestError(f"[gguf] {text} (--force writes it)")


def _changes(reader: GGUFReader, words: tuple[str, ...], template: Path | None) -> dict[str, tuple[str, object]]:
    """Return keys with their types in the file and their new values."""
    made: dict[str, tuple[str, object]] = {}
    for key, value in read_key_values(words, "[gguf] set"):
        kinds = _KINDS[type(value)]
        kind = reader.metadata.type_of(key) if key in reader.metadata else kinds[0]
        if kind not in kinds:
            raise RequestError(f"[gguf] key '{key:.80}' is {kind} in the file, but {value!r:.40} is not")
        made[key] = kind, value
    if template is not None:
        made[_TEMPLATE] = "string", template.read_bytes()
    return made


def _print(reader: GGUFReader, keys: tuple[str, ...]) -> None:
    """Print whole values of keys, or a line for each key and tensor."""
    metadata = reader.metadata
    for key in keys:
        if key not in metadata:
            raise RequestError(f"[gguf] no key '{key:.80}' in {reader.path}")
        value = metadata[key]
        shown = value if isinstance(value, str) else "\n".join(map(str, value)) if _is_array(metadata, key) else value  # type: ignore[call-overload]
        sys.stdout.buffer.write(f"{shown}\n".encode("utf-8", "surrogateescape"))
    if keys:
        return
    for key in metadata:
        kind = metadata.type_of(key)
        shown = f"{len(metadata[key])} values" if _is_array(metadata, key) else one_line(str(metadata[key]))[:100]  # type: ignore[arg-type]
        print(f"{key}  {kind}  {shown}")
    for info in reader.tensors:
        print(f"{info.name}  {info.dtype}  {' x '.join(map(str, info.shape))}  ({math.prod(info.shape):,})")


def _is_array(metadata: Metadata, key: str) -> bool:
    return metadata.type_of(key).endswith("[]")
