"""Types, devices and tensors.  Oracles: gguf-py's type sizes, NumPy's memory."""

from __future__ import annotations

import gc
import sys
import threading
import weakref

import gguf
import numpy as np
import pytest
import quire
from quire import DType, ShapeError, Tensor, UnsupportedError

PLAIN = {"f32": "f4", "f16": "f2", "f64": "f8", "i8": "i1", "i16": "i2", "i32": "i4", "i64": "i8"}


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


# DType


def test_types_have_the_published_sizes():
    published = {int(t): (t.name.lower(), *gguf.GGML_QUANT_SIZES[t]) for t in gguf.GGMLQuantizationType}
    found = {d.id: (d.name, d.block_size, d.block_bytes) for d in DType.all()}
    assert len(found) >= 34
    # gguf-py has an older layout of q8_1, which no file uses.
    common = (found.keys() & published.keys()) - {DType.q8_1.id}
    assert len(common) >= 32
    assert {id: found[id] for id in common} == {id: published[id] for id in common}


def test_types_are_values():
    assert DType("Q8_0") == DType.q8_0 == "q8_0"
    assert hash(DType("f16")) == hash(DType.f16)
    assert DType.f16 != DType.bf16
    assert DType.f16 != "f32"
    assert DType.f16 != 1
    assert DType.from_id(12) == "q4_k"
    assert {DType.f32: 1}[DType("f32")] == 1
    assert (str(DType.q4_k), repr(DType.q4_k)) == ("q4_k", 'DType("q4_k")')
    assert [d.is_quantized for d in map(DType, ("f32", "bf16", "i32", "q8_0", "mxfp4"))] == [False] * 3 + [True] * 2


@pytest.mark.parametrize("name", ["", "q9_0", "float32", "f32\0", "4"])
def test_unknown_types_are_errors_that_list_the_known_ones(name):
    with pytest.raises(UnsupportedError, match=r"\[dtype\] .*q8_0"):
        DType(name)


@pytest.mark.parametrize("number", [-1, 4, 5, 31, 36, 43, 2**31, -(2**63)])
def test_numbers_of_removed_and_unknown_types_are_errors(number):
    with pytest.raises(UnsupportedError, match=str(number)):
        DType.from_id(number)


def test_rows_are_whole_blocks():
    assert DType.q8_0.row_bytes(64) == 2 * 34
    assert DType.f16.row_bytes(0) == 0
    for n in (33, -32, 2**62 + 1):
        with pytest.raises(ShapeError, match=r"multiple of 32|exceeds"):
            DType.q8_0.row_bytes(n)


# Device


def test_the_cpu_is_a_device():
    (cpu,) = (device for device in quire.devices() if device.name == "CPU")  # other tests bring devices of their own
    assert cpu.kind == "cpu"
    assert 0 < cpu.memory_free_bytes <= cpu.memory_total_bytes
    names = {name.lower() for name in cpu.operations}
    assert {"mul_mat", "rms_norm", "rope", "soft_max"} <= names
    assert cpu == Tensor.empty("f32", [1]).device
    assert len({cpu, Tensor.empty("f32", [1]).device}) == 1


def test_unknown_devices_are_errors_that_list_the_known_ones():
    with pytest.raises(UnsupportedError, match=r"toaster.*|CPU"):
        Tensor.empty("f32", [1], "toaster")


def test_a_backend_is_loaded_by_full_path(tmp_path):
    from quire._native.core import load_backend

    for path in (tmp_path / "absent.so", tmp_path / "text.so"):
        (tmp_path / "text.so").write_text("not a library")
        with pytest.raises(quire.LoadError, match=path.name):
            load_backend(str(path))
    with pytest.raises(quire.LoadError):
        load_backend("libggml-base.so")


# NumPy


@pytest.mark.parametrize("name", PLAIN)
def test_arrays_share_memory_both_ways(name):
    array = np.arange(24).reshape(2, 3, 4).astype(PLAIN[name])
    tensor = Tensor.from_numpy(array)
    assert (tensor.dtype, tensor.shape, tensor.size_bytes) == (name, (2, 3, 4), array.nbytes)
    back = tensor.numpy()
    assert back.dtype == array.dtype
    assert address(back) == address(array)
    np.testing.assert_array_equal(back, array)
    array[1, 2, 3] = 99
    assert back[1, 2, 3] == 99
    back[0, 0, 0] = 77
    assert array[0, 0, 0] == 77


