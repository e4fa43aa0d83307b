"""Videos as frames: lists of images, or files, which need PyAV: ``pip install "quire-llm[video]"``."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import QuireError, RequestError, ShapeError, UnsupportedError
from .decode import MAX_PIXELS, Rgb, decode_base64, decode_image

__all__ = ["FRAME_RATE", "MAX_FRAMES", "Video", "decode_jpegs", "decode_video", "in_words", "video_of"]

FRAME_RATE = 2.0  # frames per second of lists without a rate, as Qwen's tools assume
MAX_FRAMES = 768  # that a model reads
MAX_FILE_FRAMES = 200_000
MAX_BYTES = 1 << 30  # all frames that a model reads


@dataclass(frozen=True)
class Video:
    """Frames that a model reads.

    Attributes:
        frames: uint8 [n, height, width, 3].
        times: Seconds from the beginning to each frame.
        rate: Frames per second, of these frames.
        duration: Seconds of the file; None: not known.
    """

    frames: npt.NDArray[np.uint8]
    times: tuple[float, ...]
    rate: float
    duration: float | None = None


def video_of(frames: Sequence[Rgb], rate: float = FRAME_RATE) -> Video:
    """Return a video of frames in equal distances.

    Raises:
        RequestError: There are too many frames, or none; the rate is out of range.
        ShapeError: The frames differ in size.
    """
    _check_number(len(frames))
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0.001 <= rate <= 1000:
        raise RequestError(f"fps {rate!r:.40} is out of range: expected 0.001 to 1000")
    shapes = {frame.shape for frame in frames}
    if len(shapes) > 1:
        raise ShapeError(f"the frames of a video differ in size: {sorted(shapes)[:2]}")
    return Video(np.stack(frames), tuple(i / rate for i in range(len(frames))), float(rate))


def decode_jpegs(url: str, rate: float = FRAME_RATE) -> Video:
    """Return the video of a ``data:video/jpeg;base64,...,...`` URL, which holds an image for each frame."""
    frames = url.split(",", MAX_FRAMES + 1)[1:]
    _check_number(len(frames))
    return video_of([decode_image(decode_base64(frame, max_bytes=MAX_BYTES, what="frame")) for frame in frames], rate)


def decode_video(data: bytes, pick: Callable[[int, float], Sequence[int]]) -> Video:
    """Decode some frames of an MP4, MOV, WebM, Matroska or AVI file.

    Args:
        data: The file.
        pick: Returns the numbers of the frames to decode, ascending, of the number of all frames and their rate.

    Raises:
        RequestError: The format is unsupported, the file is damaged, or its frames are too large or too many.
        UnsupportedError: PyAV is not installed.
    """
    container_format, av = _format_of(data), _av()
    try:
        # With a named format, FFmpeg opens no playlists, which may name other files.
        with av.open(io.BytesIO(data), format=container_format) as container:
            return _read(container, pick)
    except QuireError:
        raise
    except Exception as error:  # decoders raise whatever a damaged file provokes
        raise RequestError(f"damaged video ({type(error).__name__})") from None


def _read(container: Any, pick: Callable[[int, float], Sequence[int]]) -> Video:
    stream = next(iter(container.streams.video), None)
    if stream is None:
        raise RequestError("the file has no video stream")
    width, height = stream.codec_context.width, stream.codec_context.height
    if not 0 < width * height <= MAX_PIXELS:
        raise RequestError(f"the video has frames of {width}x{height} pixels: at most {MAX_PIXELS} are accepted")
    n_frames = stream.frames or _n_packets(container, stream)
    rate = float(stream.average_rate or stream.guessed_rate or 0)
    if not 0 < n_frames <= MAX_FILE_FRAMES or not rate > 0:
        raise RequestError(f"the video has {n_frames} frames, {rate} a second: at most {MAX_FILE_FRAMES} are accepted")
    wanted = [i for i in pick(n_frames, rate) if i < n_frames]
    _check_number(len(wanted))
    if len(wanted) * width * height * 3 > MAX_BYTES:
        raise RequestError(f"{len(wanted)} frames of {width}x{height} pixels are over {MAX_BYTES} bytes")
    rest, frames = set(wanted), {}
    for i, frame in enumerate(container.decode(stream)):
        if i in rest:
            frames[i] = frame.to_ndarray(format="rgb24")
            rest.discard(i)
        if not rest or i >= MAX_FILE_FRAMES:
            break
    kept = [i for i in wanted if i in frames]
    if not kept or len({frames[i].shape for i in kept}) > 1:
        raise RequestError("damaged video (frames are missing, or differ in size)")
    return Video(
        np.stack([frames[i] for i in kept]), tuple(i / rate for i in kept), len(kept) / n_frames * rate, n_frames / rate
    )


def _n_packets(container: Any, stream: Any) -> int:
    """Count the frames of a file whose header does not tell; Matroska's does not."""
    n = sum(1 for packet in container.demux(stream) if packet.size)
    container.seek(0)
    return n


def _check_number(n: int) -> None:
    if not 0 < n <= MAX_FRAMES:
        raise RequestError(f"the video has {'no frames' if n == 0 else 'too many frames'}: expected 1 to {MAX_FRAMES}")


def _format_of(data: bytes) -> str:
    if data[4:8] == b"ftyp":
        return "mp4"
    if data.startswith(b"\x1a\x45\xdf\xa3"):
        return "matroska"
    if data[:4] == b"RIFF" and data[8:12] == b"AVI ":
        return "avi"
    raise RequestError("unsupported video format: expected MP4, MOV, WebM, Matroska or AVI")


def _av() -> ModuleType:
    try:
        import av
    except ImportError:
        raise UnsupportedError('video files need PyAV: pip install "quire-llm[video]"') from None
    module: ModuleType = av
    return module


_ONES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
_ONES += [f"{stem}teen" for stem in ("thir", "four", "fif", "six", "seven", "eigh", "nine")]
_TENS = [f"{stem}ty" for stem in ("twen", "thir", "for", "fif", "six", "seven", "eigh", "nine")]


def in_words(n: int) -> str:
    """Return an English number below 1000, as prompts with videos have it."""
    if n >= 100:
        rest = f" and {in_words(n % 100)}" if n % 100 else ""
        return f"{_ONES[n // 100]} hundred{rest}"
    if n < 20:
        return _ONES[n]
    return _TENS[n // 10 - 2] + (f"-{_ONES[n % 10]}" if n % 10 else "")
