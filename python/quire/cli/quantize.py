"""``quire quantize``: write a model with fewer bits per weight."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import RequestError
from .help_page import Command
from .progress import progress_bar
from .recipe_options import RecipeOptions, make_recipe, recipe_options
from .tables import print_table
from .text import note, size_text

if TYPE_CHECKING:
    from ..files.gguf import GGUFReader
    from ..quantization import Importance, Plan

__all__ = ["command"]

_KINDS = {"int": "u32", "float": "f32", "bool": "bool", "str": "string"}


def _overrides(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> dict[str, tuple[str, object]]:
    """Parse ``KEY=TYPE:VALUE`` into key, GGUF type and value."""
    made: dict[str, tuple[str, object]] = {}
    for text in given:
        key, _, typed = text.partition("=")
        kind, _, value = typed.partition(":")
        parsed: object = value
        try:
            if kind == "int":
                parsed = abs(int(value))
            elif kind == "float":
                parsed = float(value)
            elif kind == "bool":
                parsed = {"true": True, "false": False}[value]
            elif kind != "str":
                raise ValueError(kind)
        except (ValueError, KeyError):
            needed = f"expected KEY=int|float|bool|str:VALUE, got {text!r:.80}"
            raise click.BadParameter(needed, ctx, param) from None
        made[key] = (_KINDS[kind], parsed)
    return made


def _patterns(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Parse ``PATTERN=TYPE``."""
    made = []
    for text in given:
        pattern, _, dtype = text.rpartition("=")
        if not pattern or not dtype:
            raise click.BadParameter(f"expected PATTERN=TYPE, got {text!r:.80}", ctx, param)
        made.append((pattern.lower(), dtype.lower()))
    return tuple(made)


@click.command("quantize", cls=Command)
@click.argument("source", type=click.Path(exists=True, path_type=Path), metavar="IN")
@click.argument("words", nargs=-1, metavar="[OUT] TYPE [THREADS]")
@click.option("-o", "--output", "out_file", metavar="FILE", help="Same as OUT.")
@click.option("--imatrix", "imatrix", type=click.Path(exists=True, dir_okay=False), metavar="FILE",
              help="Importance matrix of quire imatrix; types below 3 bits need one.")  # fmt: skip
@click.option(
    "--include-weights",
    "include",
    multiple=True,
    metavar="PART",
    help="Use importance only for names that contain PART.",
)
@click.option(
    "--exclude-weights", "exclude", multiple=True, metavar="PART", help="Use no importance for names that contain PART."
)
@click.option("--tensor-type", "patterns", multiple=True, callback=_patterns, metavar="PATTERN=TYPE",
              help="Type of tensors whose names match the regular expression; may be repeated.")  # fmt: skip
@click.option("--tensor-type-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
              help="Read lines of PATTERN=TYPE from FILE.")  # fmt: skip
@click.option("--output-tensor-type", "output_dtype", metavar="TYPE", help="Type of the output head.")
@click.option("--token-embedding-type", "embedding_dtype", metavar="TYPE", help="Type of the token embedding.")
@click.option("--leave-output-tensor", "keep_output", is_flag=True, help="Do not quantize the output head.")
@click.option("--pure", is_flag=True, help="Use TYPE for all matrices, without exceptions.")
@click.option(
    "--allow-requantize", is_flag=True, help="Allow quantizing tensors that are quantized already, which loses quality."
)
@click.option("--keep-split", is_flag=True, help="Write as many files as IN has.")
@click.option("--override-kv", "overrides", multiple=True, callback=_overrides, metavar="KEY=TYPE:VALUE",
              help="Set a key of the file; TYPE: int, float, bool, str.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show types and sizes without writing anything.")
