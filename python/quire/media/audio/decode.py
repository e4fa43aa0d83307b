"""Decode audio that a client sent, to mono samples at the model's rate.

The bytes are hostile until proven otherwise:

- the length, rate and channels in the header are checked before samples are allocated,
- the samples are counted again while they are decoded, block by block, as headers lie,
- only the formats below are opened, and only their common encodings.
"""

from __future__ import annotations

import io
from types import ModuleType

import numpy as np
import numpy.typing as npt

from ...errors import RequestError, ShapeError, UnsupportedError
from .resample import Samples, resample

__all__ = ["MAX_BYTES", "MAX_PCM_BYTES", "MAX_SECONDS", "RATE", "decode_audio", "is_audio", "to_samples"]

RATE = 16_000
MAX_BYTES = 25 << 20
MAX_SECONDS = 600
# As float32 and all channels: 600 seconds of stereo at 48 kHz are 220 MiB.
MAX_PCM_BYTES = 256 << 20
MAX_CHANNELS = 8
RATES = (4_000, 192_000)
# Full scale is 1; far above it, powers overflow.
MAX_SAMPLE = 65_536.0

_BLOCK = 1 << 16
_NUMBERS = {"PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW"}
# Formats and encodings that libsndfile may recognize in a file of each kind.
_ENCODINGS = {
    "WAV": ({"WAV", "WAVEX"}, _NUMBERS),
    "FLAC": ({"FLAC"}, {"PCM_S8", "PCM_16", "PCM_24"}),
    "Ogg": ({"OGG"}, {"VORBIS", "OPUS"}),
    "MP3": ({"MP3"}, {"MPEG_LAYER_I", "MPEG_LAYER_II", "MPEG_LAYER_III"}),
}
# libsndfile's length of a stream whose header leaves it open.
_UNKNOWN = (1 << 63) - 1


def decode_audio(
    data: bytes,
    *,
    rate: int = RATE,
    max_bytes: int = MAX_BYTES,
    max_seconds: float = MAX_SECONDS,
    max_pcm_bytes: int = MAX_PCM_BYTES,
) -> Samples:
    """Decode a WAV, MP3, FLAC or Ogg (Vorbis, Opus) file; channels are averaged.

    A file that ends early gives the samples up to there, unless its decoder reports damage.

    Args:
        data: The file.
        rate: Samples a second of the result.
        max_bytes, max_seconds: Limits on the file.
        max_pcm_bytes: Limit on the decoded samples of all channels as float32.

    Returns:
        float32 array of shape [n_samples], with full scale at 1.

    Raises:
        RequestError: The format is unsupported, the file is damaged, or a limit is exceeded.
        UnsupportedError: soundfile is not installed.
    """
    if len(data) > max_bytes:
        raise RequestError(f"the audio takes {len(data)} bytes: at most {max_bytes} are accepted")
    kind = _kind_of(data)
    library = _soundfile()
    try:
        with library.SoundFile(io.BytesIO(data)) as sound:
            formats, encodings = _ENCODINGS[kind]
            if sound.format not in formats or sound.subtype not in encodings:
                raise RequestError(f"unsupported encoding {sound.subtype} in a {kind} file")
            limit = _check_header(sound.samplerate, sound.channels, max_seconds, max_pcm_bytes)
            if sound.frames != _UNKNOWN:
                _check_length(sound.frames, limit, sound.samplerate, sound.channels)
            # soundfile seeks after each read, which fails at the end of a file whose length was unknown.
            sound.seekable = lambda: False
            blocks, n_samples = [], 0
            while len(block := sound.read(_BLOCK, dtype="float32", always_2d=True)):
                n_samples += len(block)
                _check_length(n_samples, limit, sound.samplerate, sound.channels)
                blocks.append(block.mean(axis=1))
            source = sound.samplerate
    except RequestError:
        raise
    except Exception as error:  # decoders raise whatever a damaged file provokes
        # Texts of soundfile's errors show addresses; their type is enough.
        raise RequestError(f"damaged {kind} audio ({type(error).__name__})") from None
    samples = np.concatenate(blocks) if blocks else np.empty(0, np.float32)
    del blocks
    return _checked(samples, source, rate)


