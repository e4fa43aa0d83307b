"""Every rule of the reader against a file that breaks it, and thousands of damaged copies of a sound one."""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf_bytes import ARRAY, BOOL, F32, I32, STRING, U8, U32, U64, File, Info, array, text, value
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from quire.errors import LoadError, QuireError, UnsupportedError
from quire.gguf import GGUFReader

ARCH = ("general.architecture", value(STRING, "llama"))
BIG = 2**63


HEADER_OF_ONE_KEY = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)


def with_keys(*keys: tuple[bytes | str, bytes], **more: object) -> bytes:
    return File(keys=[ARCH, *keys], **more).encode()  # type: ignore[arg-type]


def with_tensors(*tensors: Info, **more: object) -> bytes:
    return File(tensors=list(tensors), **more).encode()  # type: ignore[arg-type]


def aligned_by(content: bytes) -> bytes:
    return with_keys(("general.alignment", content))


# name: (bytes, what the error must say)
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "must have contents"),
    "one_byte": (b"G", "the magic must lie inside the file"),
    "wrong_magic": (File(magic=b"GGML").encode(), 'must start with "GGUF"'),
    "reversed_magic": (File(magic=b"FUGG").encode(), 'must start with "GGUF"'),
    "magic_only": (b"GGUF", "the version must lie inside"),
    "version_0": (File(version=0).encode(), "version must be 2 or 3 but is 0"),
    "version_1": (File(version=1).encode(), "version must be 2 or 3 but is 1"),
    "version_4": (File(version=4).encode(), "version must be 2 or 3 but is 4"),
    "version_huge": (File(version=2**32 - 1).encode(), "version must be 2 or 3"),
    "big_endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "must be little-endian"),
    "no_tensor_count": (b"GGUF" + struct.pack("<I", 3), "number of tensors must lie inside"),
    "no_key_count": (b"GGUF" + struct.pack("<IQ", 3, 0), "number of keys must lie inside"),
    "too_many_tensors": (File(n_tensors=65537).encode(), "tensors must be at most 65536"),
    "tensors_2_63": (File(n_tensors=BIG).encode(), "tensors must be at most 65536"),
    "too_many_keys": (File(n_keys=65537).encode(), "keys must be at most 65536"),
    "keys_2_64": (File(n_keys=2**64 - 1).encode(), "keys must be at most 65536"),
    "more_keys_than_bytes": (File(n_keys=60000).encode(), "must fit in the file"),
    "more_tensors_than_bytes": (File(n_tensors=60000).encode(), "must fit in the file"),
    "one_key_too_many": (File(n_keys=2, tensors=[], data=b"").encode(), "must"),
    "one_tensor_too_many": (File(n_tensors=2, data=b"\xff" * 64).encode(), "must"),
    "key_length_2_64": (HEADER_OF_ONE_KEY + text("k", 2**64 - 1) + bytes(20), "key 0 must be at most 65535"),
    "key_too_long": (with_keys(("k" * 65536, value(U8, 1))), "key 1 must be at most 65535"),
    "key_past_the_end": (HEADER_OF_ONE_KEY + text("k", 100) + bytes(20), "key 0 must lie inside"),
    "empty_key": (with_keys(("", value(U8, 1))), "key 1 must have a name"),
    "key_not_utf8": (with_keys((b"\xff\xfe", value(U8, 1))), "key 1 must be UTF-8"),
    "key_overlong_utf8": (with_keys((b"\xc0\x80", value(U8, 1))), "key 1 must be UTF-8"),
    "key_surrogate": (with_keys((b"\xed\xa0\x80", value(U8, 1))), "key 1 must be UTF-8"),
    "key_cut_utf8": (with_keys((b"a\xe2\x82", value(U8, 1))), "key 1 must be UTF-8"),
    "key_nul": (with_keys((b"a\x00b", value(U8, 1))), "key 1 must be UTF-8 without NUL"),
    "key_twice": (with_keys(("a", value(U8, 1)), ("a", value(U8, 2))), "key 'a' must be there once"),
    "architecture_twice": (with_keys(ARCH), "'general.architecture' must be there once"),
    "type_13": (with_keys(("a", struct.pack("<I", 13) + bytes(8))), "key 'a' must have a known type"),
    "type_huge": (with_keys(("a", struct.pack("<I", 2**32 - 1) + bytes(8))), "key 'a' must have a known type"),
    "bool_2": (with_keys(("a", value(BOOL, 2))), "key 'a' must hold booleans of 0 or 1"),
    "bool_255_in_array": (with_keys(("a", array(BOOL, [0, 1, 255]))), "key 'a' must hold booleans of 0 or 1"),
    "string_length_2_64": (with_keys(("a", struct.pack("<I", STRING) + text("x", 2**64 - 1))), "key 'a' must be at most 16777216"),
    "string_length_17_mib": (with_keys(("a", struct.pack("<I", STRING) + text("x", 17 << 20))), "key 'a' must be at most 16777216"),
    "string_past_the_end": (with_keys(("a", struct.pack("<I", STRING) + text("x", 1 << 20))), "key 'a' must lie inside"),
    "scalar_past_the_end": (HEADER_OF_ONE_KEY + text("a") + struct.pack("<I", U64) + b"\0\0\0", "key 'a' must lie inside"),
    "array_of_arrays": (with_keys(("a", struct.pack("<IIQ", ARRAY, ARRAY, 1) + array(U8, [1]))), "must not hold arrays of arrays"),
    "array_type_13": (with_keys(("a", struct.pack("<IIQ", ARRAY, 13, 1) + bytes(8))), "elements of a known type"),
    "array_2_64": (with_keys(("a", array(U8, [1], 2**64 - 1))), "key 'a' must have at most 16777216 elements"),
    "array_16_mi_1": (with_keys(("a", array(U8, [1], (16 << 20) + 1))), "key 'a' must have at most 16777216 elements"),
    "array_past_the_end": (with_keys(("a", array(U64, [1], 1 << 20))), "key 'a' must lie inside"),
    "array_times_8_wraps": (with_keys(("a", array(U64, [1], 2**61))), "key 'a' must have at most"),
    "strings_past_the_end": (with_keys(("a", array(STRING, ["x"], 1000))), "key 'a' must"),
    "string_in_array_2_63": (with_keys(("a", struct.pack("<IIQ", ARRAY, STRING, 1) + text("x", BIG))), "key 'a' must be at most"),
    "alignment_0": (aligned_by(value(U32, 0)), "'general.alignment' must be a power of two"),
    "alignment_3": (aligned_by(value(U32, 3)), "'general.alignment' must be a power of two"),
    "alignment_24": (aligned_by(value(U32, 24)), "'general.alignment' must be a power of two"),
    "alignment_128k": (aligned_by(value(U32, 1 << 17)), "'general.alignment' must be a power of two up to 65536"),
    "alignment_2_31": (aligned_by(value(U32, 1 << 31)), "'general.alignment' must be a power of two up to 65536"),
    "alignment_u64": (aligned_by(value(U64, 32)), "'general.alignment' must be u32"),
    "alignment_i32": (aligned_by(value(I32, 32)), "'general.alignment' must be u32"),
    "alignment_text": (aligned_by(value(STRING, "32")), "'general.alignment' must be u32"),
    "alignment_array": (aligned_by(array(U32, [32])), "'general.alignment' must be u32"),
    "tensor_no_name": (with_tensors(Info(name="")), "tensor 0 must have a name"),
    "tensor_name_64": (with_tensors(Info(name="w" * 64)), "name of tensor 0 must be at most 63"),
    "tensor_name_2_64": (with_tensors(Info(name_length=2**64 - 1)), "name of tensor 0 must be at most 63"),
    "tensor_name_not_utf8": (with_tensors(Info(name=b"\xff")), "name of tensor 0 must be UTF-8"),
    "tensor_name_nul": (with_tensors(Info(name=b"a\0b")), "name of tensor 0 must be UTF-8 without NUL"),
    "tensor_twice": (with_tensors(Info(), Info(offset=32)), "tensor 'w' must be there once"),
    "dims_0": (with_tensors(Info(dims=(), n_dims=0)), "tensor 'w' must have 1 to 4 dimensions but has 0"),
    "dims_5": (with_tensors(Info(dims=(1, 1, 1, 1, 1))), "tensor 'w' must have 1 to 4 dimensions but has 5"),
    "dims_2_32": (with_tensors(Info(n_dims=2**32 - 1)), "tensor 'w' must have 1 to 4 dimensions"),
    "dim_0": (with_tensors(Info(dims=(0,))), "must have dimensions of 1 to"),
    "second_dim_0": (with_tensors(Info(dims=(4, 0))), "must have dimensions of 1 to"),
    "dim_2_63": (with_tensors(Info(dims=(BIG,))), "must have dimensions of 1 to"),
    "dim_negative": (with_tensors(Info(dims=(2**64 - 1,))), "must have dimensions of 1 to"),
    "product_2_64": (with_tensors(Info(dims=(2**32, 2**32))), "must be below 2\\^62"),
    "product_wraps_small": (with_tensors(Info(dims=(2**31, 2**31, 4))), "must be below 2\\^62"),
    "four_wrapping_dims": (with_tensors(Info(dims=(2**16, 2**16, 2**16, 2**16))), "must be below 2\\^62"),
    "bytes_2_63": (with_tensors(Info(dims=(2**61,))), "must"),
    "exabyte": (with_tensors(Info(dims=(2**58,))), "must lie inside the file"),
    "dtype_removed_4": (with_tensors(Info(dtype=4)), "must have a known dtype but has number 4"),
    "dtype_removed_36": (with_tensors(Info(dtype=36)), "must have a known dtype but has number 36"),
    "dtype_43": (with_tensors(Info(dtype=43)), "must have a known dtype"),
    "dtype_2_32": (with_tensors(Info(dtype=2**32 - 1)), "must have a known dtype"),
    "row_breaks_q8_0": (with_tensors(Info(dims=(33,), dtype=8)), "must be a multiple of 32"),
    "row_breaks_q4_k": (with_tensors(Info(dims=(128,), dtype=12)), "must be a multiple of 256"),
    "offset_odd": (with_tensors(Info(offset=1)), "must start at a multiple of 32"),
    "offset_16": (with_tensors(Info(offset=16)), "must start at a multiple of 32"),
    "offset_past_the_end": (with_tensors(Info(offset=4096)), "must lie inside the file"),
    "offset_2_64": (with_tensors(Info(offset=2**64 - 32)), "must lie inside the file"),
    "offset_wraps": (with_tensors(Info(dims=(16,), offset=2**64 - 64)), "must lie inside the file"),
    "data_one_byte_short": (with_tensors(Info(dims=(16,)), data=bytes(63)), "must lie inside the file"),
    "no_data": (with_tensors(Info(), data=b""), "must lie inside the file"),
    "overlap": (with_tensors(Info(dims=(16,)), Info(name="v", offset=32)), "must start behind the one before it"),
    "same_offset": (with_tensors(Info(), Info(name="v")), "must start behind the one before it"),
    "out_of_order": (with_tensors(Info(offset=32), Info(name="v", offset=0)), "must start behind the one before it"),
    "header_cut_in_dims": (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("w") + struct.pack("<IQ", 2, 4) + bytes(16), "must"),
    "split_not_first": (with_keys(("split.count", value(U32, 2)), ("split.no", value(U32, 1)), ("split.tensors.count", value(I32, 1))), "by its first part"),
    "split_missing_part": (with_keys(("split.count", value(U32, 2)), ("split.no", value(U32, 0)), ("split.tensors.count", value(I32, 1))), "must be called NAME-00001-of-00002.gguf"),
    "split_count_huge": (with_keys(("split.count", value(U32, 2**31))), "'split.count' must be at most"),
    "split_count_text": (with_keys(("split.count", value(STRING, "2"))), "'split.count' must be a whole number"),
    "split_count_float": (with_keys(("split.count", value(F32, 2.0))), "'split.count' must be a whole number"),
}  # fmt: skip