@click.option("-t", "--threads", type=click.IntRange(0), default=0, metavar="N", help="Threads [one per core].")
@recipe_options
@click.pass_obj
def command(
    _: object, *, recipe: RecipeOptions, source: Path, words: tuple[str, ...], out_file: str | None,
    imatrix: str | None,
    include: tuple[str, ...], exclude: tuple[str, ...], patterns: tuple[tuple[str, str], ...],
    tensor_type_file: Path | None, output_dtype: str | None, embedding_dtype: str | None, keep_output: bool,
    pure: bool, allow_requantize: bool,
    keep_split: bool, overrides: dict[str, tuple[str, object]], dry_run: bool, threads: int,
) -> None:  # fmt: skip
    """Quantize the GGUF file or checkpoint folder IN to TYPE and write it to OUT.

    TYPE is one of llama.cpp's: Q4_K_M, Q8_0, IQ4_XS, F16, ..., or COPY.  The default for OUT is ggml-model-TYPE.gguf
    next to IN.  The result is byte-identical to llama-quantize.

    With --bits, --size or --max-kl there is no TYPE: Quire measures over a text which type is best for each matrix
    (docs/quantization.md).
    """
    from ..quantization import Importance, Wishes, plan, quantize_model

    if out_file is not None:
        words = (out_file, *words)
    if recipe.is_wanted:
        if patterns or tensor_type_file or output_dtype or embedding_dtype or keep_output or pure or keep_split:
            raise click.UsageError(
                "a recipe chooses all types and writes one file: it excludes --pure, --tensor-type and similar options"
            )
        out = _out_of(source, words)
        _by_recipe(
            source, out, recipe, imatrix=imatrix, parts=(include, exclude), overrides=overrides,
            allow_requantize=allow_requantize, dry_run=dry_run, threads=threads,
        )  # fmt: skip
        return
    out, mix, threads = _arguments(source, words, threads)
    if include and exclude:
        raise click.UsageError("give only one of --include-weights and --exclude-weights")
    if tensor_type_file is not None:
        lines = tensor_type_file.read_text(encoding="utf-8").split()
        patterns += _patterns(click.get_current_context(), click.Option(["--tensor-type-file"]), tuple(lines))
    wishes = Wishes(
        patterns=patterns, output_dtype=_lower(output_dtype), embedding_dtype=_lower(embedding_dtype), pure=pure,
        keep_output=keep_output, allow_requantize=allow_requantize,
    )  # fmt: skip
    importance = None if imatrix is None else Importance.read(imatrix)
    if importance is not None:
        importance.select(include, exclude)
    with _opened(source) as reader:
        todo = plan(reader, mix, wishes, importance)
        if dry_run:
            _show(todo)
            return
        if out.exists() and out.samefile(source):
            raise RequestError(f"[quantize] OUT and IN are the same file: '{out}'")
        with progress_bar("quantizing") as advance:
            written = quantize_model(
                reader, out, todo, importance=importance, overrides=overrides, keep_split=keep_split,
                threads=threads, progress=advance,
            )  # fmt: skip
    _tell(todo, written)


def _out_of(source: Path, words: tuple[str, ...]) -> Path:
    if len(words) > 1:
        raise click.UsageError(f"a recipe replaces TYPE, but several words were given: {' '.join(words)!r:.80}")
    folder = source if source.is_dir() else source.parent
    return Path(words[0]) if words else folder / "ggml-model-recipe.gguf"


