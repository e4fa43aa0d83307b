"""Requests held to share a batch, health with a version, models skipped in a folder.

Oracle: a list of what is sent, and the event loop's clock.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
from quire.server.service.model_files import find_models, skipped_models
from quire.server.worker.batch_delay import BatchDelay
from quire.server.worker.protocol import Generate, Work
from tiny_adapters import write_gguf_adapter, write_peft_adapter


def work(id_: int) -> Generate:
    return Generate(id_, "x", {})


def test_held_requests_are_sent_together() -> None:
    async def test() -> None:
        sent: list[list[int]] = []

        def send(held: list[Work]) -> None:
            sent.append([each.id for each in held])

        delay = BatchDelay(0.05, send)
        for id_ in (1, 2, 3):
            delay.add(work(id_), most=8)
        assert delay.remove(2)
        assert not delay.remove(9)
        assert (sent, len(delay)) == ([], 2)
        while not sent:
            await asyncio.sleep(0.01)
        assert (sent, len(delay)) == ([[1, 3]], 0)
        for id_ in (4, 5):
            delay.add(work(id_), most=2)
        assert sent == [[1, 3], [4, 5]]
        delay.add(work(6), most=2)
        delay.clear()
        await asyncio.sleep(0.1)
        assert sent == [[1, 3], [4, 5]]

    asyncio.run(test())


def test_skipped_models_are_named(tmp_path: Path) -> None:
    folder, outside = tmp_path / "models", tmp_path / "outside.gguf"
    folder.mkdir()
    outside.write_bytes(b"GGUF")
    (folder / "good.gguf").write_bytes(b"GGUF")
    (folder / "split-00001-of-00002.gguf").write_bytes(b"GGUF")
    (folder / "split-00002-of-00002.gguf").write_bytes(b"GGUF")
    (folder / "late-00002-of-00002.gguf").write_bytes(b"GGUF")
    (folder / "linked.gguf").symlink_to(outside)
    (folder / "dead.gguf").symlink_to(folder / "absent.gguf")
    (folder / "weights.safetensors").write_bytes(b"")
    (folder / "README.md").write_text("")
    (folder / "nested").mkdir()
    (folder / "nested" / "inner.gguf").write_bytes(b"GGUF")
    (folder / "empty").mkdir()
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint" / "config.json").write_text("{}")
    half = np.ones((64, 64), np.float32)
    write_gguf_adapter(folder / "style.gguf", {"x.lora_a": half, "x.lora_b": half})
    (write_peft_adapter(folder / "tone", {"x.lora_A": half, "x.lora_B": half}, {}) / "config.json").touch()
    assert sorted(find_models(folder)) == ["checkpoint", "good", "split"]
    skipped = skipped_models(folder)
    assert sorted(skipped) == [
        "dead.gguf", "late-00002-of-00002.gguf", "linked.gguf", "nested", "style.gguf", "tone", "weights.safetensors",
    ]  # fmt: skip
    assert all("LoRA adapter" in skipped[name] for name in ("style.gguf", "tone"))
    assert "outside" in skipped["linked.gguf"]
    assert "first part" in skipped["late-00002-of-00002.gguf"]
