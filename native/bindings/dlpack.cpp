#include "bindings/dlpack.h"

#include <cstring>

#include "core/error.h"

namespace quire::bindings {
namespace py = pybind11;
namespace {

// The structures of the DLPack binary interface.
struct DlDevice {
    int32_t type, id; // type 1: CPU
};
struct DlType {
    uint8_t code, bits; // code 0: int, 1: uint, 2: float, 4: bfloat
    uint16_t lanes;
};
struct DlTensor {
    void *data;
    DlDevice device;
    int32_t n_dims;
    DlType type;
    int64_t *shape, *strides; // strides in elements, or null when dense
    uint64_t offset_bytes;
};
struct DlManaged {
    DlTensor tensor;
    void *context;
    void (*deleter)(DlManaged *);
};
struct DlVersioned {
    uint32_t major, minor;
    void *context;
    void (*deleter)(DlVersioned *);
    uint64_t flags; // bit 0: read-only
    DlTensor tensor;
};
constexpr uint64_t read_only_flag = 1;

DlType dl_type(DType dtype) {
    switch (dtype) {
    case DType::f32: return {2, 32, 1};
    case DType::f16: return {2, 16, 1};
    case DType::f64: return {2, 64, 1};
    case DType::bf16: return {4, 16, 1};
    case DType::i8: return {0, 8, 1};
    case DType::i16: return {0, 16, 1};
    case DType::i32: return {0, 32, 1};
    case DType::i64: return {0, 64, 1};
    default: return {1, 8, 1}; // quantized: bytes
    }
}

DType dtype_of(DlType type) {
    for (DType dtype :
         {DType::f32, DType::f16, DType::f64, DType::bf16, DType::i8, DType::i16, DType::i32, DType::i64}) {
        DlType candidate = dl_type(dtype);
        if (candidate.code == type.code && candidate.bits == type.bits && type.lanes == 1) return dtype;
    }
    throw UnsupportedError("dlpack", cat("unsupported type: code ", int{type.code}, " of ", int{type.bits}, " bits"));
}

// The exported tensor with the arrays that its description points to.
struct Exported {
    Tensor tensor;
    std::vector<int64_t> shape;
};

DlTensor describe(Exported &exported) {
    const Tensor &tensor = exported.tensor;
    return {tensor.data(),
            {1, 0},
            static_cast<int32_t>(exported.shape.size()),
            dl_type(tensor.dtype()),
            exported.shape.data(),
            nullptr,
            0};
}

template <class Managed> void drop(PyObject *capsule, const char *unused_name) {
    if (PyCapsule_IsValid(capsule, unused_name) == 0) return; // taken over by a consumer, who deletes it
    auto *managed = static_cast<Managed *>(PyCapsule_GetPointer(capsule, unused_name));
    managed->deleter(managed);
}

// Invokes the producer's deleter once the last tensor over the memory is gone.
template <class Managed> std::shared_ptr<void> owner_of(Managed *managed) {
    return std::shared_ptr<void>(managed, [](void *p) {
        py::gil_scoped_acquire acquire; // the deleter may touch Python objects
        auto *owned = static_cast<Managed *>(p);
        if (owned->deleter != nullptr) owned->deleter(owned);
    });
}

bool is_dense(const DlTensor &tensor) {
    if (tensor.strides == nullptr) return true;
    int64_t expected = 1;
    for (int i = tensor.n_dims - 1; i >= 0; --i) {
        if (tensor.shape[i] != 1 && tensor.strides[i] != expected) return false;
        expected *= tensor.shape[i];
    }
    return true;
}

Tensor adopt(const DlTensor &from, bool read_only, std::shared_ptr<void> owner) {
    if (from.device.type != 1)
        throw UnsupportedError("dlpack", cat("the array is not in CPU memory: device type ", from.device.type));
    if (!is_dense(from)) throw ShapeError("dlpack", "the array is not contiguous");
    DType dtype = dtype_of(from.type);
    Shape shape(from.shape, from.shape + from.n_dims);
    size_t bytes = shape_bytes(dtype, shape);
    auto *data = static_cast<uint8_t *>(from.data) + from.offset_bytes;
    auto buffer = Buffer::borrow(data, bytes, read_only, std::move(owner));
    return Tensor::in_buffer(dtype, shape, buffer, static_cast<size_t>(data - buffer->base()));
}

} // namespace

py::capsule tensor_to_dlpack(const Tensor &tensor, const py::object &stream, const py::object &max_version,
                             const py::object &device, std::optional<bool> copy) {
    if (!stream.is_none()) throw UnsupportedError("dlpack", "a tensor in CPU memory has no stream");
    if (!device.is_none() && !device.equal(py::make_tuple(1, 0)))
        throw UnsupportedError("dlpack", "a tensor in CPU memory is on device (1, 0) only");
    Tensor source = tensor;
    if (copy == true) {
        source = Tensor::empty(tensor.dtype(), tensor.shape(), tensor.device());
        source.copy_from_host(tensor.data(), tensor.size_bytes());
    }
    auto *exported = new Exported{source, {source.shape().begin(), source.shape().end()}};
    if (is_quantized(source.dtype()))
        exported->shape.back() = static_cast<int64_t>(row_bytes(source.dtype(), source.shape().back()));
    bool versioned = !max_version.is_none() && max_version.cast<py::tuple>()[0].cast<int>() >= 1;
    if (!versioned) {
        if (source.buffer()->read_only()) {
            delete exported;
            throw py::buffer_error("[dlpack] a read-only tensor needs max_version (1, 0) or above");
        }
        auto *managed = new DlManaged{describe(*exported), exported, [](DlManaged *self) {
                                          delete static_cast<Exported *>(self->context);
                                          delete self;
                                      }};
        return py::capsule(managed, "dltensor", [](PyObject *capsule) { drop<DlManaged>(capsule, "dltensor"); });
    }
    auto *managed = new DlVersioned{1,
                                    0,
                                    exported,
                                    [](DlVersioned *self) {
                                        delete static_cast<Exported *>(self->context);
                                        delete self;
                                    },
                                    source.buffer()->read_only() ? read_only_flag : 0,
                                    describe(*exported)};
    return py::capsule(managed, "dltensor_versioned",
                       [](PyObject *capsule) { drop<DlVersioned>(capsule, "dltensor_versioned"); });
}

Tensor tensor_from_dlpack(const py::object &source) {
    py::object capsule = source;
    if (!PyCapsule_CheckExact(source.ptr())) {
        try {
            capsule = source.attr("__dlpack__")(py::arg("max_version") = py::make_tuple(1, 0));
        } catch (py::error_already_set &error) {
            if (!error.matches(PyExc_TypeError)) throw; // a producer from before versions
            capsule = source.attr("__dlpack__")();
        }
    }
    if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned") != 0) {
        auto *managed = static_cast<DlVersioned *>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
        if (managed->major > 1)
            throw UnsupportedError("dlpack", cat("unsupported DLPack version ", managed->major, ": expected 1"));
        PyCapsule_SetName(capsule.ptr(), "used_dltensor_versioned");
        return adopt(managed->tensor, (managed->flags & read_only_flag) != 0, owner_of(managed));
    }
    if (PyCapsule_IsValid(capsule.ptr(), "dltensor") == 0)
        throw ShapeError("dlpack", "the source gave no unused DLPack capsule");
    auto *managed = static_cast<DlManaged *>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
    PyCapsule_SetName(capsule.ptr(), "used_dltensor");
    return adopt(managed->tensor, false, owner_of(managed));
}

} // namespace quire::bindings
