"""Checkpoints saved by transformers, for each class that Quire converts, give the same answers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from quire.checkpoints.conversion import convert
from quire.models import supported
from quire.models.decoder_heads import HF as DECODER_HEADS
from quire.models.multimodal import HF as MULTIMODAL
from test_models import Runner, close
from tiny_checkpoints import CONFIGS, MADE_TENSORS, class_of, weight_of, write_checkpoint, write_safetensors

torch = pytest.importorskip("torch", reason="needs torch (CI installs torch==2.13.0)")
transformers = pytest.importorskip("transformers", reason="needs transformers")

from adapted_models import ADAPTED  # noqa: E402
from oracle_models import Oracle, no_inputs  # noqa: E402
from safetensors import safe_open  # noqa: E402
from siblings import is_theirs  # noqa: E402

pytestmark = [pytest.mark.python_only, pytest.mark.filterwarnings("ignore")]  # torch and transformers warn

Array = npt.NDArray[np.float32]
IDS = [3, 250, 17, 99, 12, 64, 7, 200, 31, 5]
SCORING = [f"{family}ForSequenceClassification" for family in ("Qwen3", "Qwen2", "Llama", "Gemma2")]
CLASSES = sorted(
    name
    for arch in supported()
    for name in arch.classes
    if hasattr(transformers, name)
    and name not in SCORING  # tested in test_rerankers.py
    and name not in DECODER_HEADS  # tested in test_decoder_heads_live.py
    and name != "ColQwen2ForRetrieval"  # tested in media/test_page_vectors_live.py
    and name not in MULTIMODAL  # tested in test_multimodal_live.py
)


def tiny_of(class_name: str) -> str | None:
    """Return a tiny configuration of the class, or of another class of the same model."""
    own = [name for name in CONFIGS if class_of(name) == class_name and is_theirs(name, class_name)]
    kind = getattr(transformers, class_name).config_class
    same = [
        name
        for name in CONFIGS
        if is_theirs(name, class_of(name)) and getattr(transformers, class_of(name)).config_class is kind
    ]
    return next(iter([*own, *same]), None)


@pytest.mark.parametrize("class_name", CLASSES)
def test_a_checkpoint_that_transformers_saves_opens(tmp_path: Path, class_name: str) -> None:
    name = tiny_of(class_name)
    if name is None:
        pytest.skip("transformers' class of the name is another model's")
    write_checkpoint(tmp_path / "tiny", name)
    kind, saved = getattr(transformers, class_name), tmp_path / "saved"
    config = transformers.AutoConfig.from_pretrained(tmp_path / "tiny")
    kind._from_config(config).float().save_pretrained(saved)
    for path in (tmp_path / "tiny").glob("tokenizer*"):
        shutil.copy(path, saved)
    with safe_open(saved / "model.safetensors", "np") as file:
        weights = {tensor: file.get_tensor(tensor) for tensor in file.keys()}  # noqa: SIM118
    made = {tensor: weight_of(name, tensor, values.shape) for tensor, values in weights.items() if keeps(tensor)}
    write_safetensors(saved / "model.safetensors", weights | made)
    model = kind.from_pretrained(saved, dtype=torch.float32, attn_implementation="eager").eval()
    convert(saved, tmp_path / "x.gguf", "f32")
    close(Runner(tmp_path / "x.gguf", threads=1).answer(IDS), answer_of(model, class_name))


def keeps(tensor: str) -> bool:
    """Return whether a tensor's values may be replaced, because they do not follow from the configuration."""
    return not tensor.endswith(MADE_TENSORS)


def answer_of(model: Any, class_name: str) -> Array:
    """Return transformers' answer; for masked language models, the vectors before the head."""
    if class_name in ADAPTED:
        ADAPTED[class_name](model, {})
    model = model.base_model if class_name.endswith("MaskedLM") else model
    return np.asarray(Oracle(model, no_inputs, {}).answer(IDS).numpy(), np.float32)
