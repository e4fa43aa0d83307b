// Every element type that ggml stores, with the size of its blocks.  The numeric values are those of ggml and GGUF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace quire {

enum class DType : int32_t {
    f32 = 0,
    f16 = 1,
    q4_0 = 2,
    q4_1 = 3,
    q5_0 = 6,
    q5_1 = 7,
    q8_0 = 8,
    q8_1 = 9,
    q2_k = 10,
    q3_k = 11,
    q4_k = 12,
    q5_k = 13,
    q6_k = 14,
    q8_k = 15,
    iq2_xxs = 16,
    iq2_xs = 17,
    iq3_xxs = 18,
    iq1_s = 19,
    iq4_nl = 20,
    iq3_s = 21,
    iq2_s = 22,
    iq4_xs = 23,
    i8 = 24,
    i16 = 25,
    i32 = 26,
    i64 = 27,
    f64 = 28,
    iq1_m = 29,
    bf16 = 30,
    tq1_0 = 34,
    tq2_0 = 35,
    mxfp4 = 39,
    nvfp4 = 40,
    q1_0 = 41,
    q2_0 = 42,
};

// All types in numeric order.
const std::vector<DType> &all_dtypes();
// The type with this number in GGUF, if there is one.
std::optional<DType> dtype_from_id(int64_t id);
// The type called `name` ("q8_0", ignoring case), if there is one.
std::optional<DType> dtype_from_name(std::string name);

std::string name(DType dtype);
int64_t block_size(DType dtype);    // elements in a block
size_t block_bytes(DType dtype);    // bytes of a block
bool is_quantized(DType dtype);
// Bytes of a row of n elements; ShapeError unless n is a multiple of the block size.
size_t row_bytes(DType dtype, int64_t n);

} // namespace quire