@pytest.mark.parametrize("load", ["mmap", "copy"])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_by_name(tmp_path: Path, name: str, load: str) -> None:
    content, message = HOSTILE[name]
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(LoadError, match=message):
        GGUFReader(path, load)  # type: ignore[arg-type]


def test_there_are_enough_kinds() -> None:
    assert len(HOSTILE) >= 60


def test_the_sound_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "good.gguf").write_bytes(File().encode())
    assert GGUFReader(tmp_path / "good.gguf").tensor("w").numpy().tolist() == [0, 0, 0, 0]


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")  # opening it for reading would wait for a writer
    for name in ("missing", "fifo", "."):
        with pytest.raises(LoadError):
            GGUFReader(tmp_path / name)
    with pytest.raises(UnsupportedError, match="mmap, copy, lock"):
        GGUFReader(tmp_path / "fifo", "lazy")  # type: ignore[arg-type]


def peak_kib() -> int:
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak // 1024 if sys.platform == "darwin" else peak


def test_hostile_files_cost_no_memory(tmp_path: Path) -> None:
    """Counts and lengths that lie allocate nothing: less than 32 MiB over all of them."""
    before = peak_kib()
    for content, _ in HOSTILE.values():
        (tmp_path / "bad.gguf").write_bytes(content)
        with pytest.raises(LoadError):
            GGUFReader(tmp_path / "bad.gguf")
    assert peak_kib() - before < 32 * 1024


