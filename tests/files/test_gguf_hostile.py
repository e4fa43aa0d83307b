"""A file that breaks each rule of the reader, and thousands of damaged copies of a valid one."""

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


# name: (bytes, a pattern of the error)
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty file"),
    "one_byte": (b"G", "truncated file: the magic"),
    "wrong_magic": (File(magic=b"GGML").encode(), "not a GGUF file"),
    "reversed_magic": (File(magic=b"FUGG").encode(), "not a GGUF file"),
    "magic_only": (b"GGUF", "truncated file: the version"),
    "version_0": (File(version=0).encode(), "version 0"),
    "version_1": (File(version=1).encode(), "version 1"),
    "version_4": (File(version=4).encode(), "version 4"),
    "version_huge": (File(version=2**32 - 1).encode(), "version 4294967295"),
    "big_endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "no_tensor_count": (b"GGUF" + struct.pack("<I", 3), "truncated file: the number of tensors"),
    "no_key_count": (b"GGUF" + struct.pack("<IQ", 3, 0), "truncated file: the number of keys"),
    "too_many_tensors": (File(n_tensors=65537).encode(), "65537 tensors, the limit is 65536"),
    "tensors_2_63": (File(n_tensors=BIG).encode(), f"{BIG} tensors"),
    "too_many_keys": (File(n_keys=65537).encode(), "65537 keys, the limit is 65536"),
    "keys_2_64": (File(n_keys=2**64 - 1).encode(), f"{2**64 - 1} keys"),
    "more_keys_than_bytes": (File(n_keys=60000).encode(), "60000 keys"),
    "more_tensors_than_bytes": (File(n_tensors=60000).encode(), "60000 tensors"),
    "one_key_too_many": (File(n_keys=2, tensors=[], data=b"").encode(), "key 1 has an empty name"),
    "one_tensor_too_many": (File(n_tensors=2, data=b"\xff" * 64).encode(), "truncated file|tensor 1"),
    "key_length_2_64": (HEADER_OF_ONE_KEY + text("k", 2**64 - 1) + bytes(20), "key 0 .*65535"),
    "key_too_long": (with_keys(("k" * 65536, value(U8, 1))), "key 1 has 65536 bytes"),
    "key_past_the_end": (HEADER_OF_ONE_KEY + text("k", 100) + bytes(20), "truncated file: key 0"),
    "empty_key": (with_keys(("", value(U8, 1))), "key 1 .*empty"),
    "key_not_utf8": (with_keys((b"\xff\xfe", value(U8, 1))), "key 1 .*UTF-8"),
    "key_overlong_utf8": (with_keys((b"\xc0\x80", value(U8, 1))), "key 1 .*UTF-8"),
    "key_surrogate": (with_keys((b"\xed\xa0\x80", value(U8, 1))), "key 1 .*UTF-8"),
    "key_cut_utf8": (with_keys((b"a\xe2\x82", value(U8, 1))), "key 1 .*UTF-8"),
    "key_nul": (with_keys((b"a\x00b", value(U8, 1))), "key 1 .*NUL"),
    "key_twice": (with_keys(("a", value(U8, 1)), ("a", value(U8, 2))), "duplicate key 'a'"),
    "architecture_twice": (with_keys(ARCH), "duplicate key 'general.architecture'"),
    "type_13": (with_keys(("a", struct.pack("<I", 13) + bytes(8))), "key 'a' .* type 13"),
    "type_huge": (with_keys(("a", struct.pack("<I", 2**32 - 1) + bytes(8))), "key 'a' .* type 4294967295"),
    "bool_2": (with_keys(("a", value(BOOL, 2))), "key 'a' .* boolean of 2"),
    "bool_255_in_array": (with_keys(("a", array(BOOL, [0, 1, 255]))), "key 'a' .* boolean of 255"),
    "string_length_2_64": (with_keys(("a", struct.pack("<I", STRING) + text("x", 2**64 - 1))), "key 'a' .*16777216"),
    "string_length_17_mib": (with_keys(("a", struct.pack("<I", STRING) + text("x", 17 << 20))), "key 'a' .*16777216"),
    "string_past_the_end": (with_keys(("a", struct.pack("<I", STRING) + text("x", 1 << 20))), "truncated file: key 'a'"),
    "scalar_past_the_end": (HEADER_OF_ONE_KEY + text("a") + struct.pack("<I", U64) + b"\0\0\0", "truncated file: key 'a'"),
    "array_of_arrays": (with_keys(("a", struct.pack("<IIQ", ARRAY, ARRAY, 1) + array(U8, [1]))), "array of arrays"),
    "array_type_13": (with_keys(("a", struct.pack("<IIQ", ARRAY, 13, 1) + bytes(8))), "unknown type 13"),
    "array_2_64": (with_keys(("a", array(U8, [1], 2**64 - 1))), "key 'a' .*16777216"),
    "array_16_mi_1": (with_keys(("a", array(U8, [1], (16 << 20) + 1))), "key 'a' .*16777216"),
    "array_past_the_end": (with_keys(("a", array(U64, [1], 1 << 20))), "truncated file: key 'a'"),
    "array_times_8_wraps": (with_keys(("a", array(U64, [1], 2**61))), "key 'a' .*2305843009213693952"),
    "strings_past_the_end": (with_keys(("a", array(STRING, ["x"], 1000))), "key 'a'"),
    "string_in_array_2_63": (with_keys(("a", struct.pack("<IIQ", ARRAY, STRING, 1) + text("x", BIG))), "key 'a' .*9223372036854775808"),
    "alignment_0": (aligned_by(value(U32, 0)), "'general.alignment' is 0"),
    "alignment_3": (aligned_by(value(U32, 3)), "'general.alignment' is 3"),
    "alignment_24": (aligned_by(value(U32, 24)), "'general.alignment' is 24"),
    "alignment_128k": (aligned_by(value(U32, 1 << 17)), "'general.alignment' .*65536"),
    "alignment_2_31": (aligned_by(value(U32, 1 << 31)), "'general.alignment' .*65536"),
    "alignment_u64": (aligned_by(value(U64, 32)), "'general.alignment' .*u32"),
    "alignment_i32": (aligned_by(value(I32, 32)), "'general.alignment' .*u32"),
    "alignment_text": (aligned_by(value(STRING, "32")), "'general.alignment' .*u32"),
    "alignment_array": (aligned_by(array(U32, [32])), "'general.alignment' .*u32"),
    "tensor_no_name": (with_tensors(Info(name="")), "tensor 0 .*empty"),
    "tensor_name_64": (with_tensors(Info(name="w" * 64)), "name of tensor 0 .*63"),
    "tensor_name_2_64": (with_tensors(Info(name_length=2**64 - 1)), "name of tensor 0 .*63"),
    "tensor_name_not_utf8": (with_tensors(Info(name=b"\xff")), "name of tensor 0 .*UTF-8"),
    "tensor_name_nul": (with_tensors(Info(name=b"a\0b")), "name of tensor 0 .*NUL"),
    "tensor_twice": (with_tensors(Info(), Info(offset=32)), "duplicate tensor 'w'"),
    "dims_0": (with_tensors(Info(dims=(), n_dims=0)), "tensor 'w' has 0 dimensions"),
    "dims_5": (with_tensors(Info(dims=(1, 1, 1, 1, 1))), "tensor 'w' has 5 dimensions"),
    "dims_2_32": (with_tensors(Info(n_dims=2**32 - 1)), "tensor 'w' has 4294967295 dimensions"),
    "dim_0": (with_tensors(Info(dims=(0,))), "dimension of 0"),
    "second_dim_0": (with_tensors(Info(dims=(4, 0))), "dimension of 0"),
    "dim_2_63": (with_tensors(Info(dims=(BIG,))), r"dimension of \d+: .* 2\^62"),
    "dim_negative": (with_tensors(Info(dims=(2**64 - 1,))), r"dimension of \d+: .* 2\^62"),
    "product_2_64": (with_tensors(Info(dims=(2**32, 2**32))), "exceeds 2\\^62"),
    "product_wraps_small": (with_tensors(Info(dims=(2**31, 2**31, 4))), "exceeds 2\\^62"),
    "four_wrapping_dims": (with_tensors(Info(dims=(2**16, 2**16, 2**16, 2**16))), "exceeds 2\\^62"),
    "bytes_2_63": (with_tensors(Info(dims=(2**61,))), r"'w' .*exceeds 2\^62"),
    "exabyte": (with_tensors(Info(dims=(2**58,))), "truncated file: tensor"),
    "dtype_removed_4": (with_tensors(Info(dtype=4)), "dtype 4"),
    "dtype_removed_36": (with_tensors(Info(dtype=36)), "dtype 36"),
    "dtype_43": (with_tensors(Info(dtype=43)), "dtype 43"),
    "dtype_2_32": (with_tensors(Info(dtype=2**32 - 1)), "dtype 4294967295"),
    "row_breaks_q8_0": (with_tensors(Info(dims=(33,), dtype=8)), "33 .*multiple of 32"),
    "row_breaks_q4_k": (with_tensors(Info(dims=(128,), dtype=12)), "128 .*multiple of 256"),
    "offset_odd": (with_tensors(Info(offset=1)), "offset 1: .*multiple of 32"),
    "offset_16": (with_tensors(Info(offset=16)), "offset 16: .*multiple of 32"),
    "offset_past_the_end": (with_tensors(Info(offset=4096)), "truncated file: tensor"),
    "offset_2_64": (with_tensors(Info(offset=2**64 - 32)), "truncated file: tensor"),
    "offset_wraps": (with_tensors(Info(dims=(16,), offset=2**64 - 64)), "truncated file: tensor"),
    "data_one_byte_short": (with_tensors(Info(dims=(16,)), data=bytes(63)), "truncated file: tensor"),
    "no_data": (with_tensors(Info(), data=b""), "truncated file: tensor"),
    "overlap": (with_tensors(Info(dims=(16,)), Info(name="v", offset=32)), "inside the previous tensor"),
    "same_offset": (with_tensors(Info(), Info(name="v")), "inside the previous tensor"),
    "out_of_order": (with_tensors(Info(offset=32), Info(name="v", offset=0)), "inside the previous tensor"),
    "header_cut_in_dims": (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("w") + struct.pack("<IQ", 2, 4) + bytes(16), "dimension of 0"),
    "split_not_first": (with_keys(("split.count", value(U32, 2)), ("split.no", value(U32, 1)), ("split.tensors.count", value(I32, 1))), "part 2 of 2: open the first"),
    "split_missing_part": (with_keys(("split.count", value(U32, 2)), ("split.no", value(U32, 0)), ("split.tensors.count", value(I32, 1))), "NAME-00001-of-00002.gguf"),
    "split_count_huge": (with_keys(("split.count", value(U32, 2**31))), "2147483648 parts"),
    "split_count_text": (with_keys(("split.count", value(STRING, "2"))), "'split.count' is string"),
    "split_count_float": (with_keys(("split.count", value(F32, 2.0))), "'split.count' is f32"),
}  # fmt: skip


