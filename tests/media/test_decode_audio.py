"""Audio of clients: what is decoded, and what is refused before memory is spent on it."""

from __future__ import annotations

import base64
import io
import struct
import tracemalloc

import numpy as np
import pytest
from audio_cases import sound
from quire.errors import RequestError, ShapeError
from quire.media import decode_data_url
from quire.media.audio import decode_audio, resample, to_samples

soundfile = pytest.importorskip("soundfile")


def encoded(samples: np.ndarray, rate: int, kind: str, encoding: str | None = None) -> bytes:
    stream = io.BytesIO()
    soundfile.write(stream, samples, rate, format=kind, subtype=encoding)
    return stream.getvalue()


def wav_header(
    *, rate: int = 16_000, channels: int = 1, n_bytes: int = 0, bits: int = 16, code: int = 1, align: int | None = None
) -> bytes:
    align = channels * bits // 8 if align is None else align
    chunk = struct.pack("<HHIIHH", code, channels, rate, rate * align & 0xFFFFFFFF, align, bits)
    return (
        b"RIFF" + struct.pack("<I", 0xFFFFFFFF) + b"WAVEfmt \x10\0\0\0" + chunk + b"data" + struct.pack("<I", n_bytes)
    )


def flac_of(seconds: int, *, rate: int = 16_000, channels: int = 1, n_told: int | None = None) -> bytes:
    """Return silence, which takes a few bytes a block; ``n_told`` replaces the number of samples in the header."""
    data = bytearray(encoded(np.zeros((seconds * rate, channels), np.int16), rate, "FLAC"))
    if n_told is not None:
        data[21] = data[21] & 0xF0 | n_told >> 32
        data[22:26] = struct.pack(">I", n_told & 0xFFFFFFFF)
    return bytes(data)