def split_part(number: int, count: int, names: list[str], total: int) -> bytes:
    keys = [
        ("split.no", value(U32, number)),
        ("split.count", value(U32, count)),
        ("split.tensors.count", value(I32, total)),
    ]
    tensors = [Info(name=name, offset=32 * i) for i, name in enumerate(names)]
    return File(keys=[ARCH, *keys], tensors=tensors, data=struct.pack("<f", number) * 8 * max(1, len(names))).encode()


def test_splits_are_one_model(tmp_path: Path) -> None:
    for i, names in enumerate((["a"], ["b", "c"], ["d"])):
        (tmp_path / f"m-{i + 1:05}-of-00003.gguf").write_bytes(split_part(i, 3, names, 4))
    reader = GGUFReader(tmp_path / "m-00001-of-00003.gguf")
    assert [info.name for info in reader.tensors] == ["a", "b", "c", "d"]
    assert reader.n_files == 3
    assert [float(reader.tensor(name).numpy()[0]) for name in "abcd"] == [0, 1, 1, 2]


BAD_SPLITS: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing": (lambda f: (f / "m-00002-of-00002.gguf").unlink(), "must be readable"),
    "other_count": (
        lambda f: f.joinpath("m-00002-of-00002.gguf").write_bytes(split_part(1, 3, ["b"], 2)) and None,
        "must be part 2 of 2",
    ),
    "other_number": (
        lambda f: f.joinpath("m-00002-of-00002.gguf").write_bytes(split_part(0, 2, ["b"], 2)) and None,
        "must be part 2 of 2",
    ),
    "same_tensor": (
        lambda f: f.joinpath("m-00002-of-00002.gguf").write_bytes(split_part(1, 2, ["a"], 2)) and None,
        "'a' must be there once",
    ),
    "wrong_total": (
        lambda f: f.joinpath("m-00002-of-00002.gguf").write_bytes(split_part(1, 2, ["b", "c"], 2)) and None,
        "must hold 2 tensors together",
    ),
    "second_is_no_gguf": (lambda f: f.joinpath("m-00002-of-00002.gguf").write_bytes(b"nothing") and None, "must"),
}


