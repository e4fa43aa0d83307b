"""Compare greedy tokens and logits of llama.cpp and Quire for the same GGUF file, for every architecture.

    python benchmarks/same_file_llama_cpp.py SOURCE BUILD [NAME ...] [--page OUT]

SOURCE is a checkout of llama.cpp and BUILD the folder of its libraries (``build/bin``), as ``build_peer.sh`` of the
shared data makes them.  The tiny random checkpoints of tests/tiny are converted to F32; both programs open the file,
read 8 prompts of 200 random tokens (encoders: 64) and generate 16 more.  Logits are compared until tokens differ; there
the gap between Quire's two best logits may be at most 0.1 % of the largest one.  For encoders, vectors are compared.
Where llama.cpp differs from transformers, llama_cpp_variants.py changes the checkpoint to a form that both interpret in
the same way.  Prints a table, and exits with 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent / "tests"
sys.path[:0] = [str(TESTS / "support"), str(TESTS / "models")]
from llama_cpp_peer import Peer  # noqa: E402
from llama_cpp_variants import VARIANTS  # noqa: E402
from quire.checkpoints.conversion import convert  # noqa: E402
from quire.errors import QuireError  # noqa: E402
from quire.gguf import GGUFReader  # noqa: E402
from test_models import Runner  # noqa: E402
from tiny_checkpoints import CONFIGS, N_VOCAB, shapes_of, write_checkpoint  # noqa: E402

PAGE = """\
# The same file in llama.cpp

Tiny random checkpoints of every architecture are converted to F32 and opened by both programs. Each program reads 8
prompts of 200 random tokens and generates 16 more, greedily. Encoders read 64 tokens, and their vectors are compared.

- The deviation is the largest difference of any logit, relative to the largest logit of its row. Values from 1e-4 to
  1e-3 come from llama.cpp's half-precision table for GELU.
- If tokens differ, the gap is the distance between Quire's two best logits, relative to the largest one.
- Where llama.cpp differs from transformers, Quire follows transformers. The remark explains the difference and how the
  two programs were compared anyway.

`benchmarks/same_file_llama_cpp.py` writes this page.

{table}

