"""An output matrix with fewer rows than the embedding has: Apertus 1.5, which does not generate images and sounds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from quire.checkpoints.conversion import convert
from test_models import REFERENCES, Runner, close
from tiny_checkpoints import N_VOCAB, shapes_of, write_checkpoint

N_OUT = 100  # the other 172 tokens fill more than one part


def test_tokens_without_an_output_row_are_never_generated(tmp_path: Path) -> None:
    shapes = shapes_of("apertus1p5")
    write_checkpoint(
        tmp_path / "short", "apertus1p5", {**shapes, "lm_head.weight": [N_OUT, shapes["lm_head.weight"][1]]}
    )
    config = json.loads((tmp_path / "short/config.json").read_text(encoding="utf-8"))
    (tmp_path / "short/config.json").write_text(json.dumps({**config, "output_vocab_size": N_OUT}), encoding="utf-8")
    convert(tmp_path / "short", tmp_path / "short.gguf", "f32")
    stored = np.load(REFERENCES / "models" / "apertus1p5.npz")
    logits = Runner(tmp_path / "short.gguf").answer(stored["prompt"].tolist())
    assert logits.shape[1] == N_VOCAB
    close(logits[:, :N_OUT], stored["logits"][:, :N_OUT])
    assert (logits[:, N_OUT:] < -1e29).all()
