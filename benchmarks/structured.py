#!/usr/bin/env python3
"""Check that answers have the required form, and measure what forms cost.

    structured.py validity [MODEL ...] [--shared ../shared] [--schemas 300] [--tokens 300] [--threads 2]
    structured.py masks VOCABULARY.gguf [--schemas 60] [--tokens 200]
    structured.py throughput [MODEL ...] [--streams 8] [--tokens 64] [--rounds 5] [--threads 2]
    structured.py hostile VOCABULARY.gguf

validity: the ``jsonschema`` package checks answers at temperature 1 to schemas with every keyword
(structured_schemas.py, fixed seeds).  Without MODEL: the models in SHARED/models, the package's, and one with random
weights.  Answers that reach the token limit are counted separately.  The exit code is 1 if a complete answer is
invalid.

masks: microseconds per mask, per sampled token and per compilation, in walks through the same schemas, with one thread
and no model.  throughput: tokens per second of all streams together: free, constrained to a schema that cannot end
before the limit, and both at once, in alternation (without MODEL, the package's).  hostile: the time until malicious
forms (structured_bombs.py) are accepted or refused; the exit code is 1 if one takes more than a second.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from quire import LLM, QuireError, SamplingParams, StructuredOutputsParams
from quire.engine.loading.loader import packaged_model
from quire.engine.requests.answer_forms import token_vocabulary
from quire.grammar import Compiler, CompilerLimits, grammar_source
from quire.tokenizer import Tokenizer

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path.insert(0, str(TESTS / "support"))

from structured_bombs import BOMBS  # noqa: E402
from structured_schemas import complaint, make_schemas  # noqa: E402
from tiny_checkpoints import write_checkpoint  # noqa: E402

ENDLESS = {"type": "array", "items": {"type": "string", "maxLength": 40}, "minItems": 100_000}


def random_model(folder: Path) -> Path:
    write_checkpoint(folder, "qwen3")
    return folder


def validity(models: Sequence[Path], arguments: argparse.Namespace) -> bool:
    schemas = list(make_schemas(arguments.schemas))
    params = [
        SamplingParams(
            temperature=1.0,
            seed=i,
            max_tokens=arguments.tokens,
            structured_outputs=StructuredOutputsParams(json=schema),
        )
        for i, schema in enumerate(schemas)
    ]
    print("| model | schemas | complete | cut at the limit | invalid |\n|---|---|---|---|---|")
    n_invalid = 0
    for path in models:
        with LLM(path, threads=arguments.threads, n_ctx=512) as model:
            answers = model.generate(["JSON: "] * len(schemas), params)
        complete = [i for i, answer in enumerate(answers) if answer.finish_reason == "stop"]
        invalid = [i for i in complete if complaint(schemas[i], answers[i].text) is not None]
        n_cut = sum(answer.finish_reason == "length" for answer in answers)
        print(f"| {path.name} | {len(schemas)} | {len(complete)} | {n_cut} | {len(invalid)} |", flush=True)
        for i in invalid:
            print(f"{schemas[i]}: {answers[i].text!r}: {complaint(schemas[i], answers[i].text)}", file=sys.stderr)
        n_invalid += len(invalid)
    return n_invalid == 0


def opened_compiler(path: Path, limits: CompilerLimits | None = None) -> tuple[Compiler, int]:
    tokenizer = Tokenizer.from_gguf(path)
    n_vocab = len(tokenizer.vocabulary.texts)
    vocabulary = token_vocabulary(tokenizer, n_vocab)
    return Compiler(lambda: vocabulary, limits), n_vocab


def masks(arguments: argparse.Namespace) -> None:
    compiler, n_vocab = opened_compiler(arguments.vocabulary)
    begin = time.perf_counter()
    compiler.compile(grammar_source(StructuredOutputsParams(regex="a")))
    opened = time.perf_counter() - begin
    mask = np.zeros((n_vocab + 31) // 32, np.uint32)
    compiling, filling, advancing = [], [], []
    for i, schema in enumerate(make_schemas(arguments.schemas)):
        random = np.random.default_rng(i)
        begin = time.perf_counter()
        matcher = compiler.compile(grammar_source(StructuredOutputsParams(json=schema))).matcher()
        compiling.append(time.perf_counter() - begin)
        for _ in range(arguments.tokens):
            begin = time.perf_counter()
            matcher.fill(mask)
            filling.append(time.perf_counter() - begin)
            allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
            token = int(random.choice(allowed))
            if matcher.is_complete and random.random() < 0.1:
                break
            begin = time.perf_counter()
            try:
                matcher.advance(token)
            except QuireError:  # an end of generation
                break
            advancing.append(time.perf_counter() - begin)
    print(f"vocabulary of {n_vocab}, and the first grammar: {opened:.2f} s; {len(filling)} masks")
    print("| microseconds | median | mean | 99 of 100 | most |\n|---|---|---|---|---|")
    for name, times in (("compile a schema", compiling), ("a mask", filling), ("a drawn token", advancing)):
        us = np.array(times) * 1e6
        print(f"| {name} | {np.median(us):.0f} | {us.mean():.0f} | {np.percentile(us, 99):.0f} | {us.max():.0f} |")


def throughput(arguments: argparse.Namespace) -> None:
    n, n_tokens = arguments.streams, arguments.tokens
    free = SamplingParams(max_tokens=n_tokens, ignore_eos=True, seed=1)
    held = SamplingParams(max_tokens=n_tokens, seed=1, structured_outputs=StructuredOutputsParams(json=ENDLESS))
    kinds = {"free": [free] * n, "held": [held] * n, "held beside free": [held, free] * n}
    print("| model | streams | tokens/s | of free | lowest | highest |\n|---|---|---|---|---|---|")
    for path in arguments.models or [packaged_model()]:
        found: dict[str, list[float]] = {name: [] for name in kinds}
        with LLM(path, threads=arguments.threads, n_ctx=512, load="copy") as model:
            prompts = [model.tokenizer.encode(f"JSON number {i}: ") for i in range(2 * n)]
            for i in range(arguments.rounds + 1):
                for name, params in kinds.items():
                    begin = time.perf_counter()
                    answers = model.generate(prompts[: len(params)], params)
                    seconds = time.perf_counter() - begin
                    assert all(len(answer.token_ids) == n_tokens for answer in answers)
                    if i:  # the first round builds the vocabulary's tree
                        found[name].append(len(params) * n_tokens / seconds)
        medians = {name: statistics.median(values) for name, values in found.items()}
        for name, values in found.items():
            ratio = "" if name == "held beside free" else f"{medians[name] / medians['free']:.3f}"
            cells = f"{medians[name]:.1f} | {ratio} | {min(values):.1f} | {max(values):.1f}"
            print(f"| {path.name} | {len(kinds[name])} {name} | {cells} |", flush=True)


def hostile(arguments: argparse.Namespace) -> bool:
    compiler, n_vocab = opened_compiler(arguments.vocabulary)
    compiler.compile(grammar_source(StructuredOutputsParams(regex="a")))
    mask = np.zeros((n_vocab + 31) // 32, np.uint32)
    worst = 0.0
    print("| form | until accepted or refused, ms | resident memory after, MiB | |\n|---|---|---|---|")
    for name, fields in BOMBS.items():
        begin = time.perf_counter()
        try:
            compiler.compile(grammar_source(StructuredOutputsParams(**fields))).matcher().fill(mask)
            outcome = "accepted"
        except QuireError as error:
            outcome = f"{type(error).__name__}: {str(error)[:60]}"
        seconds = time.perf_counter() - begin
        worst = max(worst, seconds)
        lines = Path("/proc/self/status").read_text().splitlines()
        resident = int(next(line.split()[1] for line in lines if line.startswith("VmRSS"))) // 1024
        print(f"| {name} | {1e3 * seconds:.0f} | {resident} | {outcome.replace('|', ' ')} |", flush=True)
    print(f"at most {worst:.2f} s")
    return worst <= 1.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    checks = commands.add_parser("validity")
    checks.add_argument("models", nargs="*", type=Path)
    checks.add_argument("--shared", type=Path, default=TESTS.parent.parent / "shared")
    costs = commands.add_parser("masks")
    speeds = commands.add_parser("throughput")
    speeds.add_argument("models", nargs="*", type=Path)
    speeds.add_argument("--streams", type=int, default=8)
    speeds.add_argument("--rounds", type=int, default=5)
    bombs = commands.add_parser("hostile")
    for command in (costs, bombs):
        command.add_argument("vocabulary", type=Path)
    for command in (checks, speeds):
        command.add_argument("--threads", type=int, default=2)
    for command, schemas, tokens in ((checks, 300, 300), (costs, 60, 200), (speeds, 0, 64)):
        command.add_argument("--schemas", type=int, default=schemas)
        command.add_argument("--tokens", type=int, default=tokens)
    arguments = parser.parse_args()
    if arguments.command == "masks":
        masks(arguments)
    elif arguments.command == "throughput":
        throughput(arguments)
    elif arguments.command == "hostile":
        return 0 if hostile(arguments) else 1
    else:
        with tempfile.TemporaryDirectory() as folder:
            trained = [path for path in sorted((arguments.shared / "models").glob("tiny-*")) if path.is_dir()]
            own = [*trained, packaged_model(), random_model(Path(folder) / "random-weights")]
            return 0 if validity(arguments.models or own, arguments) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
