"""Write measured.json and importance.npz, the oracles that llama.cpp's programs measure.

python tests/references/make_measured_references.py FOLDER_OF_PROGRAMS
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))

from measured_cases import KEPT_LAYERS, N_CTX, TINY, model_of, write_files  # noqa: E402
from quire.gguf import GGUFReader  # noqa: E402
from quire.quantization import Wishes, plan, quantize_model  # noqa: E402

# With a cache in single precision and unrounded queries, only the order of sums differs.
EXACT = ("-fa", "off", "-ctk", "f32", "-ctv", "f32", "-t", "2")


def run(program: Path, folder: Path, *arguments: str) -> str:
    done = subprocess.run([str(program), *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{program.name} {' '.join(arguments)}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout + done.stderr


def number(output: str, pattern: str) -> float:
    found = re.findall(pattern, output)
    if not found:
        raise SystemExit(f"no {pattern} in\n{output[-3000:]}")
    return float(found[-1])


def importance(programs: Path, folder: Path) -> dict[str, np.ndarray]:
    """Return mean squares and counts by model and tensor."""
    made = {}
    for name in ("package", *TINY):
        text = "text.txt" if name == "package" else "bytes.txt"
        run(
            programs / "llama-imatrix", folder, "-m", str(model_of(folder, name)), "-f", text, "-o", "out.gguf",
            "-c", str(N_CTX), "--no-ppl", "--process-output", *EXACT,
        )  # fmt: skip
        reader = GGUFReader(folder / "out.gguf")
        for info in reader.tensors:
            if not info.name.endswith(".in_sum2") or (name == "package" and not info.name.startswith(KEPT_LAYERS)):
                continue
            base = info.name.removesuffix(".in_sum2")
            counts = reader.tensor(f"{base}.counts").numpy().reshape(-1)
            squares = reader.tensor(info.name).numpy().reshape(len(counts), -1)
            made[f"{name}/{base}"] = (squares / np.maximum(counts, 1)[:, None]).astype(np.float32)
            made[f"{name}/{base}/counts"] = counts.astype(np.int32)
    return made


def measured(programs: Path, folder: Path) -> dict[str, float]:
    program, model = programs / "llama-perplexity", str(model_of(folder, "package"))
    common = ("-m", model, *EXACT)
    found = {}
    chunks = run(program, folder, *common, "-f", "text.txt", "-c", str(N_CTX), "--kl-divergence-base", "base.kld")
    found["perplexity"] = number(chunks, r"PPL = ([\d.]+)")
    strided = run(program, folder, *common, "-f", "text.txt", "-c", "256", "-b", "256", "--ppl-stride", "64")
    found["strided"] = number(strided, r"\[\d+\]([\d.]+),")
    quantized = folder / "quantized.gguf"
    reader = GGUFReader(Path(model))
    quantize_model(reader, quantized, plan(reader, "Q3_K_S", Wishes(allow_requantize=True)))
    moved = run(
        program, folder, "-m", str(quantized), *EXACT, "-c", str(N_CTX), "--kl-divergence",
        "--kl-divergence-base", "base.kld",
    )  # fmt: skip
    found["kl_divergence"] = number(moved, r"Mean\s+KLD:\s+([\d.]+)")
    found["kl_p99"] = number(moved, r"99\.0%\s+KLD:\s+([\d.]+)")
    found["kl_perplexity"] = number(moved, r"Mean PPL\(Q\)\s+:\s+([\d.]+)")
    found["log_ratio"] = number(moved, r"Mean ln\(PPL\(Q\)/PPL\(base\)\)\s+:\s+(-?[\d.]+)")
    found["same_top"] = number(moved, r"Same top p:\s+([\d.]+)")
    found["rms"] = number(moved, r"RMS Δp\s+:\s+([\d.]+)")
    for tasks, file, pattern in (
        ("hellaswag", "hellaswag.txt", r"\n\d+\t([\d.]+)%"),
        ("winogrande", "winogrande.csv", r"\n\d+\t([\d.]+)\t"),
        ("multiple-choice", "choices.bin", r"\n\d+\t([\d.]+)(?=\n)"),
    ):
        for wanted in (30, 20):
            output = run(program, folder, *common, "-f", file, f"--{tasks}", f"--{tasks}-tasks", str(wanted))
            found[f"{tasks} {wanted}"] = number(output, pattern)
    return found


def main() -> None:
    programs = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder))
        made = importance(programs, Path(folder))
        np.savez_compressed(HERE / "importance.npz", **made)
        found = measured(programs, Path(folder))
    (HERE / "measured.json").write_text(json.dumps(found, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
