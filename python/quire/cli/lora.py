"""``quire lora``: list LoRA adapters, merge them into their model, and convert them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .help_page import Command
from .model_options import adapters_option
from .progress import progress_bar
from .tables import print_table
from .text import size_text

if TYPE_CHECKING:
    from ..files.gguf import GGUFReader

__all__ = ["command"]


@click.command("lora", cls=Command)
@click.argument("action", type=click.Choice(["list", "merge", "convert"]), metavar="ACTION")
@click.argument("paths", nargs=-1, metavar="[PATHS]...")
@adapters_option
@click.option("--for", "model", metavar="MODEL", help="With convert: the adapter's model, a GGUF file or a folder.")
@click.option("--type", "dtype", metavar="TYPE", help="With merge: type of the merged matrices [as in MODEL].")
@click.option("--json", "as_json", is_flag=True, help="With list: print one JSON object.")
def command(
    *,
    action: str,
    paths: tuple[str, ...],
    adapters: Sequence[tuple[str, float]] | None,
    model: str | None,
    dtype: str | None,
    as_json: bool,
) -> None:
    """List LoRA adapters, merge them into their model, or convert them.

    \b
    quire lora list PATH...                           ranks, adapted matrices and bytes; a folder: of those in it
    quire lora merge MODEL OUT.gguf --lora A[:SCALE]  write the model with the adapters merged into its matrices
    quire lora merge FOLDER OUT --lora A[:SCALE]      the same as a checkpoint folder
    quire lora convert FOLDER OUT.gguf --for MODEL    a PEFT folder to llama.cpp's GGUF
    quire lora convert A.gguf OUT --for FOLDER        llama.cpp's GGUF to a PEFT folder
    """
    if action == "list":
        _list([Path(path) for path in paths], as_json=as_json)
        return
    if len(paths) != 2:
        raise click.UsageError(f"expected two paths, as in quire lora {action} {_USAGE[action]}")
    source, out = Path(paths[0]), Path(paths[1])
    if action == "merge":
        if not adapters:
            raise click.UsageError("no adapter: give --lora")
        _merge(source, adapters, out, dtype)
        return
    if model is None:
        raise click.UsageError("the adapter's matrices are named after its model: give --for MODEL")
    from ..checkpoints.conversion.adapter_files import write_gguf_adapter, write_peft_folder

    with _opened(Path(model)) as base:
        (write_gguf_adapter if source.is_dir() else write_peft_folder)(source, base, out)
    print(out)


_USAGE = {"merge": "MODEL OUT.gguf --lora ADAPTER", "convert": "ADAPTER OUT --for MODEL"}


@contextmanager
def _opened(path: Path) -> Iterator[GGUFReader]:
    from ..checkpoints.conversion import CheckpointReader
    from ..checkpoints.reading import checkpoint_dtype
    from ..files.gguf import GGUFReader

    if not path.is_dir():
        yield GGUFReader(path)
        return
    with (
        tempfile.TemporaryDirectory(prefix="quire-") as scratch,
        CheckpointReader(path, Path(scratch), checkpoint_dtype(path)) as reader,
    ):
        yield reader


def _merge(source: Path, adapters: Sequence[tuple[str, float]], out: Path, dtype: str | None) -> None:
    from ..checkpoints.conversion.adapter_files import write_merged
    from ..checkpoints.conversion.merged_folder import write_merged_folder

    as_folder = out.suffix.lower() != ".gguf"
    if as_folder and not source.is_dir():
        raise click.UsageError(f"a folder is written from a checkpoint's folder, and {source} is none: name OUT.gguf")
    if as_folder and dtype is not None:
        raise click.UsageError("--type is for GGUF files: a folder's matrices keep their types")
    if out.exists() and source.exists() and out.samefile(source):
        raise click.UsageError("OUT is MODEL itself: name another file")
    with _opened(source) as base, progress_bar("merging") as advance:
        if as_folder:
            merged = write_merged_folder(source, base, adapters, out, progress=advance)
        else:
            merged = write_merged(base, adapters, out, dtype=None if dtype is None else dtype.lower(), progress=advance)
    print(f"{out}: {len(merged)} matrices merged")


def _list(paths: Sequence[Path], *, as_json: bool) -> None:
    from ..hub.names import is_adapter_folder
    from .adapter_facts import is_adapter, read_facts, targets_of

    found = []
    for path in paths or [Path()]:
        inner = path.is_dir() and not is_adapter_folder(path)
        found += [
            each
            for each in (sorted(path.iterdir()) if inner else [path])
            if not inner or (is_adapter_folder(each) if each.is_dir() else each.suffix == ".gguf" and is_adapter(each))
        ]
    rows = []
    for path in found:
        facts = read_facts(path)
        rows.append({
            "name": path.name.removesuffix(".gguf"), "path": str(path), "format": facts.format, "ranks": facts.ranks,
            "alpha": facts.alpha, "targets": targets_of(path), "parameters": facts.n_parameters,
            "size_bytes": facts.size_bytes,
        })  # fmt: skip
    if as_json:
        print(json.dumps({"adapters": rows}))
        return
    head = ("NAME", "RANK", "TARGETS", "SIZE")
    shown = [
        (str(row["name"]), ", ".join(map(str, row["ranks"])), ", ".join(row["targets"]), size_text(row["size_bytes"]))  # type: ignore[arg-type]
        for row in rows
    ]
    print_table(head, shown)
