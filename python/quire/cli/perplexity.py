"""``quire perplexity``: measure how well a model predicts a text, diverges from another, or solves tasks."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import RequestError
from .foreign_options import ForeignCommand
from .model_argument import model_argument
from .model_options import ModelOptions, model_options
from .progress import progress_bar
from .session import model_path

if TYPE_CHECKING:
    from ..evaluation.scorer import Scorer

__all__ = ["command"]

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_CHUNK_TOKENS = 512


@dataclass(frozen=True)
class _Text:
    """A text and how to divide it."""

    content: bytes
    n_ctx: int
    chunks: int | None
    stride: int
    parse_special: bool


@click.command("perplexity", cls=ForeignCommand)
@model_argument
@model_options()
@click.option("-f", "--file", "text_file", type=_FILE, metavar="FILE", help="The text, or the file of tasks.")
@click.option(
    "--chunks", type=click.IntRange(-1), default=-1, metavar="N", help="Use at most N chunks of the text [all]."
)
@click.option("--ppl-stride", "stride", type=click.IntRange(0), default=0, metavar="N",
              help="Score the last N tokens of windows that start N tokens apart; 0: separate chunks.")  # fmt: skip
@click.option("--parse-special", is_flag=True, help="Parse control tokens written in the text.")
@click.option("--kl-divergence-base", "--save-all-logits", "base_file", type=click.Path(dir_okay=False, path_type=Path),
              metavar="FILE", help="Write the log-probabilities to FILE; with --kl-divergence, read those of the"
              " unquantized model from it.")  # fmt: skip
@click.option("--kl-divergence", is_flag=True, help="Measure the divergence from those log-probabilities.")
@click.option("--kl-base", type=_FILE, metavar="FILE", help="Short for --kl-divergence --kl-divergence-base FILE.")
@click.option("--hellaswag", is_flag=True, help="The file of -f has HellaSwag tasks, six lines each.")
@click.option("--hellaswag-tasks", type=click.IntRange(1), default=400, show_default=True, metavar="N",
              help="Number of tasks to use.")  # fmt: skip
@click.option("--winogrande", is_flag=True, help="The file of -f has WinoGrande tasks as CSV.")
@click.option(
    "--winogrande-tasks", type=click.IntRange(0), default=0, metavar="N", help="Number of tasks to use [all]."
)
@click.option(
    "--multiple-choice", is_flag=True, help="The file of -f has multiple-choice tasks in llama.cpp's binary format."
)
@click.option("--multiple-choice-tasks", type=click.IntRange(0), default=0, metavar="N",
              help="Number of tasks to use [all].")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    *, model: ModelOptions, text_file: Path | None, chunks: int, stride: int, parse_special: bool,
    base_file: Path | None, kl_divergence: bool, kl_base: Path | None, hellaswag: bool, hellaswag_tasks: int,
    winogrande: bool, winogrande_tasks: int, multiple_choice: bool, multiple_choice_tasks: int, as_json: bool,
) -> None:  # fmt: skip
    """Measure perplexity over the text of -f in chunks as long as the context (-c) [512], like llama-perplexity.

    With --kl-base, measure the divergence from the model whose log-probabilities are in FILE, over the same text.  With
    --hellaswag, --winogrande or --multiple-choice, count how many of the tasks in -f the model solves.
    """
    if kl_divergence and base_file is None:
        raise click.UsageError("--kl-divergence requires --kl-divergence-base")
    if kl_base is not None and (base_file is not None or kl_divergence):
        raise click.UsageError("--kl-base replaces --kl-divergence and --kl-divergence-base: do not combine them")
    read_base = kl_base or (base_file if kl_divergence else None)
    wanted = [name for name, on in (
        ("--kl-divergence", read_base), ("--hellaswag", hellaswag), ("--winogrande", winogrande),
        ("--multiple-choice", multiple_choice), ("--ppl-stride", stride),
    ) if on]  # fmt: skip
    if len(wanted) > 1:
        raise click.UsageError(f"give only one of {' and '.join(wanted)}")
    if wanted and base_file is not None and not kl_divergence:
        raise click.UsageError(
            f"cannot write log-probabilities with {wanted[0]}: they are measured over chunks of a text"
        )
    n_ctx = model.engine.get("n_ctx") or _CHUNK_TOKENS
    if read_base is not None:
        _report(_divergence(model, read_base), _told_divergence, as_json)
        return
    if text_file is None:
        raise click.UsageError("no text: give one with -f")
    content = text_file.read_bytes()
    counts = {"hellaswag": hellaswag_tasks, "winogrande": winogrande_tasks, "multiple_choice": multiple_choice_tasks}
    kind = "hellaswag" if hellaswag else "winogrande" if winogrande else "multiple_choice" if multiple_choice else None
    if kind is not None:
        _report(_tasks(model, content, n_ctx, kind, counts[kind]), _told_tasks, as_json)
        return
    text = _Text(content, n_ctx, None if chunks < 0 else chunks, stride, parse_special)
    _report(_perplexity(model, text, base_file), _told_perplexity, as_json)


def _report(found: dict[str, Any], tell: Callable[[dict[str, Any]], list[str]], as_json: bool) -> None:
    print(json.dumps(found) if as_json else "\n".join(tell(found)))


def _open(model: ModelOptions, n_ctx: int) -> Scorer:
    from ..evaluation.scorer import Scorer

    return Scorer.open(model_path(model.path), model.config(), n_ctx)


def _perplexity(model: ModelOptions, text: _Text, base_file: Path | None) -> dict[str, Any]:
    from ..evaluation.base_file import BaseWriter
    from ..evaluation.chunks import chunks_of, strides_of, window_of
    from ..evaluation.perplexity import perplexity_of_chunks, perplexity_of_strides

    n_ctx = window_of(text.n_ctx, text.stride) if text.stride else text.n_ctx
    with _open(model, n_ctx) as scorer, progress_bar("measuring") as advance:
        if text.stride:
            rows = strides_of(scorer.tokenizer, text.content, n_ctx, text.stride, most=text.chunks)
        else:
            rows = chunks_of(scorer.tokenizer, text.content, n_ctx, parse_special=text.parse_special, most=text.chunks)

        def on_chunk(n: int, losses: Any) -> None:
            advance(n, len(rows), f"{losses.perplexity:.4f}")

        if text.stride:
            losses = perplexity_of_strides(scorer, rows, text.stride, on_chunk=on_chunk)
        else:
            writer = nullcontext() if base_file is None else BaseWriter(base_file, rows, scorer.n_vocab)
            with writer as base:
                losses = perplexity_of_chunks(scorer, rows, base=base, on_chunk=on_chunk)
        return {
            "model": scorer.opened.model_name,
            "n_ctx": n_ctx,
            "n_chunks": len(rows),
            "n_tokens": losses.n,
            "perplexity": {"value": losses.perplexity, "error": losses.error},
            "nats_per_token": losses.mean,
        }


def _told_perplexity(found: dict[str, Any]) -> list[str]:
    return [f"perplexity {_pm(found['perplexity'])} over {found['n_chunks']} chunks of {found['n_ctx']} tokens"]


def _divergence(model: ModelOptions, base_file: Path) -> dict[str, Any]:
    from ..evaluation.base_file import BaseReader
    from ..evaluation.chunks import with_first_token
    from ..evaluation.divergence import divergence_over

    base = BaseReader(base_file)
    with _open(model, base.n_ctx) as scorer, progress_bar("measuring") as advance:
        if scorer.n_vocab != base.n_vocab:
            raise RequestError(
                f"[perplexity] the model has a vocabulary of {scorer.n_vocab} tokens, that of {base_file.name} has"
                f" {base.n_vocab}"
            )

        def on_chunk(n: int, found: Any) -> None:
            advance(n, len(base.rows), f"{found.mean().value:.6f}")

        rows = with_first_token(scorer.tokenizer, base.rows)
        logits = scorer.logits(rows, base.n_ctx // 2)
        return {
            "model": scorer.opened.model_name,
            "n_ctx": base.n_ctx,
            "n_chunks": len(base.rows),
            **divergence_over(base.chunks(), base.rows, logits, on_chunk).statistics(),
        }


def _told_divergence(found: dict[str, Any]) -> list[str]:
    lines = [
        ("perplexity", _pm(found["perplexity"])),
        ("perplexity of the base", _pm(found["base_perplexity"])),
        ("log of their ratio", _pm(found["log_perplexity_ratio"])),
        ("correlation of losses", f"{found['correlation']:.4%}"),
        ("KL divergence", _pm(found["kl_divergence"])),
        *((f"  {_percent(name)}", f"{found['kl_divergence'][name]:.6f}") for name in _SPREAD),
        ("probability difference", _pm(found["probability_difference"], 100, " %")),
        *((f"  {_percent(name)}", f"{found['probability_difference'][name]:.3%}") for name in _SPREAD),
        ("probability difference, RMS", _pm(found["probability_difference_rms"], 100, " %")),
        ("same most likely token", _pm(found["same_top"], 100, " %")),
    ]
    return [f"{name:28}{value}" for name, value in lines]


_SPREAD = ("least", "p1", "p5", "p10", "p50", "p90", "p95", "p99", "p99.9", "most")


def _percent(name: str) -> str:
    return f"{name[1:]} %" if name.startswith("p") else name


def _pm(estimate: dict[str, float], factor: float = 1, unit: str = "") -> str:
    return f"{factor * estimate['value']:.6f} +/- {factor * estimate['error']:.6f}{unit}"


def _tasks(model: ModelOptions, content: bytes, n_ctx: int, kind: str, wanted: int) -> dict[str, Any]:
    from ..evaluation import tasks
    from ..evaluation.choices import choose

    read = {
        "hellaswag": tasks.read_hellaswag,
        "winogrande": tasks.read_winogrande,
        "multiple_choice": tasks.read_multiple_choice,
    }[kind]
    with _open(model, n_ctx) as scorer, progress_bar("solving") as advance:
        some = read(scorer.tokenizer, content, wanted)
        score = choose(scorer, some, lambda score: advance(score.n, len(some), f"{score.accuracy:.2%}"))
        low, high = score.interval()
        return {
            "model": scorer.opened.model_name,
            "tasks": kind,
            "n_tasks": score.n,
            "n_right": score.n_right,
            "accuracy": {"value": score.accuracy, "error": score.error, "low": low, "high": high},
            "chance": score.chance / max(1, score.n),
        }


def _told_tasks(found: dict[str, Any]) -> list[str]:
    accuracy = found["accuracy"]
    return [
        f"{found['n_right']} of {found['n_tasks']} tasks correct, {_pm(accuracy, 100, ' %')}"
        f" (95 %: {accuracy['low']:.2%} to {accuracy['high']:.2%}; chance {found['chance']:.2%})"
    ]
