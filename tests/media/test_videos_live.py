"""Answers about videos equal transformers', with random weights."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from image_processor_cases import picture
from quire import LLM, SamplingParams
from quire.media.video import video_of
from quire.models.media import MediaModel
from tiny_media import FIRST_MARK, family

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
VideoMetadata = import_module("transformers.video_utils").VideoMetadata

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
FRAMES = [picture(64, 96) // (i + 1) for i in range(5)]
RATE = 0.4


def inputs(name: str, model: MediaModel, tokens: Any, image: Any) -> dict[str, Any]:
    """Return what transformers' ``generate`` takes besides ids, for one image and one video."""
    views = list(model.video(video_of(FRAMES, RATE)).views())
    if name == "smolvlm":
        pixels = [view.patches.reshape(8, 8, 3, 8, 8).transpose(2, 0, 3, 1, 4).reshape(3, 64, 64) for view in views]
        return {"pixel_values": torch.from_numpy(np.stack(pixels))[None]}
    (still,) = model.views(image)
    image_pad, video_pad = (FIRST_MARK + family(name).marks.index(f"<|{kind}_pad|>") for kind in ("image", "video"))
    found = {
        "mm_token_type_ids": (tokens == image_pad).int() + 2 * (tokens == video_pad).int(),
        "pixel_values": torch.from_numpy(still.patches),
        "image_grid_thw": torch.tensor([[1, still.n_rows, still.n_cols]]),
        "pixel_values_videos": torch.from_numpy(np.concatenate([view.patches for view in views])),
        "video_grid_thw": torch.tensor([[len(views), views[0].n_rows, views[0].n_cols]]),
    }
    if name == "qwen25vl":
        found["second_per_grid_ts"] = torch.tensor([2 / RATE])
    return found


def written_by_transformers(name: str, n_tokens: int) -> str:
    """Return what transformers' processor writes for the video, with a letter for each of its rows."""
    metadata = VideoMetadata(total_num_frames=len(FRAMES), fps=RATE, frames_indices=list(range(len(FRAMES))))
    if name == "smolvlm":
        module = import_module("transformers.models.smolvlm.processing_smolvlm")
        tokens = SimpleNamespace(
            image_seq_len=n_tokens, image_token="x", fake_image_token="<fake_token_around_image>",
            global_image_token="<global-img>",
        )  # fmt: skip
        given = {"pixel_values": np.zeros((1, len(FRAMES))), "video_metadata": [metadata]}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "num2words", {len(FRAMES): "five"}.get, raising=False)
            return str(module.SmolVLMProcessor.replace_video_token(tokens, given, 0))
    processor = transformers.Qwen3VLProcessor
    tokens = SimpleNamespace(
        video_processor=SimpleNamespace(merge_size=1, temporal_patch_size=2), video_token="x",
        vision_start_token="<|vision_start|>", vision_end_token="<|vision_end|>",
        _calculate_timestamps=lambda *args: processor._calculate_timestamps(None, *args),
    )  # fmt: skip
    given = {"video_grid_thw": np.array([[3, 1, n_tokens]]), "video_metadata": [metadata]}
    return str(processor.replace_video_token(tokens, given, 0))


@pytest.mark.parametrize("name", ["qwen2vl", "qwen25vl", "qwen3vl", "qwen35", "smolvlm"])
def test_greedy_answers(name: str, tmp_path: Path) -> None:
    found = family(name)
    oracle = found.make()
    found.save(oracle, tmp_path)
    image = picture(64, 64)
    video = {"type": "video", "video": FRAMES, "fps": RATE}
    parts: list[dict[str, Any]] = [video, {"type": "text", "text": "what moves?"}]
    if name != "smolvlm":
        parts = [{"type": "image", "image": image}, {"type": "text", "text": " and "}, *parts]
    with LLM(tmp_path, mmproj="auto", kv_dtype="f32", threads=1, n_ctx=2048) as llm:
        result = llm.chat([{"role": "user", "content": parts}], GREEDY)
        ids = result.prompt_token_ids
        tokens = torch.tensor([ids])
        model = llm._prompts._media.encoders["video"].model
        given, item = inputs(name, model, tokens, image), model.video(video_of(FRAMES, RATE))
    if name in ("qwen3vl", "smolvlm"):
        written = "".join("x" * part if isinstance(part, int) else part for part in item.markup)
        assert written == written_by_transformers(name, max(part for part in item.markup if isinstance(part, int)))
    with torch.no_grad():
        out = oracle.generate(
            input_ids=tokens, attention_mask=torch.ones_like(tokens), do_sample=False, max_new_tokens=8,
            min_new_tokens=8, eos_token_id=None, pad_token_id=258, **given,
        )  # fmt: skip
    assert result.choices[0].token_ids == out[0, len(ids) :].tolist()
