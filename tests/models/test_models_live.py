"""Compare models with transformers as test_models.py does, but compute its answers now.  Needs torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from quire.checkpoints.conversion import convert
from test_models import Runner, close
from tiny_checkpoints import CONFIGS, class_of, config_of, write_checkpoint

torch = pytest.importorskip("torch", reason="needs torch (CI installs torch==2.13.0)")
transformers = pytest.importorskip("transformers", reason="needs transformers")

from adapted_models import ADAPTED  # noqa: E402
from oracle_models import Oracle, no_inputs, oracle_of  # noqa: E402
from siblings import is_theirs  # noqa: E402

REFERENCES = Path(__file__).resolve().parents[1] / "references"
pytestmark = [pytest.mark.python_only, pytest.mark.filterwarnings("ignore")]  # torch and transformers warn


def live(name: str, folder: Path) -> Oracle:
    """Return transformers' model, from the checkpoint itself if transformers supports it, else with the same weights."""
    if not is_theirs(name, class_of(name)):
        return oracle_of(name)
    kind = getattr(transformers, class_of(name))
    model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    if (adapt := ADAPTED.get(class_of(name))) is not None:
        adapt(model, config_of(name))
    return Oracle(model, no_inputs, {})


@pytest.mark.parametrize("name", CONFIGS)
def test_random_models(tmp_path: Path, name: str) -> None:
    write_checkpoint(tmp_path / "hf", name)
    convert(tmp_path / "hf", tmp_path / "x.gguf", "f32")
    runner, oracle = Runner(tmp_path / "x.gguf"), live(name, tmp_path / "hf")
    rng = np.random.default_rng(11)
    for n in (1, 9, 70, 130):
        ids = rng.integers(0, 256, min(n, runner.most_tokens)).tolist()
        close(runner.answer(ids), oracle.answer(ids).numpy())
    if runner.executor.makes_logits:
        assert runner.greedy(ids[:20], 24) == oracle.greedy(ids[:20], 24)[0]


@pytest.mark.parametrize("name", ["tiny-chat", "tiny-draft"])
def test_trained_models(shared: Path, tmp_path: Path, name: str) -> None:
    folder = shared / "models" / name
    convert(folder, tmp_path / "x.gguf", "f32")
    runner = Runner(tmp_path / "x.gguf")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    oracle = Oracle(model, no_inputs, {})
    stored = np.load(REFERENCES / "trained.npz")
    for i in range(0, 24, 3):  # test_models.py compares stored answers for all of them
        ids = stored[f"{name}.prompt.{i}"].tolist()
        close(runner.logits(ids), oracle.answer(ids).numpy())
        assert runner.greedy(ids, 48) == oracle.greedy(ids, 48)[0]
