"""Measure the speed of tokenizers: Quire, Hugging Face `tokenizers` in one thread and optionally llama.cpp.

    python benchmarks/tokenizer_speed.py ../shared/vocab [--peer FOLDER_OF_LIBLLAMA] [--only throughput ...]

Parts: `throughput` on 1 MB of mixed text, in alternation, the best of the runs; `load`, the median time from a
vocabulary's file to the first id; `linear`, the CPU time for 4 MiB relative to 2 MiB, of mixed text and pathological
runs; `threads`, `encode_batch` by number of threads.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import tokenizers
from quire.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from test_tokenizer_families import rebuilt_scored, rebuilt_word_piece  # noqa: E402
from test_tokenizer_ids import rebuilt  # noqa: E402

NAMES = ["gpt-2", "llama-bpe", "qwen2", "starcoder", "mpt", "llama-spm", "phi-3", "bert-bge"]
SCRIPTS = (
    "Привет, как дела? Сегодня хорошая погода. 今日は良い天気ですね。機械学習は面白い。你好，世界！今天天气很好。"
    "안녕하세요, 세계! مرحبا بالعالم، كيف حالك؟ नमस्ते दुनिया, आप कैसे हैं? 👩‍👩‍👧‍👦🎉 żółć Übermut naïve ελληνικά ไทยแลนด์ "
    "12 345,67 €\n"
)
RUNS = {
    "one letter": "a",
    "spaces": " ",
    "line ends": "\n",
    "punctuation": "=",
    "accents": "é",
    "Han": "一二三",
    "joined emoji": "👩‍👩‍👧‍👦",
    "digits": "1",
    "two letters": "ab",
    "marks": "<|im_start|",
}


def mixed(n_bytes: int, seed: int = 1) -> str:
    """Return a mix of this repository's prose and code with other scripts, in stretches of up to 2000 characters."""
    prose = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
    code = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "python").rglob("*.py")))
    rng = random.Random(seed)
    parts: list[str] = []
    size = 0
    while size < n_bytes:
        source = rng.choice([prose, code, SCRIPTS * 20])
        at = rng.randrange(max(1, len(source) - 2000))
        parts.append(source[at : at + 2000])
        size += len(parts[-1].encode())
    return "".join(parts).encode()[:n_bytes].decode("utf-8", "ignore")