def to_samples(audio: npt.NDArray[np.generic], source: int, *, rate: int = RATE) -> Samples:
    """Convert the caller's samples to mono at ``rate``.

    Args:
        audio: [n_samples] or [n_samples, channels], as soundfile returns them: floats with full scale at 1, int16 or
            int32.
        source: Samples a second of ``audio``.
        rate: Samples a second of the result.

    Raises:
        RequestError: The audio is too long, or its rate is out of range.
        ShapeError: The array has another shape or dtype.
    """
    if not isinstance(audio, np.ndarray) or audio.dtype.kind not in "fi" or audio.ndim not in (1, 2):
        found = (
            f"dtype {audio.dtype} and shape {audio.shape}" if isinstance(audio, np.ndarray) else type(audio).__name__
        )
        raise ShapeError(f"audio of {found}: expected numbers [n_samples] or [n_samples, channels]")
    if audio.dtype.kind == "i" and audio.dtype.itemsize not in (2, 4):
        raise ShapeError(f"audio of dtype {audio.dtype}: expected float32, float64, int16 or int32")
    if isinstance(source, bool) or not isinstance(source, (int, np.integer)):
        raise ShapeError(f"sample rate {source!r:.40} is not an integer")
    channels = audio.shape[1] if audio.ndim == 2 else 1
    _check_length(len(audio), _check_header(int(source), channels, MAX_SECONDS, MAX_PCM_BYTES), int(source), channels)
    scale = 1.0 if audio.dtype.kind == "f" else 2.0 ** (1 - 8 * audio.dtype.itemsize)
    samples = audio.astype(np.float32) * np.float32(scale)
    return _checked(samples.mean(axis=1) if audio.ndim == 2 else samples, int(source), rate)


def _check_header(rate: int, channels: int, max_seconds: float, max_pcm_bytes: int) -> int:
    """Return how many samples of each channel are accepted."""
    if not RATES[0] <= rate <= RATES[1]:
        raise RequestError(f"sample rate {rate} is out of range: expected {RATES[0]} to {RATES[1]}")
    if not 1 <= channels <= MAX_CHANNELS:
        raise RequestError(f"the audio has {channels} channels: at most {MAX_CHANNELS} are accepted")
    return min(int(max_seconds * rate), max_pcm_bytes // (4 * channels))


def _check_length(n_samples: int, limit: int, rate: int, channels: int) -> None:
    if n_samples > limit:
        raise RequestError(
            f"the audio has {n_samples / rate:.0f} seconds or more: at most {limit / rate:.0f} are accepted "
            f"at {rate} Hz with {channels} channels"
        )


def _checked(samples: Samples, source: int, rate: int) -> Samples:
    if not len(samples):
        raise RequestError("the audio has no samples")
    # Written so that NaN fails too.
    if not (samples.max() <= MAX_SAMPLE and samples.min() >= -MAX_SAMPLE):
        raise RequestError("the audio has samples that are not finite, or far out of range")
    return resample(samples, source, rate)


def is_audio(data: bytes) -> bool:
    """Return True if a file begins like one of the formats that ``decode_audio`` reads."""
    try:
        _kind_of(data)
    except RequestError:
        return False
    return True


def _kind_of(data: bytes) -> str:
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return "WAV"
    if data.startswith(b"fLaC"):
        return "FLAC"
    if data.startswith(b"OggS"):
        return "Ogg"
    # The sync word of 11 bits, then a version and a layer, of which one code each is reserved.
    if data.startswith(b"ID3") or (
        len(data) > 2 and data[0] == 0xFF and data[1] >> 5 == 7 and data[1] & 0x18 != 0x08 and data[1] & 0x06
    ):
        return "MP3"
    raise RequestError("unsupported audio format: expected WAV, MP3, FLAC or Ogg")


def _soundfile() -> ModuleType:
    try:
        import soundfile
    except (ImportError, OSError):  # OSError: libsndfile is missing
        raise UnsupportedError('audio needs soundfile: pip install "quire-llm[media]"') from None
    module: ModuleType = soundfile
    return module
