"""Videos: frames that are read of files, their patches, and what is refused."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_processor_cases import picture
from quire.engine.requests.media import data_of
from quire.errors import RequestError, ShapeError, UnsupportedError
from quire.media import open_processor
from quire.media.processors.qwen_vl import video_resize
from quire.media.video import MAX_FRAMES, Video, decode_video, in_words, video_of
from quire.models.media.idefics3 import Idefics3
from quire.models.media.qwen2vl import Qwen2Vl
from quire.models.media.qwen3vl import Qwen3Vl

images = pytest.importorskip("PIL.Image")


def without_weights(cls: Any, **fields: object) -> Any:
    model = cls.__new__(cls)
    vars(model).update(fields)
    return model


QWEN2, QWEN3, SMOLVLM = (without_weights(cls) for cls in (Qwen2Vl, Qwen3Vl, Idefics3))


@pytest.mark.parametrize(
    ("n_frames", "rate", "model", "n", "first"),
    [
        # Recorded from transformers' video processors, at 2 frames a second (SmolVLM: 1).
        (3, 30, QWEN3, 3, [0, 1, 2]), (3, 30, QWEN2, 2, [0, 1]), (10, 30, QWEN2, 4, [0, 2, 5]),
        (100, 30, QWEN2, 6, [0, 16, 33]), (100, 30, SMOLVLM, 3, [0, 49, 99]), (301, 29.97, QWEN3, 20, [0, 16, 32]),
        (50000, 25, QWEN3, 768, [0, 65, 130]), (50000, 25, SMOLVLM, 64, [25, 817, 1610]),
    ],
)  # fmt: skip
def test_frames_of_files(n_frames: int, rate: float, model: Any, n: int, first: list[int]) -> None:
    found = list(model.frames_of(n_frames, rate))
    assert (len(found), found[: len(first)]) == (n, first)
    assert found == sorted(set(found))
    assert found[-1] < n_frames


def test_sizes() -> None:
    # Recorded from transformers' video processor of Qwen3-VL, in patches of 16 pixels.
    for n_frames, size, grid in ((7, (97, 211), (6, 14)), (20, (1080, 1920), (52, 92)), (2, (480, 640), (30, 40))):
        height, width = video_resize(n_frames, *size, 32, min_pixels=4096, max_pixels=25165824)
        assert (height // 16, width // 16) == grid


def test_patches_of_pairs() -> None:
    config = {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 16, "image_mean": [0.5] * 3}
    processor = open_processor({**config, "image_std": [0.5] * 3}, patch_size=16, merge=2)
    model = without_weights(Qwen3Vl, processor=processor, patch_size=16, merge=2, video_limits=(4096, 25165824))
    frames = [picture(64, 96) // (i + 1) for i in range(3)]
    found = np.concatenate([view.patches for view in model.video(video_of(frames)).views()])
    # transformers' axes: pair, frame, channel, then rows and columns of squares, patches and pixels.
    pixels = (np.stack([*frames, frames[-1]]) / 255 - 0.5) / 0.5
    split = pixels.transpose(0, 3, 1, 2).reshape(2, 2, 3, 2, 2, 16, 3, 2, 16)
    expected = split.transpose(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(2 * 24, -1)
    assert np.abs(found - expected).max() < 1e-6


def test_numbers_in_words() -> None:
    words = {0: "zero", 12: "twelve", 15: "fifteen", 18: "eighteen", 40: "forty", 64: "sixty-four", 80: "eighty"}
    words |= {100: "one hundred", 768: "seven hundred and sixty-eight", 13: "thirteen", 50: "fifty", 30: "thirty"}
    assert {n: in_words(n) for n in words} == words


def jpeg(height: int, width: int) -> str:
    file = io.BytesIO()
    images.fromarray(picture(height, width)).save(file, "JPEG")
    return base64.b64encode(file.getvalue()).decode()


def test_parts() -> None:
    def read(video: object, **more: object) -> Any:
        return data_of("video", {"type": "video_url", "video_url": video, **more}, "here")

    by_url = read({"url": f"data:video/jpeg;base64,{jpeg(20, 30)},{jpeg(20, 30)}"}, fps=4)
    assert (by_url.frames.shape, by_url.times) == ((2, 20, 30, 3), (0.0, 0.25))
    assert read(np.zeros((3, 8, 9, 3), np.uint8)).frames.shape == (3, 8, 9, 3)
    assert read([images.new("RGB", (5, 4))] * 2).rate == 2
    assert read({"url": "data:video/mp4;base64,AAAA"}) == b"\0\0\0"
    refused: list[tuple[object, type[Exception], str]] = [
        ("cat.mp4", RequestError, "pathlib"), ("https://example.org/a.mp4", RequestError, "data"), ([], RequestError, "no frames"),
        ([picture(4, 4)] * (MAX_FRAMES + 1), RequestError, "769"), ([picture(4, 4), picture(4, 5)], ShapeError, "differ"),
        ({"url": "data:video/jpeg;base64," + "," * 800}, RequestError, "too many"), (3, ShapeError, "int"),
    ]  # fmt: skip
    for video, error, match in refused:
        with pytest.raises(error, match=match):
            read(video)
    with pytest.raises(RequestError, match="fps"):
        read([picture(4, 4)], fps=0)


@pytest.mark.parametrize("kind", ["image", "audio", "video"])
def test_missing_files_are_named(kind: Any, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=f"the {kind} '.*absent'"):
        data_of(kind, {"type": kind, kind: tmp_path / "absent"}, "here")


def test_files() -> None:
    with pytest.raises(RequestError, match="format"):
        decode_video(b"#EXTM3U\nfile:///etc/passwd", QWEN3.frames_of)
    try:
        import av
    except ImportError:
        with pytest.raises(UnsupportedError, match="PyAV"):
            decode_video(b"\0\0\0\x18ftypisom", QWEN3.frames_of)
        return
    for name, codec in (("mp4", "mpeg4"), ("matroska", "mpeg4"), ("avi", "mjpeg")):
        file = io.BytesIO()
        with av.open(file, "w", format=name) as container:
            stream = container.add_stream(codec, rate=10)
            stream.width, stream.height, stream.pix_fmt = 64, 48, "yuvj420p" if codec == "mjpeg" else "yuv420p"
            for i in range(30):
                frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 8 * i, np.uint8), format="rgb24")
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
        found = decode_video(file.getvalue(), QWEN3.frames_of)
        assert isinstance(found, Video)
        assert (found.frames.shape, round(found.times[-1], 6), found.rate) == ((6, 48, 64, 3), 2.9, 2)
        means = found.frames.mean(axis=(1, 2, 3))
        assert np.abs(means - [8 * i for i in QWEN3.frames_of(30, 10)]).max() < 4
        with pytest.raises(RequestError, match=r"damaged|frames"):
            decode_video(file.getvalue()[:200], QWEN3.frames_of)
