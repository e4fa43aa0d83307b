"""``quire bench``: measure the speed of prompts and generation."""

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

from ..params.sampling import SamplingParams
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
    """Parse a comma-separated list of numbers, such as ``1,4,16``."""
    parts = value.split(",")
    if not all(part.isdecimal() and 0 < int(part) <= 4096 for part in parts):
        raise click.BadParameter(f"expected numbers from 1 to 4096 separated by commas, got {value!r}", ctx, param)
    return tuple(int(part) for part in parts)


@dataclass(frozen=True)
class Measurement:
    """Speed of one test in tokens a second, summed over all sequences of the batch."""

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
              help="Length of each prompt in tokens; 0 skips this test.")  # fmt: skip
@click.option("-n", "--n-gen", "n_gen", type=click.IntRange(0), default=128, show_default=True, metavar="N",
              help="Tokens to generate per sequence; 0 skips this test.")  # fmt: skip
@click.option("-d", "--n-depth", "n_depth", type=click.IntRange(0), default=0, show_default=True, metavar="N",
              help="Tokens already in the cache when generation starts.")  # fmt: skip
@click.option("-b", "--batch", "batches", callback=_counts, default="1,4,8", show_default=True, metavar="N,N,...",
              help="Batch sizes: sequences that run at the same time.")  # fmt: skip
@click.option("-r", "--repetitions", type=click.IntRange(1, 1000), default=3, show_default=True, metavar="N",
              help="Runs of each test, after one warm-up run.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("-o", "--output", "form", type=click.Choice(("md", "json")), default="md",
              help="Output format: a table, or the object of --json.")  # fmt: skip
@click.option("--plot", is_flag=True, help="Also draw the speeds as bars.")
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
    """Measure prompt processing (pp) and token generation (tg) on random tokens, for several batch sizes.

    Weights are read into memory first, and the prefix cache is never hit.
    """
    as_json = as_json or form == "json"
    if as_json and plot:
        raise click.UsageError("--plot cannot be combined with --json")
    if not n_prompt and not n_gen:
        raise click.UsageError("nothing to measure: set -p or -n above 0")
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
    """Return the seconds it takes to process the prompts and produce the first token of each."""
    return _timed(llm, _fresh_prompts(llm, source, n_prompt, batch), 1)


def _write(llm: LLM, source: random.Random, sizes: tuple[int, int], batch: int) -> float:
    """Return the seconds it takes to generate ``sizes[1]`` tokens after prompts of ``sizes[0]`` tokens, at least 1.

    The first token counts as prompt time, so the clock starts after it.  The slowest sequence of the batch counts.
    """
    n_depth, n_gen = sizes
    prompts = _fresh_prompts(llm, source, max(1, n_depth), batch)
    if n_depth:
        # Process the prompts first, so that all but their last block are cached when the clock starts.
        _generated(llm, prompts, 1)
    if n_gen == 1:
        return _timed(llm, prompts, n_gen)
    seconds = max(result.timings.decode_s for result in _generated(llm, prompts, n_gen))
    return seconds * n_gen / (n_gen - 1)


def _fresh_prompts(llm: LLM, source: random.Random, n_tokens: int, batch: int) -> list[list[int]]:
    """Return new random prompts, because a prompt seen before would be found in the cache."""
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
    """Return one line with a bar per measurement; within a test, bars are relative to its fastest measurement."""
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
