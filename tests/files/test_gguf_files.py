"""The reader and writer against the format's reference package."""

from __future__ import annotations

from pathlib import Path

import gguf_bytes
import numpy as np
import pytest
from quire._native.gguf import Reader
from quire.errors import LoadError, ShapeError
from quire.gguf import NUMBER_CODES, GGUFReader, GGUFWriter

gguf = pytest.importorskip("gguf", reason="needs the gguf package (test extra)")


def write_sample(path: Path) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = {
        "a": rng.standard_normal((3, 5)).astype(np.float32),
        "b": rng.standard_normal(7).astype(np.float16),
        "c": rng.integers(0, 255, (2, 3, 34 * 2), dtype=np.uint8),
    }
    with GGUFWriter(path, "llama") as writer:
        writer.set("x.u32", 7, "u32")
        writer.set("x.i64", -(2**60), "i64")
        writer.set("x.f32", 0.5, "f32")
        writer.set("x.yes", True)
        writer.set("x.text", "grüße")
        writer.set("x.names", ["a", b"\xff\x00b", ""], "string[]")
        writer.set("x.numbers", [1.5, -2.0], "f32[]")
        writer.add_tensor("a", "f32", (3, 5))
        writer.add_tensor("b", "f16", (7,))
        writer.add_tensor("c", "q8_0", (2, 3, 64))
        for name, array in arrays.items():
            data = array.tobytes()
            writer.write(name, data[:11])
            writer.write(name, data[11:])
    return arrays


def test_the_reference_reads_our_files(tmp_path: Path) -> None:
    arrays = write_sample(tmp_path / "x.gguf")
    reader = gguf.GGUFReader(tmp_path / "x.gguf")
    assert reader.fields["x.i64"].contents() == -(2**60)
    assert reader.fields["x.text"].contents() == "grüße"
    assert reader.fields["x.numbers"].contents() == [1.5, -2.0]
    for tensor in reader.tensors:
        assert np.array_equal(
            np.asarray(tensor.data).view(np.uint8).reshape(-1), arrays[tensor.name].view(np.uint8).reshape(-1)
        )


@pytest.mark.parametrize("load", ["mmap", "copy"])
def test_we_read_our_own_files(tmp_path: Path, load: str) -> None:
    arrays = write_sample(tmp_path / "x.gguf")
    reader = GGUFReader(tmp_path / "x.gguf", load)  # type: ignore[arg-type]
    assert list(reader.metadata)[:2] == ["general.architecture", "x.u32"]
    assert reader.metadata.integer("x.u32") == 7
    assert reader.metadata.number("x.f32") == 0.5
    assert reader.metadata.flag("x.yes") is True
    assert reader.metadata.text("x.text") == "grüße"
    assert reader.metadata.strings("x.names") == [b"a", b"\xff\x00b", b""]
    assert reader.metadata.array("x.numbers").tolist() == [1.5, -2.0]
    assert reader.tensor("c").shape == (2, 3, 64)
    for name, array in arrays.items():
        assert np.array_equal(reader.tensor(name).numpy(), array)
    assert reader.tensor("a").read_only
    with pytest.raises(ValueError, match="read-only"):
        reader.tensor("a").numpy()[0] = 1
    reader.check_unchanged()


def test_we_read_the_references_files(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(str(tmp_path / "y.gguf"), "qwen3")
    writer.add_uint32("k", 3)
    writer.add_array("t", ["x", "yz"])
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    writer.add_tensor("w", data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    reader = GGUFReader(tmp_path / "y.gguf")
    assert reader.metadata["general.architecture"] == "qwen3"
    assert reader.metadata["t"] == ["x", "yz"]
    assert np.array_equal(reader.tensor("w").numpy(), data)


def test_strict_reads_name_the_key(tmp_path: Path) -> None:
    write_sample(tmp_path / "x.gguf")
    metadata = GGUFReader(tmp_path / "x.gguf").metadata
    with pytest.raises(LoadError, match="key 'none'"):
        metadata.integer("none")
    assert metadata.integer("none", 4) == 4
    with pytest.raises(LoadError, match=r"key 'x\.text' is string"):
        metadata.integer("x.text")
    with pytest.raises(LoadError, match=r"key 'x\.yes' is bool"):
        metadata.integer("x.yes")
    with pytest.raises(LoadError, match=r"key 'x\.u32' is 7: expected 8 to 9"):
        metadata.integer("x.u32", low=8, high=9)
    with pytest.raises(KeyError):
        metadata["none"]


def fill(path: Path, names: str, pieces: list[tuple[str, int]], *, fail: bool = False) -> None:
    """Write tensors of 16 bytes in pieces."""
    with GGUFWriter(path, "llama") as writer:
        for name in names:
            writer.add_tensor(name, "f32", (4,))
        for name, n in pieces:
            writer.write(name, bytes(n))
        if fail:
            raise RuntimeError


@pytest.mark.parametrize(
    ("kind", "code", "numbers"),
    [
        (gguf_bytes.U8, "B", [0, 255]), (gguf_bytes.I8, "b", [-128, 127]), (gguf_bytes.U16, "H", [0, 65535]),
        (gguf_bytes.I16, "h", [-32768, 3]), (gguf_bytes.U32, "I", [2**32 - 1]), (gguf_bytes.I32, "i", [-(2**31), 5]),
        (gguf_bytes.U64, "Q", [2**64 - 1]), (gguf_bytes.I64, "q", [-(2**63)]), (gguf_bytes.F32, "f", [0.5, -2.0]),
        (gguf_bytes.F64, "d", [0.1]), (gguf_bytes.BOOL, "?", [True, False]),
    ],
)  # fmt: skip
def test_packed_numbers(tmp_path: Path, kind: int, code: str, numbers: list[object]) -> None:
    path = tmp_path / "x.gguf"
    text = gguf_bytes.value(gguf_bytes.STRING, "llama")
    keys = [("general.architecture", text), ("k", gguf_bytes.array(kind, numbers)), ("s", text)]
    path.write_bytes(gguf_bytes.File(keys=keys).encode())
    reader = Reader(str(path))
    assert memoryview(reader.packed_numbers("k")).cast(code).tolist() == numbers == reader.value("k").tolist()  # type: ignore[attr-defined]
    assert NUMBER_CODES[reader.value_type("k")] == code
    metadata = GGUFReader(path).metadata
    assert metadata.beginning("k", 2) == (len(numbers), numbers[:2])
    assert metadata.beginning("k", 99) == (len(numbers), numbers)
    with pytest.raises(LoadError, match="'s' is string"):
        metadata.beginning("s", 2)
    with pytest.raises(LoadError, match="'s'"):
        reader.packed_numbers("s")


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "z.gguf"
    with pytest.raises(RuntimeError):
        fill(target, "a", [("a", 8)], fail=True)
    with pytest.raises(ShapeError, match="'a'"):
        fill(target, "a", [("a", 8)])
    with pytest.raises(ShapeError, match="'a': 17 of 16 bytes"):
        fill(target, "a", [("a", 17)])
    with pytest.raises(ShapeError, match="'b' out of order: expected 'a'"):
        fill(target, "ab", [("b", 16)])
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_changes_is_noticed(tmp_path: Path) -> None:
    write_sample(tmp_path / "x.gguf")
    reader = GGUFReader(tmp_path / "x.gguf")
    write_sample(tmp_path / "x.gguf")  # replaces the file by another one
    with pytest.raises(LoadError, match="changed"):
        reader.check_unchanged()
    assert reader.tensor("a").numpy().shape == (3, 5)  # the old file is still mapped
