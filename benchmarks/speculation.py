#!/usr/bin/env python3
"""Measure speculation: the cost of rows, and answers with and without drafts, in alternation.

    speculation.py [FILE.gguf] [--draft FOLDER] [--parts rows,rates,models,forms,peer] [--peer BIN] [--threads 2]
        [--rounds 5] [--streams 1,8,32] [--rates 0,0.3,...] [--json OUT.json]

FILE is a model of a published shape (make_shape.py, make_model.py); goals are for qwen3-0.6b as Q4_K_M.  Parts:

rows: the time of a step with 1 to 16 rows of one sequence, relative to one row.  Goal: at most 1.4 with 4, 1.9 with 8.
rates: FILE with a drafter that is right at a given rate, relative to no drafts.  Goals: one stream at 0.6, 0.7, 0.8 and
0.9 at least 1.5, 1.8, 2.1 and 2.7; 8 streams at 0.8 at least 1.2; never below 0.97.  ``allowed`` is the ratio of the
best fixed depth, computed from the measured cost of rows; the goal is at least 0.85 of it.
models: the package's model with the draft model (FOLDER, tiny-draft) and with lookup: free texts, copying, tool calls.
forms: answers of the package's model and of FILE to a fixed schema: only masks, forced text, and with lookup.  Goal: 2.
peer: the cost of llama.cpp's rows (llama-bench in BIN), and the most that its speculation can gain at each rate.

Ratios are medians over rounds of measurements that follow each other; the report has the accepted tokens.  With the
default rounds, all parts take about ten minutes on a quiet machine with two cores.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from quire import LLM, SamplingParams, StructuredOutputsParams
from quire._native.engine import Decoder, DecoderConfig, Drafter, Request, VocabInfo
from quire._native.engine import SamplingParams as NativeParams
from quire._native.testing import ScriptedDrafter
from quire.engine import EngineConfig
from quire.engine.loading.loader import open_model
from quire.engine.loading.opened_model import OpenedModel

PARTS = ("rows", "rates", "models", "forms", "peer")
ROWS = (1, 2, 3, 4, 6, 8, 12, 16)
N_PROMPT = 32
TOKENS = {1: 64, 8: 48, 32: 32}  # per answer, by number of streams
ROW_STEPS = 40  # for each number of rows; enough that the first steps hardly count
GOALS = {(1, 0.6): 1.5, (1, 0.7): 1.8, (1, 0.8): 2.1, (1, 0.9): 2.7, (8, 0.8): 1.2}
SALTS = (str(i).encode() for i in itertools.count())  # so that no round finds the cache of another

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather for a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
COPY = "The list: red, blue, green, black. Again: red, blue, green, black. Again: red, blue, green, black. Again:"
SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {
        "first_name": {"type": "string", "maxLength": 8},
        "last_name": {"type": "string", "maxLength": 8},
        "postal_address": {
            "type": "object",
            "properties": {
                "street_name": {"type": "string", "maxLength": 8},
                "house_number": {"type": "integer", "minimum": 1, "maximum": 99},
                "country": {"enum": ["Germany", "France", "Netherlands"]},
            },
            "required": ["street_name", "house_number", "country"],
            "additionalProperties": False,
        },
        "is_registered_member": {"type": "boolean"},
        "preferred_language": {"enum": ["german", "french", "dutch", "english"]},
    },
    "required": ["first_name", "last_name", "postal_address", "is_registered_member", "preferred_language"],
    "additionalProperties": False,
}


@dataclass
class Measured:
    """The measurements of one way of answering: seconds of each round, and drafted tokens."""

    seconds: list[float] = field(default_factory=list)
    n_tokens: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    n_rounds: int = 0

    def report(self, base: Measured) -> dict[str, object]:
        """Compare with another way, by speed, as the number of tokens may differ if forms end early."""
        speeds = [self.n_tokens / self.n_rounds / s for s in self.seconds]
        others = [base.n_tokens / base.n_rounds / s for s in base.seconds]
        ratios = [a / b for a, b in zip(speeds, others, strict=True)]
        return {
            "tokens_s": round(statistics.median(speeds), 2),
            "ratio": round(statistics.median(ratios), 3),
            "ratios": [round(ratio, 3) for ratio in ratios],
            "drafted": self.n_drafted,
            "accepted": self.n_accepted,
        }


def alternate(ways: dict[str, Callable[[], tuple[float, int, int, int]]], rounds: int) -> dict[str, Measured]:
    """Run each way in turn, ``rounds`` times after a first round that does not count.

    A way returns seconds, tokens, drafted tokens and accepted tokens.
    """
    found = {name: Measured() for name in ways}
    for i in range(rounds + 1):
        for name, way in ways.items():
            seconds, n_tokens, n_drafted, n_accepted = way()
            if i == 0:
                continue
            m = found[name]
            m.seconds.append(seconds)
            m.n_tokens += n_tokens
            m.n_drafted += n_drafted
            m.n_accepted += n_accepted
            m.n_rounds += 1
    return found


# The decoder with scripted drafts


class Streams:
    """A decoder on an opened model's executor, with a drafter that knows the answers."""

    def __init__(self, opened: OpenedModel, drafters: Sequence[Drafter], draft_max: int = 16, draft_min: int = 0):
        vocab = VocabInfo(opened.n_vocab, [], [b"x"] * opened.n_vocab)
        config = DecoderConfig(
            n_ctx=opened.sizes.n_ctx,
            speculation="auto" if drafters else "off",
            draft_max=draft_max,
            draft_min=draft_min,
        )
        self.decoder = Decoder(opened.executor, vocab, config, list(drafters))

    def answers(self, prompts: Sequence[Sequence[int]], n_tokens: int) -> tuple[float, list[list[int]], int, int]:
        """Return the seconds since every answer had its first token, the answers, and drafted and accepted tokens."""
        params = NativeParams()
        params.temperature, params.max_tokens, params.ignore_eos = 0.0, n_tokens, True
        salt = next(SALTS)
        ids = [self.decoder.submit(Request(list(prompt), params, salt=salt)) for prompt in prompts]
        found: dict[int, list[int]] = {id_: [] for id_ in ids}
        n_open, n_drafted, n_accepted, n_before = len(ids), 0, 0, 0
        begin: float | None = None
        while n_open:
            for event in self.decoder.wait(10.0):
                if event.kind == "delta":
                    found[event.request_id] += event.token_ids
                elif event.kind == "finish":
                    n_open -= 1
                    n_drafted += event.n_drafted_tokens
                    n_accepted += event.n_accepted_tokens
                else:
                    raise RuntimeError(event.error)
            if begin is None and all(found.values()):
                begin, n_before = time.perf_counter(), sum(map(len, found.values()))
        assert begin is not None
        seconds = time.perf_counter() - begin
        n_all = sum(map(len, found.values()))
        # Scale to all tokens except the first of each stream.
        seconds *= (n_all - len(ids)) / max(1, n_all - n_before)
        return seconds, [found[id_] for id_ in ids], n_drafted, n_accepted