def test_raw_storage_shares_memory():
    halves = np.arange(8, dtype="u2").reshape(2, 4)
    tensor = Tensor.from_numpy(halves, "bf16")
    assert (tensor.shape, tensor.dtype) == ((2, 4), "bf16")
    assert address(tensor.numpy()) == address(halves)
    blocks = np.zeros((3, 2 * 34), "u1")
    tensor = Tensor.from_numpy(blocks, "q8_0")
    assert tensor.shape == (3, 64)
    assert tensor.numpy().shape == (3, 68)
    assert address(tensor.numpy()) == address(blocks)


def test_a_non_contiguous_array_is_copied_or_an_error():
    array = np.arange(12, dtype="f4").reshape(3, 4).T
    tensor = Tensor.from_numpy(array)
    np.testing.assert_array_equal(tensor.numpy(), array)
    assert address(tensor.numpy()) != address(array)
    with pytest.raises(ShapeError, match="contiguous"):
        Tensor.from_numpy(array, copy=False)
    dense = np.ascontiguousarray(array)
    assert address(Tensor.from_numpy(dense, copy=True).numpy()) != address(dense)


def test_an_unaligned_array_is_used_in_place():
    raw = np.zeros(41, "u1")
    array = raw[1:].view("f4")
    array[:] = np.arange(10)
    tensor = Tensor.from_numpy(array)
    np.testing.assert_array_equal(tensor.numpy(), np.arange(10))


def test_a_read_only_array_stays_read_only():
    array = np.ones(4, "f4")
    array.flags.writeable = False
    tensor = Tensor.from_numpy(array)
    assert tensor.read_only
    assert not tensor.numpy().flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        tensor.numpy()[0] = 1


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.zeros(4, "c8"), None),
        (np.zeros(4, ">f4"), None),
        (np.zeros(4, "u1"), None),
        (np.zeros(4, "?"), None),
        (np.array(["a"]), None),
        (np.array([None]), None),
        (np.array(1, "f4"), None),
        (np.zeros((1,) * 5, "f4"), None),
        (np.zeros((0, 4), "f4"), None),
        (np.zeros((4, 0), "f4"), None),
        (np.zeros(33, "u1"), "q8_0"),
        (np.zeros(0, "u1"), "q8_0"),
        (np.zeros(34, "i1"), "q8_0"),
        (np.zeros(4, "f4"), "bf16"),
        (np.zeros(4, "f4"), "f16"),
    ],
)
def test_unsupported_arrays_are_errors(array, dtype):
    with pytest.raises(ShapeError, match=r"\[tensor\]"):
        Tensor.from_numpy(array, dtype)


@pytest.mark.parametrize("shape", [[], [0], [-1], [2, 0], [1] * 5, [2**62, 4], [2**31, 2**31], [2**63 - 1]])
def test_impossible_shapes_are_errors(shape):
    with pytest.raises(ShapeError, match=r"\[(tensor|dtype)\]"):
        Tensor.empty("f32", shape)


def test_too_much_memory_is_an_error():
    with pytest.raises(quire.CapacityError):
        Tensor.empty("f32", [2**40, 2**10])


def test_asarray_follows_numpys_rules():
    tensor = Tensor.from_numpy(np.arange(4, dtype="f4"))
    shared = np.asarray(tensor)
    assert address(shared) == address(tensor.numpy())
    assert np.asarray(tensor, "f8").dtype == np.float64
    assert address(np.array(tensor)) != address(shared)
    assert address(tensor.__array__(np.float32, copy=False)) == address(shared)
    with pytest.raises(ValueError, match="copy"):
        tensor.__array__(np.float64, copy=False)


def test_memory_lives_as_long_as_anything_over_it():
    class Owned(np.ndarray):
        pass

    array = np.arange(1000, dtype="f4").view(Owned)
    gone = weakref.ref(array)
    tensor = Tensor.from_numpy(array)
    view = tensor.numpy()[10:]
    del array, tensor
    gc.collect()
    assert gone() is not None
    assert view[0] == 10
    del view
    gc.collect()
    assert gone() is None


