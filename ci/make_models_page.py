"""Write docs/models.md: what every architecture is, and how far its tiny models are from transformers'.

    PYTHONPATH=python python ci/make_models_page.py

Needs the references of tests/references/models.  Encoders are compared by their own tests and have no figure here.
"""

from __future__ import annotations

import ast
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))
from quire.convert import convert  # noqa: E402
from quire.gguf import GGUFReader  # noqa: E402
from quire.models import architectures  # noqa: E402
from quire.models.registry import model_file  # noqa: E402
from test_models import Runner  # noqa: E402
from tiny_checkpoints import CONFIGS, REFERENCES, class_of, write_checkpoint  # noqa: E402

HEAD = """# Models

Every architecture that Quire opens, as GGUF files name it. For each there are random tiny models. Their logits and
greedy tokens are compared with those that transformers computes with the same weights, by our own kernels and by ggml's
operators. The largest difference is that of any logit of a prompt of 40 tokens, relative to the largest; the tests
allow 0.001.
This page is written by `ci/make_models_page.py`.

| architecture | what it is | transformers' classes | largest difference: ours, ggml's |
|---|---|---|---|
"""


def sentence(module: str) -> str:
    """The first line of a model file."""
    text = ast.get_docstring(ast.parse((ROOT / "python/quire/models" / f"{module}.py").read_text(encoding="utf-8")))
    return (text or "").split("\n", 1)[0].rstrip(".").replace("|", "/")


def deviation(path: Path, name: str, kernels: str) -> float | None:
    """None for models that end with vectors."""
    stored = np.load(REFERENCES / f"{name}.npz")
    if "logits" not in stored or "greedy" not in stored:
        return None
    found = Runner(path, kernels).logits(stored["prompt"].tolist())
    return float(np.abs(found - stored["logits"]).max() / np.abs(stored["logits"]).max())


def main() -> None:
    classes: dict[str, set[str]] = {arch: set() for arch in architectures()}
    worst: dict[str, list[tuple[float, float]]] = {arch: [] for arch in architectures()}
    with tempfile.TemporaryDirectory() as scratch:
        for name in CONFIGS:
            folder, path = Path(scratch) / name, Path(scratch) / f"{name}.gguf"
            write_checkpoint(folder, name)
            convert(folder, path, "f32")
            arch = GGUFReader(path).metadata.text("general.architecture")
            classes[arch].add(class_of(name))
            ours, stock = deviation(path, name, "auto"), deviation(path, name, "stock")
            if ours is not None and stock is not None:
                worst[arch].append((ours, stock))
    lines = []
    for arch in architectures():
        figures = [f"{max(one[i] for one in worst[arch]):.0e}" for i in (0, 1)] if worst[arch] else ["–"]
        names = ", ".join(sorted(classes[arch])) or "–"
        lines.append(f"| `{arch}` | {sentence(model_file(arch) or arch)} | {names} | {', '.join(figures)} |")
    (ROOT / "docs" / "models.md").write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