def prompts_for(n: int, n_vocab: int) -> list[list[int]]:
    return [[(7 + 131 * i + 17 * k * k) % min(n_vocab, 30000) for k in range(N_PROMPT)] for i in range(n)]


def timed(streams: Streams, prompts: Sequence[Sequence[int]], n_tokens: int) -> tuple[float, int, int, int]:
    seconds, answers, n_drafted, n_accepted = streams.answers(prompts, n_tokens)
    return seconds, sum(len(answer) - 1 for answer in answers), n_drafted, n_accepted


def opened_alone(file: Path, threads: int) -> OpenedModel:
    """Open a model and end its own decoder, so that others may use its executor one after another."""
    opened = open_model(file, EngineConfig(n_ctx=1024, threads=threads, max_sequences=32, load="copy"))
    opened.decoder.close()
    return opened


def rows(opened: OpenedModel, rounds: int) -> dict[str, object]:
    """Return the seconds of a step with n rows of one sequence, with drafts of full length that are always right."""
    prompts = prompts_for(1, opened.n_vocab)
    n_tokens = ROW_STEPS * max(ROWS) + 1
    script = Streams(opened, []).answers(prompts, n_tokens)[1][0]
    costs: dict[int, list[float]] = {n: [] for n in ROWS}
    for i in range(rounds + 1):
        for n in ROWS:
            drafters: list[Drafter] = [ScriptedDrafter([[*prompts[0], *script]], agreement=1.0, n_vocab=opened.n_vocab)]
            streams = Streams(opened, drafters if n > 1 else [], max(1, n - 1), n - 1 if n > 1 else 0)
            steps = streams.decoder.n_steps
            seconds, _, n_drafted, n_accepted = streams.answers(prompts, ROW_STEPS * n + 1)
            n_steps = streams.decoder.n_steps - steps - 1  # without the prompt's step
            streams.decoder.close()
            if i:
                costs[n].append(seconds / max(1, n_steps))
            # Bits may depend on the number of rows.  A draft may then be wrong, but its step takes as long.
            assert n == 1 or n_drafted > 0, (n, n_drafted, n_accepted)
    ratios = {n: [a / b for a, b in zip(found, costs[1], strict=True)] for n, found in costs.items()}
    return {
        "step_ms": {n: round(1e3 * statistics.median(found), 3) for n, found in costs.items()},
        "ratio": {n: round(statistics.median(found), 3) for n, found in ratios.items()},
        "goal": {4: 1.4, 8: 1.9},
    }


