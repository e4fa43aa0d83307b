#!/usr/bin/env python3
"""Compare the trained models' perplexity with Quire's kernels, on every instruction set, with that of ggml's operators.

    perplexity.py [CHECKPOINT|FILE.gguf ...] [--shared ../shared] [--types f16,bf16,q8_0,...] [--tokens 16384]
        [--context 512] [--threads 2] [--json OUT]

Without arguments, it measures the models in SHARED/models and the package's.  A file is measured as it is.  A
checkpoint is converted to single precision once, and all of its matrices are quantized to each type from that.  The
text is held
out: the generator of the training text writes it with the seed and the switch of the validation set.  Perplexity is exp
of the mean negative log-likelihood of all tokens of a context except the first, over contexts without overlap, summed
in double precision.  The exit code is 1 if Quire's kernels change it by 0.1 % or more.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from quire import LLM, GGUFReader, ShapeError
from quire._native.kernels import KernelSet, supported_isas
from quire._native.quant import quantize
from quire.checkpoints.conversion import convert
from quire.engine.loading.loader import packaged_model
from quire.gguf import GGUFWriter

TYPES = (
    "f32", "f16", "bf16", "q8_0", "q6_k", "q5_k", "q4_k", "q3_k", "q2_k", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl",
    "iq4_xs", "mxfp4",
)  # fmt: skip
LIMIT = 0.001
SEED = 9001  # the validation set's


def held_out_text(training: Path, n_bytes: int) -> list[str]:
    """Return documents of the validation set, from the generator in the folder ``training``."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "val.jsonl"
        command = [sys.executable, "corpus.py", str(out), str(n_bytes), str(SEED), "val"]
        subprocess.run(command, cwd=training, check=True, capture_output=True)
        return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


def contexts(model: LLM, documents: Sequence[str], n_tokens: int, context: int) -> list[list[int]]:
    """Return the documents' tokens, with an end of text after each document, in rows of ``context``."""
    ids: list[int] = []
    for document in documents:
        ids += [*model.tokenizer.encode(document, parse_special=True), 0]
        if len(ids) >= n_tokens:
            break
    return [ids[i : i + context] for i in range(0, min(n_tokens, len(ids)) - context + 1, context)]


def perplexity(model: LLM, rows: Sequence[Sequence[int]]) -> float:
    losses = []
    for row in rows:
        logits = model.logits(row)[:-1].astype(np.float64)
        highest = logits.max(axis=1, keepdims=True)
        log_sums = np.log(np.exp(logits - highest).sum(axis=1)) + highest[:, 0]
        losses.append(log_sums - logits[np.arange(len(row) - 1), row[1:]])
    return float(np.exp(np.concatenate(losses).mean()))


def write_quantized(source: Path, target: Path, dtype: str) -> None:
    """Write ``source`` with its matrices as ``dtype``.  Raises ShapeError if rows are not whole blocks of it."""
    reader = GGUFReader(source)
    matrices = {info.name for info in reader.tensors if len(info.shape) == 2}
    with GGUFWriter(target, reader.metadata.text("general.architecture")) as writer:
        for key, value in reader.metadata.items():
            if key != "general.architecture":
                kept: Any = reader.metadata.strings(key) if reader.metadata.type_of(key) == "string[]" else value
                writer.set(key, kept, reader.metadata.type_of(key))
        for info in reader.tensors:
            writer.add_tensor(info.name, dtype if info.name in matrices else info.dtype, info.shape)
        for info in reader.tensors:
            tensor = reader.tensor(info.name)
            writer.write(info.name, (quantize(tensor, dtype) if info.name in matrices else tensor).numpy())


def measure(file: Path, rows: Sequence[Sequence[int]], threads: int, isas: Sequence[str]) -> dict[str, float]:
    """Return the perplexity with ``stock`` and each instruction set; if determinism costs time, with and without it."""
    options: dict[str, Any] = {"threads": threads, "n_ctx": len(rows[0]) + 1}
    found = {}
    with LLM(file, kernels="stock", **options) as model:
        found["stock"] = perplexity(model, rows)
    for isa in isas:
        with LLM(file, isa=isa, deterministic=True, **options) as model:
            found[isa] = perplexity(model, rows)
        if KernelSet(isa).determinism_costs:
            with LLM(file, isa=isa, deterministic=False, **options) as model:
                found[f"{isa} free"] = perplexity(model, rows)
    return found


def moved(found: dict[str, float]) -> dict[str, float]:
    """Return each instruction set's difference from ``stock``, relative to it."""
    return {isa: value / found["stock"] - 1 for isa, value in found.items() if isa != "stock"}


def measure_file(file: Path, options: argparse.Namespace, documents: Sequence[str]) -> dict[str, dict[str, float]]:
    """Do what ``compare`` does for a file as it is."""
    with LLM(file, threads=options.threads) as model:
        rows = contexts(model, documents, options.tokens, options.context)
    found = measure(file, rows, options.threads, supported_isas())
    print(f"{file.name}, {len(rows)} x {options.context} tokens\nstock {found['stock']:.6f}", end="")
    print("".join(f", {isa} {difference:+.5%}" for isa, difference in moved(found).items()), flush=True)
    return {"as it is": found}


def compare(checkpoint: Path, options: argparse.Namespace, documents: Sequence[str]) -> dict[str, dict[str, float]]:
    isas = supported_isas()
    report = {}
    with tempfile.TemporaryDirectory(prefix="quire-perplexity-") as scratch:
        exact = Path(scratch) / "f32.gguf"
        convert(checkpoint, exact, "f32")
        with LLM(exact, threads=options.threads) as model:
            rows = contexts(model, documents, options.tokens, options.context)
        print(f"{checkpoint.name}, {len(rows)} x {options.context} tokens\n{'':8} {'stock':>10}", end="")
        free = ["free"] if KernelSet(isas[-1]).determinism_costs else []  # the last instruction set without determinism
        print("".join(f" {isa:>12}" for isa in [*isas, *free]))
        for dtype in options.types:
            file = Path(scratch) / f"{dtype}-.gguf"
            try:
                write_quantized(exact, file, dtype)
            except ShapeError as error:
                print(f"{dtype:8} {error}")
                continue
            report[dtype] = found = measure(file, rows, options.threads, isas)
            file.unlink()
            differences = "".join(f" {difference:+12.5%}" for difference in moved(found).values())
            print(f"{dtype:8} {found['stock']:10.6f}{differences}", flush=True)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", nargs="*", type=Path)
    parser.add_argument("--shared", type=Path, default=Path(__file__).resolve().parent.parent.parent / "shared")
    parser.add_argument("--types", type=lambda text: text.split(","), default=TYPES)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    models = options.shared / "models"
    documents = held_out_text(models / "training", options.tokens * 8)
    checkpoints = options.checkpoints or [models / "tiny-chat", models / "tiny-draft", packaged_model()]
    report = {
        path.name: measure_file(path, options, documents) if path.is_file() else compare(path, options, documents)
        for path in checkpoints
    }
    worst = max(abs(d) for types in report.values() for found in types.values() for d in moved(found).values())
    print(f"moved by at most {worst:.5%}; the limit is {LIMIT:.1%}")
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if worst >= LIMIT:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