@pytest.mark.parametrize("load", ["mmap", "copy"])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_errors_that_name_the_place(tmp_path: Path, name: str, load: str) -> None:
    content, message = HOSTILE[name]
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(LoadError, match=message):
        GGUFReader(path, load)  # type: ignore[arg-type]


def test_there_are_enough_hostile_files() -> None:
    assert len(HOSTILE) >= 60


def test_a_valid_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "good.gguf").write_bytes(File().encode())
    assert GGUFReader(tmp_path / "good.gguf").tensor("w").numpy().tolist() == [0, 0, 0, 0]


def test_missing_and_irregular_files_are_errors(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")  # a blocking open would wait for a writer
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
    """Wrong counts and lengths allocate nothing: less than 32 MiB for all files."""
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


def test_parts_of_a_split_file_are_one_model(tmp_path: Path) -> None:
    for i, names in enumerate((["a"], ["b", "c"], ["d"])):
        (tmp_path / f"m-{i + 1:05}-of-00003.gguf").write_bytes(split_part(i, 3, names, 4))
    reader = GGUFReader(tmp_path / "m-00001-of-00003.gguf")
    assert [info.name for info in reader.tensors] == ["a", "b", "c", "d"]
    assert reader.n_files == 3
    assert [float(reader.tensor(name).numpy()[0]) for name in "abcd"] == [0, 1, 1, 2]


BAD_SPLITS: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing": (lambda f: (f / "m-00002-of-00002.gguf").unlink(), "cannot read .*m-00002-of-00002.gguf"),
    "other_count": (
        lambda f: f.joinpath("m-00002-of-00002.gguf").write_bytes(split_part(1, 3, ["b"], 2)) and None,
        "expected part 2 of 2",
    ),
    "other_number": (
        lambda f: f.joinpath("m-00002-of-00002.gguf").write_bytes(split_part(0, 2, ["b"], 2)) and None,
        "expected part 2 of 2",
    ),
    "same_tensor": (
        lambda f: f.joinpath("m-00002-of-00002.gguf").write_bytes(split_part(1, 2, ["a"], 2)) and None,
        "duplicate tensor 'a'",
    ),
    "wrong_total": (
        lambda f: f.joinpath("m-00002-of-00002.gguf").write_bytes(split_part(1, 2, ["b", "c"], 2)) and None,
        "3 tensors together: expected 2",
    ),
    "second_is_no_gguf": (
        lambda f: f.joinpath("m-00002-of-00002.gguf").write_bytes(b"nothing") and None,
        "not a GGUF file",
    ),
}


@pytest.mark.parametrize("name", BAD_SPLITS)
def test_inconsistent_parts_are_errors(tmp_path: Path, name: str) -> None:
    for i, tensor in enumerate("ab"):
        (tmp_path / f"m-{i + 1:05}-of-00002.gguf").write_bytes(split_part(i, 2, [tensor], 2))
    GGUFReader(tmp_path / "m-00001-of-00002.gguf")
    change, message = BAD_SPLITS[name]
    change(tmp_path)
    with pytest.raises(LoadError, match=message):
        GGUFReader(tmp_path / "m-00001-of-00002.gguf")


def rich_file() -> bytes:
    """A file with every type of value and several dtypes."""
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
    """Return True if the file loads; then touch every byte of its tensors."""
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
    """Flip each bit of the header, then change random bytes in random places; more than 2 000 copies in total."""
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
    """A tensor is accepted if and only if it fits according to Python's integers."""
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
