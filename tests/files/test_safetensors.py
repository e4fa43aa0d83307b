"""Safetensors files: valid ones are read, and each rule has a file that breaks it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from quire.errors import LoadError, UnsupportedError
from quire.safetensors import SafetensorsFile, SafetensorsFolder


def content(header: object, data: bytes = bytes(16), n: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if n is None else n).to_bytes(8, "little") + text + data


def entry(**changes: object) -> dict[str, object]:
    return {"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16], **changes}}


BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "no header"),
    "short": (bytes(9), "no header"),
    "header_past_the_end": (content(entry(), n=1 << 20), "the header has"),
    "header_2_64": (content(entry(), n=2**64 - 1), "the header has"),
    "no_json": (content(b"{nothing"), "not valid JSON"),
    "not_utf8": (content(b'{"\xff": 1}'), "not valid JSON"),
    "deep": (content(b"[" * 100000), "not valid JSON"),
    "list": (content([]), "not a JSON object"),
    "twice": (content(b'{"a": {"dtype":"F32","shape":[4],"data_offsets":[0,16]}, "a": {"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'), "duplicate"),
    "metadata_numbers": (content({"__metadata__": {"x": 1}, **entry()}), "'__metadata__'"),
    "no_shape": (content({"a": {"dtype": "F32", "data_offsets": [0, 16]}}), "tensor 'a'"),
    "more_fields": (content(entry(extra=1)), "tensor 'a'"),
    "dtype": (content(entry(dtype="F33")), "'F33'"),
    "shape_text": (content(entry(shape="4")), "invalid shape"),
    "shape_negative": (content(entry(shape=[-4])), "invalid shape"),
    "shape_float": (content(entry(shape=[4.0])), "invalid shape"),
    "shape_true": (content(entry(shape=[4, True])), "invalid shape"),
    "shape_2_64": (content(entry(shape=[2**64])), "invalid shape"),
    "shape_wraps": (content(entry(shape=[2**61, 2**61, 2**61])), "span 16 bytes"),
    "offsets_one": (content(entry(data_offsets=[0])), "invalid offsets"),
    "offsets_reversed": (content(entry(data_offsets=[16, 0])), "expected 16"),
    "offsets_short": (content(entry(data_offsets=[0, 12])), "expected 16"),
    "offsets_past_the_end": (content(entry(data_offsets=[16, 32])), "previous tensor"),
    "data_short": (content(entry(), bytes(12)), "the file has"),
    "data_left": (content(entry(), bytes(20)), "the file has"),
    "overlap": (content({**entry(), "b": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}}), "previous tensor"),
    "gap": (content({**entry(), "b": {"dtype": "F32", "shape": [1], "data_offsets": [20, 24]}}, bytes(24)), "previous tensor"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_errors(tmp_path: Path, name: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(BAD[name][0])
    with pytest.raises(LoadError, match=BAD[name][1]):
        SafetensorsFolder(tmp_path)


def test_dtypes_and_odd_headers(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 3)).astype(np.float32), rng.standard_normal(5).astype(np.float16)
    c = (rng.standard_normal(4).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    header = {
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "F16", "shape": [5], "data_offsets": [24, 34]},
        "c": {"dtype": "BF16", "shape": [4], "data_offsets": [34, 42]},
        "i": {"dtype": "I64", "shape": [1], "data_offsets": [42, 50]},
    }
    for pad in range(9):  # data at every address modulo 8
        text = json.dumps(header).encode() + b" " * pad
        (tmp_path / "x.safetensors").write_bytes(content(text, a.tobytes() + b.tobytes() + c.tobytes() + bytes(8)))
        file = SafetensorsFile(tmp_path / "x.safetensors")
        assert np.array_equal(file.tensor("a").numpy(), a)
        assert np.array_equal(file.tensor("b").numpy(), b)
        assert np.array_equal(file.tensor("c").numpy(), c)
        assert str(file.tensor("c").dtype) == "bf16"
        with pytest.raises(UnsupportedError, match="'i' is I64"):
            file.tensor("i")
        with pytest.raises(LoadError, match="'none'"):
            file.tensor("none")


BAD_INDEXES = {
    "elsewhere": ({"weight_map": {"a": "../model.safetensors"}}, "not a .safetensors file"),
    "absolute": ({"weight_map": {"a": "/etc/x.safetensors"}}, "not a .safetensors file"),
    "other_kind": ({"weight_map": {"a": "config.json"}}, "not a .safetensors file"),
    "missing": ({"weight_map": {"a": "none.safetensors"}}, "none.safetensors"),
    "not_there": ({"weight_map": {"z": "s.safetensors"}}, "'z' in 's.safetensors'"),
    "no_map": ({}, "weight_map"),
    "list": ([], "weight_map"),
}


@pytest.mark.parametrize("name", BAD_INDEXES)
def test_bad_indexes_are_errors(tmp_path: Path, name: str) -> None:
    index, message = BAD_INDEXES[name]
    (tmp_path / "s.safetensors").write_bytes(content(entry()))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(LoadError, match=message):
        SafetensorsFolder(tmp_path)
