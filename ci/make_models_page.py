"""Write docs/models.md: what every architecture is, and how far its tiny models are from transformers'.

    PYTHONPATH=python python ci/make_models_page.py

Needs the references of tests/references/models.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "tests" / "models")]
from quire.checkpoints.conversion import convert  # noqa: E402
from quire.gguf import GGUFReader  # noqa: E402
from quire.models import supported  # noqa: E402
from test_models import Runner  # noqa: E402
from tiny_checkpoints import CONFIGS, REFERENCES, write_checkpoint  # noqa: E402

HEAD = """# Models

Every architecture that Quire opens, as GGUF files name it. For each there are random tiny models. Their logits and
greedy tokens are compared with those that transformers computes with the same weights, by our own kernels and by ggml's
operators. The largest difference is that of any logit of a prompt of 40 tokens, relative to the largest; the tests
allow 0.001. Of encoders, vectors or scores are compared. Models that transformers does not have are compared with what
is put together of others' parts, or with their paper's formula (`tests/support`). `quire info --architectures` prints
the same list, and [models_llama_cpp.md](models_llama_cpp.md) compares with llama.cpp.
This page is written by `ci/make_models_page.py`.

## Limits

- `deepseek32` and `glm-dsa` refuse contexts longer than the number of tokens that the indexer picks (`index_topk`, 2048
  in published models). Up to there, attention to all tokens is the same computation.
- `bitnet` refuses checkpoint folders with `hidden_act: relu2`, transformers' default: GGUF files have no key for the
  activation, and llama.cpp computes SiLU.
- `modern-bert` refuses classifiers with `classifier_pooling: mean`.

Two classes of transformers compute something else than the model's publisher. Quire follows the publisher:

| architecture | publisher and Quire | transformers |
|---|---|---|
| `mpt` | ALiBi slopes use `alibi_bias_max` of the configuration | always 8 |
| `nemotron_h`, `nemotron_h_moe` | time steps are not clamped from below | clamped to `time_step_min` |

## Architectures

| architecture | what it is | transformers' classes | largest difference: ours, ggml's |
|---|---|---|---|
"""


def deviation(path: Path, name: str, kernels: str) -> float:
    """Of logits, or of an encoder's vectors or scores."""
    stored = np.load(REFERENCES / f"{name}.npz")
    found = Runner(path, kernels).answer(stored["prompt"].tolist())
    return float(np.abs(found - stored["logits"]).max() / np.abs(stored["logits"]).max())


def main() -> None:
    architectures = supported()
    worst: dict[str, list[tuple[float, float]]] = {arch.name: [] for arch in architectures}
    with tempfile.TemporaryDirectory() as scratch:
        for name in CONFIGS:
            folder, path = Path(scratch) / name, Path(scratch) / f"{name}.gguf"
            write_checkpoint(folder, name)
            convert(folder, path, "f32")
            arch = GGUFReader(path).metadata.text("general.architecture")
            worst[arch].append((deviation(path, name, "auto"), deviation(path, name, "stock")))
    lines = []
    for arch in architectures:
        rows = worst[arch.name]
        figures = [f"{max(one[i] for one in rows):.0e}" for i in (0, 1)] if rows else ["–"]
        names = ", ".join(arch.classes) or "–"
        description = arch.description.replace("|", "/")
        lines.append(f"| `{arch.name}` | {description} | {names} | {', '.join(figures)} |")
    (ROOT / "docs" / "models.md").write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