@pytest.mark.parametrize("name", BAD_SPLITS)
def test_bad_splits_are_refused(tmp_path: Path, name: str) -> None:
    for i, tensor in enumerate("ab"):
        (tmp_path / f"m-{i + 1:05}-of-00002.gguf").write_bytes(split_part(i, 2, [tensor], 2))
    GGUFReader(tmp_path / "m-00001-of-00002.gguf")
    change, message = BAD_SPLITS[name]
    change(tmp_path)
    with pytest.raises(LoadError, match=message):
        GGUFReader(tmp_path / "m-00001-of-00002.gguf")


def rich_file() -> bytes:
    """Every type of value, several dtypes."""
    keys = [
        ARCH,
        ("general.alignment", value(U32, 64)),
        ("a.names", array(STRING, ["x", "yz", ""])),
        ("a.numbers", array(F32, [1.0, 2.0])),
        ("a.flags", array(BOOL, [1, 0])),
        ("a.big", value(U64, 2**40)),
        ("a.yes", value(BOOL, 1)),
    ]
    tensors = [Info("a", (8, 2), 0, 0), Info("b", (32, 1), 8, 64), Info("c", (5,), 1, 128), Info("d", (256,), 12, 192)]
    return File(keys=keys, tensors=tensors, alignment=64, data=bytes(range(256)) + bytes(96)).encode()