@pytest.mark.parametrize("encoding", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"])
def test_wav_returns_its_samples(encoding: str) -> None:
    found = decode_audio(encoded(sound(2_000), 16_000, "WAV", encoding))
    assert found.dtype == np.float32
    assert np.abs(found - sound(2_000)).max() <= (2**-7 if encoding == "PCM_U8" else 2**-15)


@pytest.mark.parametrize(
    ("kind", "encoding", "rate"),
    [("FLAC", "PCM_16", 44_100), ("OGG", "VORBIS", 22_050), ("OGG", "OPUS", 48_000), ("MP3", None, 44_100)],
)
def test_other_formats_equal_soundfile_and_resampling(kind: str, encoding: str | None, rate: int) -> None:
    data = encoded(np.stack([sound(rate), sound(rate, 1)], axis=1), rate, kind, encoding)
    wanted, told = soundfile.read(io.BytesIO(data), dtype="float32")
    assert told == rate
    assert np.array_equal(decode_audio(data), resample(wanted.mean(axis=1), rate, 16_000))
    assert np.array_equal(to_samples(wanted, rate), decode_audio(data))


def test_mp3_behind_a_tag() -> None:
    data = encoded(sound(16_000), 16_000, "MP3")
    tag = b"ID3\x04\0\0\0\0\x01\0" + bytes(128)
    assert np.array_equal(decode_audio(tag + data), decode_audio(data))


@pytest.mark.parametrize("rate", [4_001, 8_000, 11_025, 22_050, 24_000, 44_100, 48_000, 96_000])
def test_resampling_equals_the_continuous_sound(rate: int) -> None:
    """Below 0.9 of the lower Nyquist frequency the samples are those of the sines; above it, sines vanish."""
    frequencies = np.random.default_rng(rate).uniform(50, 0.9 * min(rate, 16_000) / 2, 12)

    def sines(per_second: int, n: int) -> np.ndarray:
        at = np.arange(n)[:, None] / per_second
        return np.sin(2 * np.pi * frequencies * at).mean(axis=1)

    found = resample(sines(rate, rate).astype(np.float32), rate, 16_000)
    assert len(found) == 16_000
    middle = slice(1_600, -1_600)
    limit = 3e-6 if rate != 4_001 else 1e-3  # 4001 Hz is approximated
    assert np.abs(found - sines(16_000, 16_000))[middle].max() < limit
    if rate > 22_000:
        tone = np.sin(2 * np.pi * 8_010 * np.arange(rate) / rate).astype(np.float32)
        assert np.abs(resample(tone, rate, 16_000))[middle].max() < 1e-4


def test_resampling_of_every_length() -> None:
    for rate in (8_000, 44_100, 48_000, 15_999):
        for n in (1, 2, 3, 160, 441, 1_000):
            assert len(resample(np.ones(n, np.float32), rate, 16_000)) == -(-n * 16_000 // rate)


def test_arrays_of_programs() -> None:
    samples = np.array([0, 16_384, -32_768], np.int16)
    wanted = np.array([0, 0.5, -1], np.float32)
    for audio in (samples, samples.astype(np.int32) << 16, wanted, wanted.astype(np.float64)[:, None]):
        assert np.array_equal(to_samples(audio, 16_000), wanted)
    assert np.array_equal(to_samples(np.stack([wanted, -wanted], axis=1), 16_000), np.zeros(3))


@pytest.mark.parametrize(
    "audio", [np.zeros(8, np.uint8), np.zeros(8, np.int8), np.zeros(8, complex), np.zeros((2, 2, 2)), [0.0], "a.wav"]
)
def test_other_arrays_are_refused(audio: object) -> None:
    with pytest.raises(ShapeError):
        to_samples(audio, 16_000)
    with pytest.raises(ShapeError, match=r"16000\.0"):
        to_samples(np.zeros(8, np.float32), 16_000.0)


ATTACKS = {
    "long-by-header": (wav_header(n_bytes=0x7FFFFFF0) + bytes(25_000_000), "seconds"),
    "rate-of-1": (wav_header(rate=1, n_bytes=1_000) + bytes(1_000), "rate 1 "),
    "rate-of-2-billion": (wav_header(rate=2_000_000_000, n_bytes=1_000) + bytes(1_000), "rate 2000000000"),
    "64-channels": (wav_header(channels=64, n_bytes=1_280) + bytes(1_280), "64 channels"),
    "1024-channels": (wav_header(channels=1_024, n_bytes=20_480) + bytes(20_480), "1024 channels|damaged"),
    "no-channels": (wav_header(channels=0, n_bytes=1_280) + bytes(1_280), "damaged|channels"),
    "no-samples": (wav_header(), "no samples"),
    "adpcm": (encoded(sound(3_000), 16_000, "WAV", "MS_ADPCM"), "MS_ADPCM"),
    "not-a-number": (encoded(np.full(100, np.nan, np.float32), 16_000, "WAV", "FLOAT"), "finite"),
    "infinite": (encoded(np.array([0, np.inf, 0], np.float32), 16_000, "WAV", "FLOAT"), "finite"),
    "silent-hour": (flac_of(3_600, rate=8_000), "3600 seconds"),
    "silent-channels": (flac_of(120, rate=96_000, channels=8), "120 seconds"),
    "told-too-long": (flac_of(1, n_told=(1 << 36) - 1), "seconds"),
    "empty-mp3": (b"\xff\xfb\x90\x00" + bytes(100), "damaged|no samples"),
    "cut-flac": (encoded(sound(64_000), 16_000, "FLAC")[:20_000], "damaged"),
    "cut-ogg": (encoded(sound(64_000), 16_000, "OGG")[:2_000], "damaged"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_are_refused_and_take_little_memory(name: str) -> None:
    data, message = ATTACKS[name]
    assert len(data) <= 25 << 20
    tracemalloc.start()
    try:
        with pytest.raises(RequestError, match=message) as caught:
            decode_audio(data)
        # BytesIO shares the file's bytes.
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert " at 0x" not in str(caught.value)


def test_silence_without_a_length_is_counted_while_it_is_decoded() -> None:
    data = flac_of(60, rate=48_000, n_told=0)
    assert len(data) < 50_000
    tracemalloc.start()
    try:
        with pytest.raises(RequestError, match="seconds"):
            decode_audio(data, max_seconds=2)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    # Where the header tells less, decoding ends there.
    assert len(decode_audio(flac_of(60, n_told=16_000), max_seconds=2)) == 16_000


def test_a_cut_recording_is_heard_up_to_its_end() -> None:
    for data in (encoded(sound(32_000), 16_000, "WAV"), encoded(sound(32_000), 16_000, "MP3")):
        found = decode_audio(data[: len(data) // 2])
        assert 5_000 < len(found) < 17_000
    # Recorders that write to a pipe do not know the length.
    streamed = wav_header(n_bytes=0xFFFFFFFF) + (sound(1_000) * 32_768).astype("<i2").tobytes()
    assert len(decode_audio(streamed)) == 1_000
    assert len(decode_audio(flac_of(5, n_told=0))) == 80_000


@pytest.mark.parametrize(
    ("kind", "encoding"),
    [("WAV", "PCM_16"), ("WAV", "FLOAT"), ("FLAC", "PCM_16"), ("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", None)],
)
def test_every_cut_and_flipped_file_is_audio_or_a_request_error(kind: str, encoding: str | None) -> None:
    data = encoded(sound(4_000), 16_000, kind, encoding)
    rng = np.random.default_rng(7)
    for n in {*range(0, len(data), max(1, len(data) // 25)), len(data) - 1}:
        _decode_or_refuse(data[:n])
    for _ in range(100):
        damaged = bytearray(data)
        # Half of the flips hit the headers.
        for place in [*rng.integers(0, len(data), 2), *rng.integers(0, min(len(data), 100), 2)]:
            damaged[place] ^= int(rng.integers(1, 256))
        _decode_or_refuse(bytes(damaged))


def _decode_or_refuse(data: bytes) -> None:
    message = ""
    try:
        found = decode_audio(data, max_seconds=5)
    except RequestError as error:
        message = str(error)
    else:
        assert found.dtype == np.float32
        assert 0 < len(found) <= 5 * 16_000
        assert np.isfinite(found).all()
    assert " at 0x" not in message


@pytest.mark.parametrize(
    "data",
    [
        b"", b"RIFF", b"RIFF\0\0\0\0AVI ", b"FORM\0\0\0\x10AIFFCOMM", b".snd" + bytes(40), b"\xff\xd8\xff\xe0" + bytes(40),
        b"MATLAB 5.0 MAT-file" + bytes(200), b"\xff\xff\xff\xff" * 10, b"\0\0\0\x18ftypM4A ", b"caff\0\1\0\0",
    ],
)  # fmt: skip
def test_other_formats_are_refused(data: bytes) -> None:
    with pytest.raises(RequestError, match=r"WAV, MP3|damaged MP3"):
        decode_audio(data)


def test_limits_of_bytes() -> None:
    with pytest.raises(RequestError, match="11 bytes"):
        decode_audio(bytes(11), max_bytes=10)
    with pytest.raises(RequestError, match="audio takes more than 10 bytes"):
        decode_data_url("data:audio/wav;base64," + "A" * 100, max_bytes=10, what="audio")
    assert decode_data_url("data:audio/wav;base64," + base64.b64encode(b"RIFF").decode(), what="audio") == b"RIFF"
