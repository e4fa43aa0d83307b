"""``quire imatrix``: measure over a text how much each column of each matrix matters."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import RequestError
from .foreign_options import ForeignCommand
from .model_argument import model_argument
from .model_options import ModelOptions, model_options
from .progress import progress_bar
from .session import model_path
from .tables import print_table
from .text import note, size_text

if TYPE_CHECKING:
    from ..evaluation.losses import Losses
    from ..evaluation.scorer import Scorer
    from ..quantization import Importance

__all__ = ["command"]

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_CHUNK_TOKENS = 512


@click.command("imatrix", cls=ForeignCommand)
@model_argument
@model_options(kernels="stock", kv_dtype="f32")
@click.option("-f", "--file", "text_file", type=_FILE, metavar="FILE", help="The text to measure over.")
@click.option("-o", "--output", "--output-file", "out", type=click.Path(dir_okay=False, path_type=Path),
              default="imatrix.gguf", show_default=True, metavar="FILE", help="The file to write.")  # fmt: skip
@click.option("--output-format", "form", type=click.Choice(("gguf", "dat")), default=None,
              help="GGUF, or llama.cpp's older format [gguf].")  # fmt: skip
@click.option("--in-file", "in_files", multiple=True, type=_FILE, metavar="FILE",
              help="Add an existing importance matrix; may be repeated.")  # fmt: skip
@click.option(
    "--chunks", type=click.IntRange(-1), default=-1, metavar="N", help="Use at most N chunks of the text [all]."
)
@click.option("--chunk", "--from-chunk", "skipped", type=click.IntRange(0), default=0, metavar="N",
              help="Skip the first N chunks.")  # fmt: skip
@click.option("--parse-special", is_flag=True, help="Parse control tokens written in the text.")
@click.option("--process-output", is_flag=True, help="Also measure the output head.")
@click.option("--ppl/--no-ppl", "perplexity", default=True, help="Compute the text's perplexity [on].")
@click.option("-ofreq", "--output-frequency", "every", type=click.IntRange(1), default=10, show_default=True,
              metavar="N", help="Rewrite the output after every N chunks.")  # fmt: skip
@click.option("--save-frequency", "kept_every", type=click.IntRange(0), default=0, metavar="N",
              help="Keep a copy OUT.at_N after every N chunks; 0: never.")  # fmt: skip
@click.option(
    "--show-statistics", is_flag=True, help="Show statistics of each tensor, from --in-file or the new matrix."
)
@click.option("--json", "as_json", is_flag=True, help="Print the statistics as one JSON object.")
def command(
    *, model: ModelOptions, text_file: Path | None, out: Path, form: str | None, in_files: tuple[Path, ...],
    chunks: int, skipped: int, parse_special: bool, process_output: bool, perplexity: bool, every: int,
    kept_every: int, show_statistics: bool, as_json: bool,
) -> None:  # fmt: skip
    """Measure an importance matrix over the text of -f, add those of --in-file, and write it.

    The result is for quire quantize --imatrix.  Chunks are as long as the context (-c) [512].  Values and files agree
    with llama-imatrix.
    """
    from ..quantization import Importance

    if as_json and not show_statistics:
        raise click.UsageError("--json requires --show-statistics")
    chunk_tokens = model.engine.get("n_ctx") or _CHUNK_TOKENS
    total = Importance()
    for path in in_files:
        one = Importance.read(path)
        one.to_rows(chunk_tokens)
        total.merge(one)
    if text_file is None:
        if not in_files:
            raise click.UsageError("nothing to measure: give a text (-f) or matrices (--in-file)")
        if not show_statistics:
            _write(total, out, form)
    else:

        def save(measured: Importance, before: int, is_last: bool) -> None:
            whole, n_chunks = Importance(), measured.n_chunks
            whole.merge(total)
            whole.merge(measured)
            if is_last or n_chunks // every > before // every:
                _write(whole, out, form, quietly=not is_last)
            if kept_every and n_chunks // kept_every > before // kept_every:
                _write(whole, out.with_name(f"{out.name}.at_{n_chunks}"), form, quietly=True)

        wanted = _Wanted(
            text_file, chunk_tokens, None if chunks < 0 else chunks, skipped, parse_special, process_output
        )
        measured = _measure(model, wanted, save, perplexity=perplexity)
        total.merge(measured)
    if show_statistics:
        _show(total, as_json)


@dataclass(frozen=True)
class _Wanted:
    """The text to measure over, and how."""

    text_file: Path
    chunk_tokens: int
    chunks: int | None
    skipped: int
    parse_special: bool
    process_output: bool


def _measure(
    model: ModelOptions, wanted: _Wanted, save: Callable[[Importance, int, bool], None], *, perplexity: bool
) -> Importance:
    from ..evaluation.chunks import chunks_of
    from ..evaluation.importance import importance_of, measure_importance
    from ..evaluation.scorer import Scorer

    options = model.config()
    if options.get("kernels") != "stock":
        raise RequestError(f"[imatrix] unsupported kernels {options.get('kernels')!r}: only stock ones can be measured")
    with Scorer.open(model_path(model.path), options, wanted.chunk_tokens, sums_inputs=True) as scorer:
        rows = chunks_of(
            scorer.tokenizer, wanted.text_file.read_bytes(), wanted.chunk_tokens, parse_special=wanted.parse_special,
            skip=wanted.skipped, most=wanted.chunks,
        )  # fmt: skip

        def measured(n: int) -> Importance:
            return importance_of(
                scorer, str(wanted.text_file), n, wanted.chunk_tokens, process_output=wanted.process_output
            )

        with progress_bar("measuring") as advance:
            done = 0

            def on_chunks(n: int, losses: Losses) -> None:
                nonlocal done
                advance(n, len(rows), f"perplexity {losses.perplexity:.4f}" if perplexity else "")
                save(measured(n), done, n == len(rows))
                done = n

            losses = measure_importance(scorer, rows, perplexity=perplexity, on_chunks=on_chunks)
        _tell(scorer, losses, len(rows), perplexity)
        return measured(len(rows))


def _tell(scorer: Scorer, losses: Losses, n_chunks: int, perplexity: bool) -> None:
    note(f"{n_chunks} chunks through {scorer.opened.model_name}")
    if perplexity:
        note(f"perplexity {losses.perplexity:.4f} +/- {losses.error:.4f}")


def _write(importance: Importance, out: Path, form: str | None, *, quietly: bool = False) -> None:
    if form == "dat":
        importance.write_older(out)
    else:
        importance.write(out)
    if quietly:
        return
    for name, sums in sorted(importance.sums.items()):
        lacking = int((sums.counts == 0).sum())
        if lacking:
            note(f"{name}: {lacking} of {len(sums.counts)} experts were never used")
    note(f"wrote {out}, {len(importance.sums)} tensors, {size_text(out.stat().st_size)}")


def _show(importance: Importance, as_json: bool) -> None:
    from ..quantization.statistics import layer_statistics, tensor_statistics

    tensors = tensor_statistics(importance)
    layers = layer_statistics(tensors)
    if as_json:
        found = [{**asdict(one), "relative_entropy": one.relative_entropy} for one in tensors]
        print(json.dumps({"tensors": found, "layers": [asdict(one) for one in layers]}))
        return
    columns = (
        "tensor", "sum>", "min>", "max>", "mean>", "deviation>", "active>", "columns>", "entropy>", "of max>",
        "above>", "similarity>",
    )  # fmt: skip
    rows = (
        (
            one.name, f"{one.total:.2f}", f"{one.least:.4f}", f"{one.most:.4f}", f"{one.mean:.2f}",
            f"{one.deviation:.2f}", f"{one.active:.2%}", str(one.n_columns), f"{one.entropy:.4f}",
            f"{one.relative_entropy:.2%}", f"{one.deviating:.2%}",
            "-" if one.similarity is None else f"{one.similarity:.4f}",
        )
        for one in tensors
    )  # fmt: skip
    print_table(columns, rows)
    by_layer = ((str(one.layer), f"{one.total:.2f}", f"{one.deviating:.4%}", f"{one.similarity:.4f}") for one in layers)
    print_table(("layer", "sum>", "above>", "similarity>"), by_layer)
