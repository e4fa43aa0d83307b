#include "core/dtype.h"

#include <ggml.h>

#include <algorithm>
#include <cctype>

#include "core/error.h"

namespace quire {
namespace {

static_assert(static_cast<int>(DType::bf16) == GGML_TYPE_BF16 && static_cast<int>(DType::q6_k) == GGML_TYPE_Q6_K &&
              static_cast<int>(DType::iq4_xs) == GGML_TYPE_IQ4_XS &&
              static_cast<int>(DType::mxfp4) == GGML_TYPE_MXFP4 && static_cast<int>(DType::q2_0) == GGML_TYPE_Q2_0 &&
              static_cast<int>(DType::f64) == GGML_TYPE_F64);

ggml_type to_ggml(DType dtype) { return static_cast<ggml_type>(dtype); }

} // namespace

const std::vector<DType> &all_dtypes() {
    // ggml keeps the numbers of removed types as entries of size 0.
    static const std::vector<DType> types = [] {
        std::vector<DType> found;
        for (int id = 0; id < GGML_TYPE_COUNT; ++id) {
            if (ggml_blck_size(static_cast<ggml_type>(id)) > 0 && ggml_type_size(static_cast<ggml_type>(id)) > 0) {
                found.push_back(static_cast<DType>(id));
            }
        }
        return found;
    }();
    return types;
}

std::optional<DType> dtype_from_id(int64_t id) {
    for (DType dtype : all_dtypes()) {
        if (static_cast<int64_t>(dtype) == id) return dtype;
    }
    return std::nullopt;
}

std::optional<DType> dtype_from_name(std::string wanted) {
    std::transform(wanted.begin(), wanted.end(), wanted.begin(), [](unsigned char c) { return std::tolower(c); });
    for (DType dtype : all_dtypes()) {
        if (name(dtype) == wanted) return dtype;
    }
    return std::nullopt;
}

std::string name(DType dtype) {
    std::string text = ggml_type_name(to_ggml(dtype));
    std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
    return text;
}

int64_t block_size(DType dtype) { return ggml_blck_size(to_ggml(dtype)); }

size_t block_bytes(DType dtype) { return ggml_type_size(to_ggml(dtype)); }

bool is_quantized(DType dtype) { return ggml_is_quantized(to_ggml(dtype)); }

size_t row_bytes(DType dtype, int64_t n) {
    if (n < 0 || n % block_size(dtype) != 0) {
        throw ShapeError("dtype", cat("a row of ", n, " elements does not fit ", name(dtype),
                                      ": expected a multiple of ", block_size(dtype)));
    }
    size_t bytes = 0;
    if (__builtin_mul_overflow(static_cast<size_t>(n / block_size(dtype)), block_bytes(dtype), &bytes)) {
        throw ShapeError("dtype", cat("a row of ", n, " elements of ", name(dtype), " exceeds 2^64 bytes"));
    }
    return bytes;
}

} // namespace quire
