"""The same comparisons as test_models.py, with transformers computing its answers now.  Runs where torch is installed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from quire.convert import convert
from test_models import Runner, close
from tiny_checkpoints import CONFIGS, class_of, write_checkpoint

torch = pytest.importorskip("torch", reason="needs torch (CI installs torch==2.13.0)")
transformers = pytest.importorskip("transformers", reason="needs transformers")

REFERENCES = Path(__file__).resolve().parents[1] / "references"
pytestmark = [pytest.mark.python_only, pytest.mark.filterwarnings("ignore")]  # torch and transformers warn


def greedy(model: object, ids: list[int], n_new: int) -> list[int]:
    out = list(ids)
    with torch.no_grad():
        for _ in range(n_new):
            out.append(int(model(torch.tensor([out])).logits[0, -1].argmax()))  # type: ignore[operator]
    return out[len(ids) :]


ENCODERS = ("Bert", "Roberta", "XLMRoberta")  # test_encoders.py has them
DECODERS = [name for name in CONFIGS if not class_of(name).startswith(ENCODERS)]


@pytest.mark.parametrize("name", DECODERS)
def test_random_models(tmp_path: Path, name: str) -> None:
    write_checkpoint(tmp_path / "hf", name)
    convert(tmp_path / "hf", tmp_path / "x.gguf", "f32")
    runner = Runner(tmp_path / "x.gguf")
    model = (
        getattr(transformers, class_of(name))
        .from_pretrained(tmp_path / "hf", dtype=torch.float32, attn_implementation="eager")
        .eval()
    )
    rng = np.random.default_rng(11)
    for n in (1, 9, 70, min(130, runner.n_ctx)):
        ids = rng.integers(0, 256, n).tolist()
        with torch.no_grad():
            close(runner.logits(ids), model(torch.tensor([ids])).logits[0].numpy())
    assert runner.greedy(ids[:20], 24) == greedy(model, ids[:20], 24)


@pytest.mark.parametrize("name", ["tiny-chat", "tiny-draft"])
def test_trained_models(shared: Path, tmp_path: Path, name: str) -> None:
    folder = shared / "models" / name
    convert(folder, tmp_path / "x.gguf", "f32")
    runner = Runner(tmp_path / "x.gguf")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    stored = np.load(REFERENCES / "trained.npz")
    for i in range(24):
        ids = stored[f"{name}.prompt.{i}"].tolist()
        with torch.no_grad():
            close(runner.logits(ids), model(torch.tensor([ids])).logits[0].numpy())
        assert runner.greedy(ids, 48) == greedy(model, ids, 48)