def load_or_refuse(path: Path) -> bool:
    """True when the file loads, and then every byte of it can be touched."""
    try:
        reader = GGUFReader(path)
        for key in reader.metadata:
            reader.metadata[key]
        for info in reader.tensors:
            int(np.asarray(reader.tensor(info.name).numpy()).view(np.uint8).astype(np.int64).sum())
    except QuireError:
        return False
    return True


def test_truncated_copies(tmp_path: Path) -> None:
    whole, path = rich_file(), tmp_path / "cut.gguf"
    end = len(whole) - (352 - (192 + 144))  # the last tensor's last byte
    for n in range(len(whole)):
        path.write_bytes(whole[:n])
        assert load_or_refuse(path) == (n >= end), n


def test_flipped_copies(tmp_path: Path) -> None:
    """Each bit of the header, then random bytes of random places; all told more than 2 000 copies."""
    whole, path = bytearray(rich_file()), tmp_path / "flipped.gguf"
    header = len(whole) - 352
    count = 0
    for i in range(header * 8):
        copy = bytearray(whole)
        copy[i // 8] ^= 1 << (i % 8)
        path.write_bytes(copy)
        load_or_refuse(path)
        count += 1
    rng = np.random.default_rng(0)
    for _ in range(1500):
        copy = bytearray(whole)
        for place in rng.integers(0, header, rng.integers(1, 9)):
            copy[place] = rng.integers(0, 256)
        path.write_bytes(copy)
        load_or_refuse(path)
        count += 1
    assert count > 2000


dims = st.one_of(st.integers(1, 80), st.sampled_from([2**k + d for k in (8, 16, 31, 32, 62, 63) for d in (-1, 0, 1)]))
GGML_SIZES = {0: (1, 4), 1: (1, 2), 8: (32, 34), 12: (256, 144), 30: (1, 2)}  # block, bytes


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(dims, min_size=1, max_size=4),
    st.sampled_from(sorted(GGML_SIZES)),
    st.integers(0, 6),
    st.sampled_from([8, 32, 1024]),
)
def test_sizes_agree_with_big_integers(
    tmp_path: Path, shape: list[int], dtype: int, place: int, alignment: int
) -> None:
    """A tensor is accepted exactly when Python's integers say that it fits."""
    data = bytes(8192)
    keys = [ARCH, ("general.alignment", value(U32, alignment))]
    info = Info(dims=tuple(d % 2**64 for d in shape), dtype=dtype, offset=place * 32)
    path = tmp_path / "sizes.gguf"
    path.write_bytes(File(keys=keys, tensors=[info], alignment=alignment, data=data).encode())
    block, size = GGML_SIZES[dtype]
    n_bytes = shape[0] // block * size
    for dim in shape[1:]:
        n_bytes *= dim
    fits = shape[0] % block == 0 and place * 32 % alignment == 0 and place * 32 + n_bytes <= len(data)
    assert load_or_refuse(path) == fits