def test_no_memory_is_leaked():
    array = np.zeros(16, "f4")
    before = sys.getrefcount(array)
    for _ in range(100):
        Tensor.from_numpy(array).numpy()
        np.from_dlpack(Tensor.from_numpy(array))
        Tensor.from_dlpack(array)
        Tensor.from_numpy(array).__dlpack__(max_version=(1, 0))
    gc.collect()
    assert sys.getrefcount(array) == before


def test_the_last_tensor_may_go_on_another_thread():
    held = [Tensor.from_numpy(np.zeros(1000, "f4")) for _ in range(100)]
    threads = [threading.Thread(target=held.pop) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert held == []


def test_to_the_same_device_shares_memory():
    tensor = Tensor.from_numpy(np.zeros(4, "f4"))
    for there in ("cpu", "CPU", tensor.device):
        assert address(tensor.to(there).numpy()) == address(tensor.numpy())


# DLPack


@pytest.mark.parametrize("name", PLAIN)
def test_dlpack_shares_memory_with_numpy(name):
    array = np.arange(6).reshape(2, 3).astype(PLAIN[name])
    tensor = Tensor.from_dlpack(array)
    assert (tensor.dtype, tensor.shape) == (name, (2, 3))
    assert address(tensor.numpy()) == address(array)
    back = np.from_dlpack(tensor)
    assert back.dtype == array.dtype
    assert address(back) == address(array)
    assert tensor.__dlpack_device__() == (1, 0)


def test_dlpack_between_tensors_keeps_bf16_and_shows_quantized_types_as_bytes():
    halves = Tensor.from_numpy(np.arange(8, dtype="u2"), "bf16")
    assert Tensor.from_dlpack(halves).dtype == "bf16"
    assert address(Tensor.from_dlpack(halves.__dlpack__()).numpy()) == address(halves.numpy())
    blocks = Tensor.from_numpy(np.arange(68, dtype="u1"), "q8_0")
    np.testing.assert_array_equal(np.from_dlpack(blocks), np.arange(68))


def test_dlpack_of_read_only_memory_is_read_only():
    array = np.ones(4, "f4")
    array.flags.writeable = False
    tensor = Tensor.from_numpy(array)
    assert Tensor.from_dlpack(tensor).read_only
    with pytest.raises(BufferError, match=r"\[dlpack\]"):
        tensor.__dlpack__()


def test_dlpack_exports_of_unsupported_kinds_are_errors():
    tensor = Tensor.from_numpy(np.ones(4, "f4"))
    for arguments in ({"stream": 1}, {"dl_device": (2, 0)}):
        with pytest.raises(UnsupportedError, match=r"\[dlpack\]"):
            tensor.__dlpack__(**arguments)
    copy = np.from_dlpack(Holder(tensor.__dlpack__(max_version=(1, 0), copy=True)))
    assert address(copy) != address(tensor.numpy())


class Holder:
    def __init__(self, capsule):
        self.capsule = capsule

    def __dlpack__(self, **_):
        return self.capsule

    def __dlpack_device__(self):
        return (1, 0)


def test_dlpack_imports_of_unsupported_kinds_are_errors():
    used = np.ones(3, "f4").__dlpack__()
    Tensor.from_dlpack(used)
    with pytest.raises(ShapeError, match="unused"):
        Tensor.from_dlpack(used)
    with pytest.raises(ShapeError, match="contiguous"):
        Tensor.from_dlpack(np.ones((3, 4), "f4").T)
    with pytest.raises(UnsupportedError, match="type"):
        Tensor.from_dlpack(np.ones(3, "c8"))
    with pytest.raises(ShapeError):
        Tensor.from_dlpack(np.ones((0, 3), "f4"))
    with pytest.raises(ShapeError):
        Tensor.from_dlpack(np.array(1, "f4"))
    with pytest.raises(AttributeError):
        Tensor.from_dlpack("no array")


def test_dlpack_releases_capsules_after_an_error():
    array = np.ones((3, 4), "f4")
    before = sys.getrefcount(array)
    for _ in range(20):
        with pytest.raises(ShapeError):
            Tensor.from_dlpack(array.T)
    gc.collect()
    assert sys.getrefcount(array) == before