def allowed(ratio: dict[int, float], rate: float) -> float:
    """Return the best ratio of all fixed depths, from the cost of rows, interpolated linearly."""
    known = sorted(ratio.items())

    def cost(n: int) -> float:
        for (a, low), (b, high) in itertools.pairwise(known):
            if a <= n <= b:
                return low + (high - low) * (n - a) / (b - a)
        return known[-1][1]

    return max(sum(rate**k for k in range(depth + 1)) / cost(1 + depth) for depth in range(known[-1][0]))


def rates(opened: OpenedModel, options: argparse.Namespace, ratio: dict[int, float] | None) -> list[dict[str, object]]:
    lines: list[dict[str, object]] = []
    for n in options.streams:
        n_tokens = TOKENS.get(n, max(16, 256 // n))
        prompts = prompts_for(n, opened.n_vocab)
        plain = Streams(opened, [])
        scripts = [[*p, *a] for p, a in zip(prompts, plain.answers(prompts, n_tokens)[1], strict=True)]
        ways: dict[str, Callable[[], tuple[float, int, int, int]]] = {}
        decoders = {"off": plain}
        for rate in options.rates:
            drafter = ScriptedDrafter(scripts, agreement=rate, n_vocab=opened.n_vocab)
            decoders[str(rate)] = Streams(opened, [drafter])
        for name, streams in decoders.items():
            ways[name] = partial(timed, streams, prompts, n_tokens)
        found = alternate(ways, options.rounds)
        for streams in decoders.values():
            streams.decoder.close()
        for rate in options.rates:
            line = {"streams": n, "rate": rate, **found[str(rate)].report(found["off"])}
            line["goal"] = GOALS.get((n, rate), 0.97)
            if ratio and n == 1:
                line["allowed"] = round(allowed(ratio, rate), 3)
            lines.append(line)
            print(f"  {n} streams, agreement {rate}: {line}", flush=True)
    return lines


# The package's model


def results_of(work: Callable[[], Sequence[Any]]) -> tuple[float, int, int, int]:
    begin = time.perf_counter()
    choices = [choice for result in work() for choice in result.choices]
    seconds = time.perf_counter() - begin
    return (
        seconds,
        sum(len(choice.token_ids) for choice in choices),
        sum(choice.n_drafted_tokens for choice in choices),
        sum(choice.n_accepted_tokens for choice in choices),
    )


def models(options: argparse.Namespace) -> list[dict[str, object]]:
    lines: list[dict[str, object]] = []
    openings = ("Once upon a time", "The fox went to", "Why is the sky blue?", "One day, the")
    free = {"temperature": 0.0, "max_tokens": 256, "ignore_eos": True}
    with LLM(draft=options.draft, threads=options.threads, n_ctx=512, load="copy") as llm:
        kinds = ["off", "lookup", *(["draft", "auto"] if options.draft else [])]

        def work(task: str, n: int, kind: str) -> Sequence[Any]:
            salt = next(SALTS)
            if task == "free":
                prompts = [f"{openings[i % 4]} {i}" for i in range(n)]
                return llm.generate(prompts, salt=salt, speculation=kind, **free)
            if task == "copying":
                return llm.generate([f"{i}. {COPY}" for i in range(n)], salt=salt, speculation=kind, **free)
            asked = [[{"role": "user", "content": f"What is the weather in {city}?"}] for city in ("Paris", "Rome")]
            chats = [asked[i % 2] for i in range(n)]
            return llm.chat(
                chats, tools=[WEATHER], tool_choice={"type": "function", "function": {"name": "get_weather"}},
                salt=salt, speculation=kind, temperature=0.0, max_tokens=96,
            )  # fmt: skip

        for task in ("free", "copying", "calls"):
            for n in options.streams:
                ways: dict[str, Callable[[], tuple[float, int, int, int]]] = {}
                for kind in kinds:
                    ways[kind] = lambda task=task, n=n, kind=kind: results_of(  # type: ignore[misc]
                        lambda: work(task, n, kind)
                    )
                found = alternate(ways, options.rounds)
                for kind in kinds[1:]:
                    line = {"task": task, "streams": n, "drafter": kind, **found[kind].report(found["off"])}
                    lines.append(line)
                    print(f"  {line}", flush=True)
    return lines


def forms(options: argparse.Namespace, file: Path | None) -> list[dict[str, object]]:
    lines: list[dict[str, object]] = []
    form = StructuredOutputsParams(json=SCHEMA, disable_any_whitespace=True)
    draft = options.draft if file is None else None
    with LLM(file, draft=draft, threads=options.threads, n_ctx=512, load="copy") as llm:

        def work(n: int, kind: str) -> Sequence[Any]:
            params = SamplingParams(temperature=0.0, max_tokens=200, structured_outputs=form, speculation=kind)
            return llm.generate([f"Person number {i}: " for i in range(n)], params, salt=next(SALTS))

        for n in options.streams:
            ways: dict[str, Callable[[], tuple[float, int, int, int]]] = {}
            for kind in ("off", "grammar", "auto"):
                ways[kind] = lambda n=n, kind=kind: results_of(lambda: work(n, kind))  # type: ignore[misc]
            found = alternate(ways, options.rounds)
            for kind in ("grammar", "auto"):
                name = "package" if file is None else file.name
                line = {"model": name, "streams": n, "drafter": kind, **found[kind].report(found["off"])}
                if kind == "auto":
                    line["goal"] = 2.0
                lines.append(line)
                print(f"  {line}", flush=True)
    return lines


# llama.cpp


def peer(options: argparse.Namespace) -> dict[str, object]:
    """Measure llama.cpp's rows: a prompt of n tokens in llama-bench costs as much as a step that verifies n rows."""
    sizes = ",".join(map(str, ROWS))
    command = [
        str(options.peer / "llama-bench"), "-m", str(options.file), "-p", sizes, "-n", "0", "-t", str(options.threads),
        "-r", str(8 * options.rounds), "-o", "json",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=400)
    speeds = {entry["n_prompt"]: entry["avg_ts"] for entry in json.loads(done.stdout)}
    cost = {n: n / speeds[n] for n in ROWS}
    ratio = {n: cost[n] / cost[1] for n in ROWS}
    return {
        "step_ms": {n: round(1e3 * value, 3) for n, value in cost.items()},
        "ratio": {n: round(value, 3) for n, value in ratio.items()},
        "allowed": {str(rate): round(allowed(ratio, rate), 3) for rate in options.rates},
        "allowed_tokens_s": {str(rate): round(allowed(ratio, rate) / cost[1], 2) for rate in options.rates},
    }


def numbers(text: str) -> list[float]:
    return [float(number) for number in text.split(",")]


def report(options: argparse.Namespace) -> Iterator[tuple[str, object]]:
    ratio: dict[int, float] | None = None
    if "rows" in options.parts or "rates" in options.parts:
        if options.file is None:
            raise SystemExit("the parts rows and rates need FILE")
        opened = opened_alone(options.file, options.threads)
        if "rows" in options.parts:
            found = rows(opened, options.rounds)
            ratio = found["ratio"]  # type: ignore[assignment]
            yield "rows", found
        if "rates" in options.parts:
            yield "rates", rates(opened, options, ratio)
    if "models" in options.parts:
        yield "models", models(options)
    if "forms" in options.parts:
        files = [None, *([options.file] if options.file is not None else [])]
        yield "forms", [line for file in files for line in forms(options, file)]
    if "peer" in options.parts and options.peer is not None:
        yield "peer", peer(options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--parts", type=lambda text: text.split(","), default=list(PARTS))
    parser.add_argument("--peer", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=lambda text: [int(n) for n in numbers(text)], default=[1, 8, 32])
    parser.add_argument("--rates", type=numbers, default=[0.0, 0.3, 0.6, 0.7, 0.8, 0.9, 1.0])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser.error(f"unknown part {unknown[0]}: expected {', '.join(PARTS)}")
    found: dict[str, object] = {}
    for name, value in report(options):
        found[name] = value
        print(f"{name}: {json.dumps(value)}", flush=True)
        if options.json is not None:
            options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
