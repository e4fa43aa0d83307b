#include "graph/cpu/cpu_matrices.h"

#include <ggml-cpu.h>
#include <ggml.h>

#include "core/device.h"
#include "core/error.h"

namespace quire {

FileRows file_rows(const std::string &what, DType dtype, const uint8_t *data, int64_t n_in) {
    static const auto traits_of =
        reinterpret_cast<decltype(&ggml_get_type_traits_cpu)>(cpu_symbol("ggml_get_type_traits_cpu"));
    const auto type = static_cast<ggml_type>(dtype);
    const ggml_type_traits_cpu *traits = traits_of(type);
    if (traits->vec_dot == nullptr) {
        throw UnsupportedError("weights", cat(what, " is ", name(dtype), ", a type that cannot be multiplied"));
    }
    FileRows rows;
    rows.data = data;
    rows.row_bytes = ggml_row_size(type, n_in);
    rows.x_row_bytes = ggml_row_size(traits->vec_dot_type, n_in);
    rows.to_floats = type == GGML_TYPE_F32 ? nullptr : ggml_get_type_traits(type)->to_float;
    rows.round = traits->vec_dot_type == GGML_TYPE_F32 ? nullptr : traits_of(traits->vec_dot_type)->from_float;
    rows.dot = traits->vec_dot;
    return rows;
}

namespace {

FileRows rows_in_file(const WeightRef &weight, int64_t n_in) {
    return file_rows(weight->name, weight->tensor.dtype(), weight->tensor.data(), n_in);
}

} // namespace

const Matrix *CpuMatrices::find(const WeightRef &weight) {
    std::vector<const Matrix *> &known = known_[weight.get()];
    if (!known.empty()) return known.front();
    const Shape &shape = weight->tensor.shape();
    const PackedWeights *packed = packed_ == nullptr ? nullptr : packed_->find(weight);
    known.push_back(&matrices_.emplace_back(packed != nullptr
                                                ? packed_matrix(kernels_, *packed)
                                                : Matrix{{}, rows_in_file(weight, shape[1]), shape[0], shape[1]}));
    return known.front();
}

const std::vector<const Matrix *> &CpuMatrices::experts(const WeightRef &weight) {
    std::vector<const Matrix *> &known = known_[weight.get()];
    if (!known.empty()) return known;
    const Shape &shape = weight->tensor.shape();
    Matrix matrix;
    if (const PackedWeights *packed = packed_ == nullptr ? nullptr : packed_->find(weight)) {
        PackedWeights first = *packed; // all experts, whose rows fill whole tiles
        first.n_out = shape[1];
        matrix = packed_matrix(kernels_, first);
    } else {
        matrix = {{}, rows_in_file(weight, shape[2]), shape[1], shape[2]};
    }
    for (int64_t expert = 0; expert < shape[0]; ++expert) {
        known.push_back(&matrices_.emplace_back(matrix));
        if (matrix.packed.data != nullptr) matrix.packed.data += matrix.packed.size_bytes();
        if (matrix.rows.data != nullptr) matrix.rows.data += matrix.rows.row_bytes * static_cast<size_t>(shape[1]);
    }
    return known;
}

} // namespace quire