def timed(call: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    begin = clock()
    call()
    return clock() - begin


def oracle_of(tokenizer: Tokenizer, name: str) -> tokenizers.Tokenizer:
    if name == "bert-bge":
        return rebuilt_word_piece(tokenizer)
    return rebuilt_scored(tokenizer) if name in ("llama-spm", "phi-3") else rebuilt(tokenizer)


class ModelParameters(ctypes.Structure):
    """llama_model_params of llama.h in release 0.3.36."""

    _fields_ = [
        ("devices", ctypes.c_void_p), ("overrides", ctypes.c_void_p), ("integers", ctypes.c_int32 * 5),
        ("tensor_split", ctypes.c_void_p), ("progress", ctypes.c_void_p), ("progress_data", ctypes.c_void_p),
        ("kv_overrides", ctypes.c_void_p), ("vocab_only", ctypes.c_bool), ("flags", ctypes.c_bool * 5),
    ]  # fmt: skip


class Peer:
    """llama.cpp's tokenizer, called through its library."""

    def __init__(self, folder: Path, path: Path) -> None:
        self.library = library = ctypes.CDLL(str(folder / "libllama.so"))
        library.llama_model_default_params.restype = ModelParameters
        library.llama_model_load_from_file.argtypes = [ctypes.c_char_p, ModelParameters]
        library.llama_model_load_from_file.restype = ctypes.c_void_p
        library.llama_model_get_vocab.argtypes = [ctypes.c_void_p]
        library.llama_model_get_vocab.restype = ctypes.c_void_p
        parameters = library.llama_model_default_params()
        parameters.vocab_only = True
        self.quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
        library.llama_log_set(self.quiet, None)
        model = library.llama_model_load_from_file(str(path).encode(), parameters)
        if not model:
            raise SystemExit(f"llama.cpp cannot read {path}")
        self.vocabulary = ctypes.c_void_p(library.llama_model_get_vocab(model))

    def encode(self, data: bytes) -> int:
        """Return the number of ids."""
        ids = (ctypes.c_int32 * (len(data) + 16))()
        return int(
            self.library.llama_tokenize(
                self.vocabulary, data, len(data), ids, len(ids), ctypes.c_bool(False), ctypes.c_bool(False)
            )
        )


def throughput(folder: Path, peer: Path | None, runs: int) -> None:
    text = mixed(1_000_000)
    data = text.encode()
    print("| vocabulary | Quire MB/s | tokenizers MB/s | ratio | llama.cpp MB/s | ratio |\n|---|---|---|---|---|---|")
    for name in NAMES:
        path = folder / f"ggml-vocab-{name}.gguf"
        tokenizer = Tokenizer.from_gguf(path)
        oracle = oracle_of(tokenizer, name)
        calls: list[Callable[[], object]] = [
            lambda tokenizer=tokenizer: tokenizer.encode(text, add_special=False),
            lambda oracle=oracle: oracle.encode_batch_fast([text], add_special_tokens=False),
        ]
        if peer is not None:
            native = Peer(peer, path)
            calls.append(lambda native=native: native.encode(data))
        best = [min(column) for column in zip(*([timed(call) for call in calls] for _ in range(runs)), strict=True)]
        speeds = [len(data) / 1e6 / seconds for seconds in best]
        cells = [f"{speeds[0]:.1f}", f"{speeds[1]:.2f}", f"{speeds[0] / speeds[1]:.1f}"]
        cells += [f"{speeds[2]:.2f}", f"{speeds[0] / speeds[2]:.1f}"] if peer is not None else ["", ""]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def load(folder: Path, runs: int) -> None:
    for name in ("qwen2", "llama-bpe"):
        path = folder / f"ggml-vocab-{name}.gguf"
        times = sorted(timed(lambda path=path: Tokenizer.from_gguf(path).encode("a")) for _ in range(runs))
        n = Tokenizer.from_gguf(path).n_vocab
        print(f"{name}: {n} tokens ready in {statistics.median(times) * 1e3:.1f} ms (lowest {times[0] * 1e3:.1f})")


def linear(folder: Path, runs: int) -> None:
    worst = 0.0
    for name in ("gpt-2", "llama-bpe", "llama-spm", "bert-bge"):
        tokenizer = Tokenizer.from_gguf(folder / f"ggml-vocab-{name}.gguf")
        for kind in ["mixed", *RUNS]:
            whole = mixed(4 << 20) if kind == "mixed" else RUNS[kind] * ((4 << 20) // len(RUNS[kind].encode()))
            half = whole[: len(whole) // 2]
            pairs = [
                [timed(lambda text=text: tokenizer.encode(text), time.process_time) for text in (half, whole)]  # noqa: B023
                for _ in range(runs)
            ]
            once, twice = map(min, zip(*pairs, strict=True))
            worst = max(worst, twice / once)
            print(f"{name}, {kind}: {twice / once:.2f} ({twice * 1e3:.0f} ms for 4 MiB)", flush=True)
    print(f"worst: {worst:.2f}")


def threads(folder: Path, runs: int) -> None:
    tokenizer = Tokenizer.from_gguf(folder / "ggml-vocab-llama-bpe.gguf")
    texts = [mixed(200_000, seed) for seed in range(16)]
    times = {n: [] for n in (1, 2, 4)}
    for _ in range(runs):
        for n, found in times.items():
            found.append(timed(lambda n=n: tokenizer.encode_batch(texts, threads=n)))
    for n, found in times.items():
        print(f"{n} threads: {min(found) * 1e3:.1f} ms, {min(times[1]) / min(found):.2f} times one")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("vocab", type=Path, help="the folder of the vocabularies")
    parser.add_argument("--peer", type=Path, help="the folder of libllama.so")
    parser.add_argument("--runs", type=int, default=5)
    parts = ("throughput", "load", "linear", "threads")
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    arguments = parser.parse_args()
    if "throughput" in arguments.only:
        throughput(arguments.vocab, arguments.peer, arguments.runs)
    for part, run in (("load", load), ("linear", linear), ("threads", threads)):
        if part in arguments.only:
            run(arguments.vocab, arguments.runs)


if __name__ == "__main__":
    main()
