#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstring>

#include "bindings/bindings.h"
#include "core/error.h"
#include "gguf/gguf_reader.h"

namespace quire::bindings {
namespace py = pybind11;
namespace {

LoadMode load_mode(const std::string &text) {
    if (text == "mmap") return LoadMode::mmap;
    if (text == "copy") return LoadMode::copy;
    if (text == "lock") return LoadMode::lock;
    throw UnsupportedError("load", cat("the load mode is '", text, "': expected one of mmap, copy, lock"));
}

template <class T> T scalar(const GgufValue &value) {
    T result;
    std::memcpy(&result, value.bytes.data(), sizeof(T));
    return result;
}

py::object scalar_object(const GgufValue &value) {
    switch (value.type) {
    case GgufType::u8: return py::int_(scalar<uint8_t>(value));
    case GgufType::i8: return py::int_(scalar<int8_t>(value));
    case GgufType::u16: return py::int_(scalar<uint16_t>(value));
    case GgufType::i16: return py::int_(scalar<int16_t>(value));
    case GgufType::u32: return py::int_(scalar<uint32_t>(value));
    case GgufType::i32: return py::int_(scalar<int32_t>(value));
    case GgufType::u64: return py::int_(scalar<uint64_t>(value));
    case GgufType::i64: return py::int_(scalar<int64_t>(value));
    case GgufType::f32: return py::float_(static_cast<double>(scalar<float>(value)));
    case GgufType::f64: return py::float_(scalar<double>(value));
    case GgufType::boolean: return py::bool_(scalar<uint8_t>(value) != 0);
    default: throw InternalError("gguf", "not a scalar type");
    }
}

// Vocabularies hold bytes that are no UTF-8; they come through as lone surrogates and can be encoded back.
py::object text_object(std::string_view text) {
    return py::reinterpret_steal<py::object>(
        PyUnicode_DecodeUTF8(text.data(), static_cast<py::ssize_t>(text.size()), "surrogateescape"));
}

const char *numpy_code(GgufType type) {
    switch (type) {
    case GgufType::u8: return "u1";
    case GgufType::i8: return "i1";
    case GgufType::u16: return "<u2";
    case GgufType::i16: return "<i2";
    case GgufType::u32: return "<u4";
    case GgufType::i32: return "<i4";
    case GgufType::u64: return "<u8";
    case GgufType::i64: return "<i8";
    case GgufType::f32: return "<f4";
    case GgufType::f64: return "<f8";
    default: return "?";
    }
}

const GgufValue &existing(const GgufReader &self, const std::string &key) {
    const GgufValue *value = self.find(key);
    if (value == nullptr) throw py::key_error(key);
    return *value;
}

py::object value_object(const GgufReader &self, const std::string &key) {
    const GgufValue &value = existing(self, key);
    if (value.type == GgufType::string) {
        std::vector<std::string_view> strings = strings_of(value);
        if (!value.is_array) return text_object(strings[0]);
        py::list list(strings.size());
        for (size_t i = 0; i < strings.size(); ++i) list[i] = text_object(strings[i]);
        return list;
    }
    if (!value.is_array) return scalar_object(value);
    py::array array(py::dtype(numpy_code(value.type)), static_cast<py::ssize_t>(value.n));
    std::memcpy(array.mutable_data(), value.bytes.data(), value.bytes.size());
    return array;
}

py::list string_bytes(const GgufReader &self, const std::string &key) {
    const GgufValue &value = existing(self, key);
    if (value.type != GgufType::string)
        throw LoadError("gguf", cat("key '", key, "' holds ", type_name(value.type), ": expected strings"));
    std::vector<std::string_view> strings = strings_of(value);
    py::list list(strings.size());
    for (size_t i = 0; i < strings.size(); ++i) list[i] = py::bytes(strings[i].data(), strings[i].size());
    return list;
}

py::tuple packed_strings(const GgufReader &self, const std::string &key) {
    const GgufValue &value = existing(self, key);
    if (value.type != GgufType::string)
        throw LoadError("gguf", cat("key '", key, "' holds ", type_name(value.type), ": expected strings"));
    return py::make_tuple(py::bytes(reinterpret_cast<const char *>(value.bytes.data()), value.bytes.size()), value.n);
}

py::bytes packed_numbers(const GgufReader &self, const std::string &key) {
    const GgufValue &value = existing(self, key);
    if (value.type == GgufType::string || !value.is_array)
        throw LoadError("gguf", cat("key '", key, "' holds ", type_name(value.type), ": expected an array of numbers"));
    return py::bytes(reinterpret_cast<const char *>(value.bytes.data()), value.bytes.size());
}

std::string value_type(const GgufReader &self, const std::string &key) {
    const GgufValue &value = existing(self, key);
    return cat(type_name(value.type), value.is_array ? "[]" : "");
}

const GgufTensorInfo &existing_tensor(const GgufReader &self, const std::string &name) {
    const GgufTensorInfo *info = self.find_tensor(name);
    if (info == nullptr) throw LoadError("gguf", cat("no tensor '", name, "' in the file"));
    return *info;
}

} // namespace

void bind_gguf(py::module_ &m) {
    py::class_<GgufTensorInfo>(m, "TensorInfo")
        .def_readonly("name", &GgufTensorInfo::name)
        .def_readonly("dtype", &GgufTensorInfo::dtype)
        .def_property_readonly("shape", [](const GgufTensorInfo &self) { return py::tuple(py::cast(self.shape)); })
        .def_readonly("offset_bytes", &GgufTensorInfo::offset_bytes)
        .def_readonly("size_bytes", &GgufTensorInfo::size_bytes)
        .def_readonly("part", &GgufTensorInfo::part);
    py::class_<GgufReader, std::shared_ptr<GgufReader>>(m, "Reader")
        .def(py::init([](const std::string &path, const std::string &load) {
                 LoadMode mode = load_mode(load);
                 py::gil_scoped_release release;
                 return std::make_shared<GgufReader>(path, mode);
             }),
             py::arg("path"), py::arg("load") = "mmap")
        .def_property_readonly("version", &GgufReader::version)
        .def_property_readonly("alignment", &GgufReader::alignment)
        .def_property_readonly("n_files", &GgufReader::n_files)
        .def_property_readonly("size_bytes", &GgufReader::size_bytes)
        .def("keys", &GgufReader::keys)
        .def(
            "has", [](const GgufReader &self, const std::string &key) { return self.find(key) != nullptr; },
            py::arg("key"))
        .def("value", &value_object, py::arg("key"))
        .def("value_type", &value_type, py::arg("key"))
        .def("string_bytes", &string_bytes, py::arg("key"))
        .def("packed_strings", &packed_strings, py::arg("key"))
        .def("packed_numbers", &packed_numbers, py::arg("key"))
        .def("tensors", &GgufReader::tensors)
        .def(
            "has_tensor",
            [](const GgufReader &self, const std::string &name) { return self.find_tensor(name) != nullptr; },
            py::arg("name"))
        .def("tensor_info", &existing_tensor, py::arg("name"))
        .def(
            "tensor",
            [](const GgufReader &self, const std::string &name) { return self.tensor(existing_tensor(self, name)); },
            py::arg("name"))
        .def("check_unchanged", &GgufReader::check_unchanged)
        .def_property_readonly("identity", &GgufReader::identity);
}

} // namespace quire::bindings