def _by_recipe(
    source: Path, out: Path, recipe: RecipeOptions, *, imatrix: str | None,
    parts: tuple[tuple[str, ...], tuple[str, ...]],
    overrides: dict[str, tuple[str, object]], allow_requantize: bool, dry_run: bool, threads: int,
) -> None:  # fmt: skip
    from ..evaluation.recipe import plan_of
    from ..quantization import Importance, quantize_model

    importance: Importance | None = None
    if imatrix is not None:
        importance = Importance.read(imatrix)
        importance.select(*parts)
    with _opened(source) as reader:
        _check_source(reader, allow_requantize)
        made = make_recipe(recipe, reader, importance, threads)
        todo = plan_of(reader, made.recipe.types)
        predicted = f"divergence {made.recipe.predicted:.4g} nats per token, predicted from its parts"
        whole = "" if made.recipe.measured is None else f", {made.recipe.measured:.4g} measured"
        if dry_run:
            _show(todo)
        else:
            if out.exists() and out.samefile(source):
                raise RequestError(f"[quantize] OUT and IN are the same file: '{out}'")
            keys = {**made.recipe.metadata(made.calibration), **overrides}
            with progress_bar("quantizing") as advance:
                written = quantize_model(
                    reader, out, todo, importance=made.importance, overrides=keys, threads=threads, progress=advance
                )
            _tell(todo, written)
        note(predicted + whole)


def _check_source(reader: GGUFReader, allow_requantize: bool) -> None:
    from .._native.core import DType
    from ..errors import UnsupportedError

    quantized = [info for info in reader.tensors if DType(str(info.dtype)).block_size > 1]
    if quantized and not allow_requantize:
        raise UnsupportedError(
            f"[quantize] tensor '{quantized[0].name}' is already quantized ({quantized[0].dtype}): "
            "quantize the original instead, or accept the loss with --allow-requantize"
        )


def _lower(dtype: str | None) -> str | None:
    return None if dtype is None else dtype.lower()


def _arguments(source: Path, words: tuple[str, ...], threads: int) -> tuple[Path, str, int]:
    """Parse ``[OUT] TYPE [THREADS]``; a type may also be given by llama.cpp's number."""
    from ..quantization import MIXES
    from ..quantization.mixes import ALIASES, COPY

    known = {name: name for name in (*MIXES, *ALIASES, COPY)}
    named = known | {str(mix.file_type): mix.name for mix in MIXES.values()}
    rest = [*words]
    if len(rest) > 1 and rest[-1].isdecimal() and rest[-2].upper() in named:
        threads = int(rest.pop())
    if not 1 <= len(rest) <= 2 or rest[-1].upper() not in named:
        raise click.UsageError(f"no TYPE: give one of {', '.join(sorted(known))}")
    mix = named[rest.pop().upper()]
    folder = source if source.is_dir() else source.parent
    return Path(rest[0]) if rest else folder / f"ggml-model-{mix}.gguf", mix, threads


@contextmanager
def _opened(source: Path) -> Iterator[GGUFReader]:
    from ..files.ollama import open_model_file

    if source.is_file():
        yield open_model_file(source)
        return
    from ..checkpoints.conversion import CheckpointReader

    with tempfile.TemporaryDirectory() as scratch, CheckpointReader(source, Path(scratch), "f32") as reader:
        yield reader


def _show(todo: Plan) -> None:
    rows = (
        (tensor.name, " x ".join(map(str, tensor.shape)), tensor.source, tensor.dtype, size_text(tensor.n_bytes))
        for tensor in todo.tensors
    )
    print_table(("tensor", "shape", "from", "to", "size>"), rows)
    print(_sizes(todo))
    if todo.lacking:
        note(f"{len(todo.lacking)} tensors need an importance matrix for so few bits (--imatrix)")


def _sizes(todo: Plan) -> str:
    bits = 8 * todo.n_bytes / todo.n_values
    return f"{size_text(todo.source_bytes)} -> {size_text(todo.n_bytes)}, {bits:.2f} bits per weight"


def _tell(todo: Plan, written: list[Path]) -> None:
    fallen = [tensor for tensor in todo.tensors if tensor.fell_back_from is not None]
    if fallen:
        one = fallen[0]
        note(
            f"{len(fallen)} tensors have rows that do not divide into blocks and got another type: {one.name} is "
            f"{one.dtype}, not {one.fell_back_from}"
        )
    for path in written:
        note(f"wrote {path}, {size_text(path.stat().st_size)}")
    note(_sizes(todo))
