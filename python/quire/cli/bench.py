"""``quire bench``: how fast a model reads and writes."""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

import click

from ..sampling import SamplingParams
from .foreign_options import ForeignCommand
from .model_argument import model_argument
from .model_options import ModelOptions, model_options
from .progress import progress_bar
from .session import Session, Sizes
from .tables import print_table

if TYPE_CHECKING:
    from ..engine import LLM, GenerationResult

__all__ = ["command"]

BLOCK_TOKENS = 32


def _counts(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
    """``1,4,16``."""
    parts = value.split(",")
    if not all(part.isdecimal() and 0 < int(part) <= 4096 for part in parts):
        raise click.BadParameter(f"must be numbers from 1 to 4096, with commas, but is {value!r}", ctx, param)
    return tuple(int(part) for part in parts)


@dataclass(frozen=True)
class Measurement:
    """Tokens a second, over all sequences of the batch together."""

    test: str
    n_tokens: int
    batch: int
    tokens_per_s: float
    deviation: float
    runs: tuple[float, ...]


@click.command("bench", cls=ForeignCommand)
@model_argument
@model_options(load="copy")
@click.option("-p", "--n-prompt", "n_prompt", type=click.IntRange(0), default=512, show_default=True, metavar="N",
              help="Tokens of each prompt; 0: no such test.")  # fmt: skip
@click.option("-n", "--n-gen", "n_gen", type=click.IntRange(0), default=128, show_default=True, metavar="N",
              help="Tokens of each answer; 0: no such test.")  # fmt: skip
@click.option("-d", "--n-depth", "n_depth", type=click.IntRange(0), default=0, show_default=True, metavar="N",
              help="Tokens that are in the cache when an answer begins.")  # fmt: skip
@click.option("-b", "--batch", "batches", callback=_counts, default="1,4,8", show_default=True, metavar="N,N,...",
              help="Sequences at a time.")  # fmt: skip
@click.option("-r", "--repetitions", type=click.IntRange(1, 1000), default=3, show_default=True, metavar="N",
              help="Runs of each test, after one that does not count.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("-o", "--output", "form", type=click.Choice(("md", "json")), default="md",
              help="A table, or as --json.")  # fmt: skip
@click.option("--plot", is_flag=True, help="Draw the speeds as bars, too.")
@click.pass_obj
def command(
    session: Session,
    *,
    model: ModelOptions,
    n_prompt: int,
    n_gen: int,
    n_depth: int,
    batches: tuple[int, ...],
    repetitions: int,
    as_json: bool,
    form: str,
    plot: bool,
) -> None:
    """Measure reading prompts (pp) and writing answers (tg) of random tokens, for several batch sizes.

    Weights are read into memory first, and no prompt is found in the cache.
    """
    as_json = as_json or form == "json"
    if as_json and plot:
        raise click.UsageError("--plot draws beside the table but --json prints none")
    if not n_prompt and not n_gen:
        raise click.UsageError("-p or -n must be above 0: there is nothing to measure")
    n_ctx = max(n_prompt + 1, n_gen + max(1, n_depth), model.engine.get("n_ctx", 0))
    n_blocks = max(batches) * (-(-n_ctx // BLOCK_TOKENS) + 1) + 1
    sizes = Sizes(n_ctx=n_ctx, n_blocks=n_blocks, max_sequences=max(batches))
    with session.open(model, sizes) as llm:
        tests: list[tuple[str, int, int, Callable[[], float]]] = []
        source = random.Random(0)
        for batch in batches:
            if n_prompt:
                tests.append((f"pp{n_prompt}", n_prompt, batch, partial(_read, llm, source, n_prompt, batch)))
            if n_gen:
                name = f"tg{n_gen}" + (f"@{n_depth}" if n_depth else "")
                tests.append((name, n_gen, batch, partial(_write, llm, source, (n_depth, n_gen), batch)))
        measured = []
        with progress_bar("measuring") as advance:
            for done, (name, n_tokens, batch, run) in enumerate(tests):
                advance(done, len(tests), f"{name} x {batch}")
                run()
                speeds = tuple(n_tokens * batch / run() for _ in range(repetitions))
                spread = statistics.stdev(speeds) if repetitions > 1 else 0.0
                measured.append(Measurement(name, n_tokens, batch, statistics.mean(speeds), spread, speeds))
        if as_json:
            print(json.dumps(_as_object(llm, model, measured)))
        else:
            _print(llm, measured)
            if plot:
                print("\n".join(bars(measured)))


def _read(llm: LLM, source: random.Random, n_prompt: int, batch: int) -> float:
    """Seconds to read the prompts, each to its first token."""
    return _timed(llm, _fresh_prompts(llm, source, n_prompt, batch), 1)


def _write(llm: LLM, source: random.Random, sizes: tuple[int, int], batch: int) -> float:
    """Seconds to write answers of ``sizes[1]`` tokens to prompts of ``sizes[0]``, or of one.

    The first token belongs to the prompt, so the clock runs from there; the longest time of the batch counts.
    """
    n_depth, n_gen = sizes
    prompts = _fresh_prompts(llm, source, max(1, n_depth), batch)
    if n_depth:
        # Read them first; then all but the last block is found in the cache.
        _generated(llm, prompts, 1)
    if n_gen == 1:
        return _timed(llm, prompts, n_gen)
    seconds = max(result.timings.decode_s for result in _generated(llm, prompts, n_gen))
    return seconds * n_gen / (n_gen - 1)


def _fresh_prompts(llm: LLM, source: random.Random, n_tokens: int, batch: int) -> list[list[int]]:
    """Other tokens each time: a prefix that is in the cache would not be read."""
    return [[source.randrange(llm.n_vocab) for _ in range(n_tokens)] for _ in range(batch)]


def _timed(llm: LLM, prompts: list[list[int]], n_gen: int) -> float:
    begin = time.perf_counter()
    _generated(llm, prompts, n_gen)
    return time.perf_counter() - begin


def _generated(llm: LLM, prompts: list[list[int]], n_gen: int) -> list[GenerationResult]:
    params = SamplingParams(max_tokens=n_gen, temperature=0.0, ignore_eos=True)
    results = llm.generate(prompts, params)
    assert all(len(result.token_ids) == params.max_tokens for result in results)
    return results


def _print(llm: LLM, measured: list[Measurement]) -> None:
    print_table(
        ("test", "batch>", "tokens/s>", "+->", "tokens/s each>"),
        (
            (m.test, str(m.batch), f"{m.tokens_per_s:.1f}", f"{m.deviation:.1f}", f"{m.tokens_per_s / m.batch:.1f}")
            for m in measured
        ),
        title=f"{llm.model_name} ({llm.architecture}) on {llm.config.device}",
    )


def bars(measured: list[Measurement], width: int = 50) -> list[str]:
    """A line for each measurement; those of one test are drawn to the scale of the fastest of them."""
    names = [f"{m.test} x {m.batch}" for m in measured]
    lines = []
    for m, name in zip(measured, names, strict=True):
        most = max(other.tokens_per_s for other in measured if other.test == m.test)
        n_eighths = round(m.tokens_per_s / most * width * 8)
        bar = "█" * (n_eighths // 8) + " ▏▎▍▌▋▊▉"[n_eighths % 8].strip()
        lines.append(f"{name:<{max(map(len, names))}} {bar} {m.tokens_per_s:.1f}")
    return lines


def _as_object(llm: LLM, model: ModelOptions, measured: list[Measurement]) -> dict[str, object]:
    config = llm.config
    return {
        "model": llm.model_name,
        "path": model.path,
        "architecture": llm.architecture,
        "device": config.device,
        "threads": config.threads,
        "kernels": config.kernels,
        "isa": llm.isa,
        "kv_dtype": llm.kv_dtype,
        "results": [asdict(m) for m in measured],
    }
