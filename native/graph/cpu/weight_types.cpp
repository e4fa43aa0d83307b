#include "graph/cpu/weight_types.h"

#include <algorithm>
#include <vector>

#include "graph/cpu/equivalent_types.h"
#include "kernels/matmul/file_blocks.h"

namespace quire {
namespace {

// For a type whose numbers another format holds.
void pack_as_equivalent(const PackedWeights &packed, const Tensor &tensor, int64_t tile, uint8_t *to) {
    const DType dtype = tensor.dtype();
    const size_t from_bytes = row_bytes(dtype, packed.n_in);
    const int64_t to_bytes = packed.n_in / file_block_columns(packed.format) * file_block_bytes(packed.format);
    PackedWeights rows = packed;
    const int64_t first = tile * packed.rows_of_tile();
    rows.n_out = std::min(packed.rows_of_tile(), packed.n_out - first);
    static thread_local std::vector<uint8_t> written;
    written.resize(static_cast<size_t>(to_bytes * rows.n_out));
    for (int64_t i = 0; i < rows.n_out; ++i)
        write_as_equivalent(dtype, tensor.data() + static_cast<size_t>(first + i) * from_bytes, packed.n_in,
                            written.data() + i * to_bytes);
    pack_tile(rows, written.data(), 0, to);
}

} // namespace

std::optional<WeightFormat> packed_format(DType dtype) {
    switch (dtype) {
    case DType::f32: return WeightFormat::f32;
    case DType::f16: return WeightFormat::f16;
    case DType::bf16: return WeightFormat::bf16;
    case DType::q4_0: return WeightFormat::q4_0;
    case DType::q4_1: return WeightFormat::q4_1;
    case DType::q5_0: return WeightFormat::q5_0;
    case DType::q5_1: return WeightFormat::q5_1;
    case DType::q8_0: return WeightFormat::q8_0;
    case DType::q4_k: return WeightFormat::q4_k;
    case DType::q5_k: return WeightFormat::q5_k;
    case DType::q6_k: return WeightFormat::q6_k;
    case DType::q2_k: return WeightFormat::q2_k;
    case DType::q3_k: return WeightFormat::q3_k;
    case DType::iq4_nl: return WeightFormat::iq4_nl;
    case DType::iq4_xs: return WeightFormat::iq4_xs;
    case DType::mxfp4: return WeightFormat::mxfp4;
    case DType::nvfp4: return WeightFormat::nvfp4;
    case DType::q2_0: return WeightFormat::q2_0;
    default: return equivalent_format(dtype);
    }
}

int64_t packed_row_bytes(DType dtype, int64_t n) {
    const std::optional<WeightFormat> format = packed_format(dtype);
    if (!format || !is_quantized(dtype)) return static_cast<int64_t>(row_bytes(dtype, n));
    return PackedWeights{*format, tile_rows, n, nullptr}.tile_bytes() / tile_rows;
}

void pack_tile(const PackedWeights &packed, const Tensor &tensor, int64_t tile, uint8_t *to) {
    equivalent_format(tensor.dtype()) ? pack_as_equivalent(packed, tensor, tile, to)
                                      : pack_tile(packed, tensor.data(), tile, to);
}

} // namespace quire