{total}
"""
Array = npt.NDArray[np.float32]

N_PROMPTS, N_TOKENS, N_NEW = 8, 200, 16
N_ENCODED = 64  # tokens of an encoder's prompt (one step), and of the source text of an encoder-decoder
GAP = 1e-3  # relative to the largest logit
# For logits in F32.  llama.cpp looks GELU up in a half-precision table, which costs up to 1e-3.
TOLERANCE = 3e-3


@dataclass
class Row:
    """A row of the table."""

    name: str
    arch: str = ""
    n_equal: int | None = None  # prompts with equal greedy tokens; None for an encoder
    deviation: float = float("nan")
    gaps: tuple[float, ...] = ()  # where tokens differ, relative to the largest logit
    failure: str = ""

    @property
    def is_equal(self) -> bool:
        variant = VARIANTS.get(self.name)
        tolerance = (variant.tolerance if variant else 0.0) or TOLERANCE
        return not self.failure and self.deviation <= tolerance and all(gap < GAP for gap in self.gaps)

    @property
    def is_unknown(self) -> bool:
        """Return whether llama.cpp does not know the architecture."""
        return "unknown model architecture" in self.failure

    def line(self) -> str:
        tokens = "vectors" if self.n_equal is None else f"{self.n_equal} of {N_PROMPTS}"
        gaps = ", ".join(f"{gap:.1e}" for gap in self.gaps)
        variant = VARIANTS.get(self.name)
        remarks = ("" if self.is_equal else "DIFFERENT", self.failure, variant.reason if variant else "")
        remark = "; ".join(each for each in remarks if each)
        deviation = "" if self.failure else f"{self.deviation:.0e}"
        return f"| `{self.arch}` | {self.name} | {'' if self.failure else tokens} | {deviation} | {gaps} | {remark} |"


def prompts_of(seed: int = 27) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [random.integers(5, 256, N_TOKENS).tolist() for _ in range(N_PROMPTS)]


def write_variant(folder: Path, name: str) -> None:
    """Write the tiny checkpoint in a form that both programs interpret in the same way."""
    variant, shapes = VARIANTS.get(name), shapes_of(name)
    if variant is None:
        return write_checkpoint(folder, name, shapes)
    write_checkpoint(folder, name, variant.shapes(shapes))
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for name, value in variant.fields.items():
        section, _, field = name.rpartition(".")
        (config[section] if section else config)[field] = value
    path.write_text(json.dumps(config))
    return None


def compare(name: str, prompts: list[list[int]], peers: tuple[Peer, Peer], work: Path) -> Row:
    """Compare one checkpoint; ``peers`` are for encoders and for other models."""
    row, variant = Row(name), VARIANTS.get(name)
    path = work / f"{name}.gguf"
    # llama.cpp recognizes some models by the name of their folder.
    folder = Path(tempfile.mkdtemp(prefix="x", dir=work))
    try:
        write_variant(folder, name)
        convert(folder, path, "f32")
        row.arch = GGUFReader(path).metadata.text("general.architecture")
        ours = Runner(path, variant.kernels if variant else "auto")
    except QuireError as error:
        row.failure = f"Quire: {error}"
        return row
    peer = peers[ours.executor.makes_logits]
    numbers = peer.numbers(path)
    if numbers is None:
        row.failure = f"llama.cpp: {peer.complaint(path)}".replace(f"{work}/", "")
    elif not ours.executor.makes_logits:
        found = np.concatenate([ours.answer(ids[:N_ENCODED]).reshape(-1) for ids in prompts])
        compare_vectors(row, found, numbers)
    else:
        theirs = numbers.reshape(N_PROMPTS, -1, N_VOCAB)
        row.n_equal, deviations = 0, []
        for ids, rows in zip(prompts, theirs, strict=True):
            n_source = 0 if ours.decoder_start is None else N_ENCODED
            if n_source > 0:
                ours.encode(ids[:n_source])
            deviation, gap = compare_answers(ours, ids[n_source:], rows)
            deviations.append(deviation)
            row.n_equal += gap is None
            row.gaps += () if gap is None else (gap,)
        row.deviation = float(max(deviations))
    return row


def compare_vectors(row: Row, ours: Array, theirs: Array) -> None:
    if len(ours) != len(theirs):
        row.failure = f"{len(ours)} numbers in Quire but {len(theirs)} in llama.cpp"
        return
    row.deviation = float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def compare_answers(ours: Runner, ids: list[int], theirs: Array) -> tuple[float, float | None]:
    """Return the largest deviation of a logit, and the gap between the two best where tokens differ, or None.

    ``theirs [tokens, n_vocab]``: the prompt's logits, then those of each token of the answer.
    """
    found = ours.logits(ids)
    text, deviation = list(ids), deviation_of(found, theirs[: len(ids)])
    for row in theirs[len(ids) - 1 :]:
        last = found[-1]
        deviation = max(deviation, deviation_of(last, row))
        if last.argmax() != row.argmax():
            second, best = np.sort(last)[-2:]
            return deviation, float((best - second) / np.abs(last).max())
        text.append(int(last.argmax()))
        found = ours.logits(text, len(text) - 1)
    return deviation, None


def deviation_of(found: Array, expected: Array) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("build", type=Path)
    parser.add_argument("names", nargs="*", default=list(CONFIGS))
    parser.add_argument("--page", type=Path, help="also write a page with the table there")
    arguments = parser.parse_args()
    lines = [
        "| architecture | checkpoint | equal answers | largest deviation | gaps | remark |",
        "|---|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    rows, prompts = [], prompts_of()
    with tempfile.TemporaryDirectory() as folder:
        short = [ids[:N_ENCODED] for ids in prompts]
        of = partial(Peer, arguments.source, arguments.build, Path(folder))
        peers = of(short, n_new=0), of(prompts, n_new=N_NEW)
        for name in arguments.names:
            rows.append(compare(name, prompts, peers, Path(folder)))
            if not rows[-1].is_unknown:
                lines.append(rows[-1].line())
                print(lines[-1], flush=True)
    unknown = sorted({f"`{row.arch}`" for row in rows if row.is_unknown})
    rows = [row for row in rows if not row.is_unknown]
    equal = {row.arch for row in rows if row.is_equal}
    total = f"{len(equal)} architectures are equal in both, {datetime.now(timezone.utc):%Y-%m-%d}."
    if unknown:
        total += f"\n\nThis release of llama.cpp does not know {', '.join(unknown)}."
    print(f"\n{total}")
    if arguments.page:
        arguments.page.write_text(PAGE.format(table="\n".join(lines), total=total), encoding="utf-8")
    raise SystemExit(any(not row.is_equal for row in rows))


if __name__ == "__main__":
    main()
