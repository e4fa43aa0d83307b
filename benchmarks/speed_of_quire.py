#!/usr/bin/env python3
"""Measure how fast Quire reads a prompt and generates answers: one case per process, for compare_llama_cpp.py.

    speed_of_quire.py FILE [--prompt N] [--generate N] [--streams N] [--shared] [--threads N] [--isa NAME]

The script prints a JSON object of tokens per second: ``reading`` a prompt (one stream), and ``writing`` answers after a
context, summed over all streams; null if not measured.  ``--shared`` uses one context for all streams.  Weights are
read into memory first, and the cache is only as large as needed.  All work is done once without timing, so that the
cache's memory has been touched, as in llama.cpp, which clears it.  Times are the decoder's, from a stream's first token
to its last.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics

from quire import LLM, GenerationResult, GGUFReader, SamplingParams
from quire.models import load_model

BLOCK_TOKENS = 32


def generate(llm: LLM, prompts: list[list[int]], n_tokens: int) -> list[GenerationResult]:
    results = llm.generate(prompts, SamplingParams(max_tokens=n_tokens, temperature=0.0, ignore_eos=True))
    assert all(len(result.token_ids) == n_tokens for result in results)
    return results


def contexts(llm: LLM, options: argparse.Namespace) -> list[list[int]]:
    """Return different random tokens for each stream and call: whole blocks and one token, the only one not cached."""

    def draw(n_tokens: int) -> list[int]:
        return [random.randrange(llm.n_vocab) for _ in range(n_tokens)]

    shared = draw(options.prompt) if options.shared else []
    return [[*(shared or draw(options.prompt)), *draw(1)] for _ in range(options.streams)]


def reading_speed(results: list[GenerationResult]) -> float:
    (result,) = results
    assert result.n_cached_tokens == 0
    return result.n_prompt_tokens / (result.timings.queue_s + result.timings.prefill_s)


def speeds(llm: LLM, options: argparse.Namespace) -> tuple[float | None, float | None]:
    """Return the speed of reading and of writing; None for what is not measured."""
    reading, prompts = None, contexts(llm, options)
    if options.prompt:
        first = [generate(llm, [prompt[:-1]], 1) for prompt in prompts]
        reading = reading_speed(first[0]) if options.streams == 1 else None
    if not options.generate:
        return reading, None
    results = generate(llm, prompts, options.generate + 1)
    assert all(result.n_cached_tokens == options.prompt for result in results)
    return reading, float(sum(options.generate / result.timings.decode_s for result in results))


def keeps_states(file: str) -> bool:
    """Return whether layers keep states, whose copies need room in the cache too."""
    return any(spec.states for spec in load_model(GGUFReader(file)).cache)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--prompt", type=int, default=0, help="a multiple of 32, the size of a block")
    parser.add_argument("--generate", type=int, default=0)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--shared", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isa")
    parser.add_argument("--repeat", type=int, default=1)
    options = parser.parse_args()
    if options.prompt % BLOCK_TOKENS:
        parser.error(f"--prompt is not a multiple of {BLOCK_TOKENS}")
    n_ctx = options.prompt + options.generate + 2 * BLOCK_TOKENS
    contexts_at_once = 1 if options.shared else options.streams
    own = options.streams * (-(-options.generate // BLOCK_TOKENS) + 3)
    n_blocks = contexts_at_once * (options.prompt // BLOCK_TOKENS) + own + 4
    has_states = keeps_states(options.file)
    with LLM(
        options.file,
        threads=options.threads,
        n_ctx=max(n_ctx, 256),
        n_blocks=None if has_states else n_blocks,
        max_sequences=max(options.streams * (4 if has_states else 1), 4),
        load="copy",
        isa=options.isa,
    ) as llm:
        generate(llm, [[1, 2, 3]], 4)
        if options.prompt:
            speeds(llm, options)
        used = llm.isa
        found = [speeds(llm, options) for _ in range(options.repeat)]
    reading, writing = (None if None in each else statistics.median(each) for each in zip(*found, strict=True))
    print(json.dumps({"reading": reading, "writing": writing, "isa": used}))


if __name__ == "__main__":
    main()
