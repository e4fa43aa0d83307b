#include "quant/quantizer.h"

#include <ggml.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "core/error.h"

namespace quire {
namespace {

// Call work(first row, number of rows) for pieces of all rows, on several threads.  If several pieces throw, the
// exception of the first one is rethrown whatever the number of threads: all pieces before a failed one are run to
// their end.
template <class Work> void over_rows(int64_t n_rows, int64_t row_elements, int n_threads, Work work) {
    const int64_t piece = std::max<int64_t>(1, (int64_t{1} << 18) / row_elements);
    const int64_t n_pieces = (n_rows + piece - 1) / piece;
    const int64_t cores =
        n_threads > 0 ? n_threads : static_cast<int64_t>(std::max(1U, std::thread::hardware_concurrency()));
    std::atomic<int64_t> next{0};
    std::exception_ptr failure;
    int64_t failed = n_pieces;
    std::mutex failing;
    auto run = [&] {
        for (int64_t i; (i = next.fetch_add(1)) < n_pieces;) {
            try {
                work(i * piece, std::min(piece, n_rows - i * piece));
            } catch (...) {
                std::lock_guard lock(failing);
                if (i < failed) failure = std::current_exception();
                failed = std::min(failed, i);
                next = n_pieces;
            }
        }
    };
    std::vector<std::thread> threads;
    for (int64_t i = 1; i < std::min(cores, n_pieces); ++i) threads.emplace_back(run);
    run();
    for (std::thread &thread : threads) thread.join();
    if (failure) std::rethrow_exception(failure);
}

// Above this magnitude ggml's searches for scales overflow, and some of them then abort the process.
constexpr float largest_quantized = 1 << 20;
// Up to this magnitude no type overflows.
constexpr float always_fits = 1024;

struct RowRange {
    DType dtype;
    int64_t elements; // per row
    int64_t first, n;
};

// Return the largest magnitude; throws ShapeError for values that are not finite or too large.
float check_values(const RowRange &rows, const float *values) {
    const int64_t begin = rows.first * rows.elements, end = begin + rows.n * rows.elements;
    float largest = 0;
    for (int64_t i = begin; i < end; ++i) {
        if (!std::isfinite(values[i])) {
            throw ShapeError("quantize", cat("element ", i, " is ", values[i], ": expected finite values"));
        }
        largest = std::max(largest, std::fabs(values[i]));
        if (largest > largest_quantized && is_quantized(rows.dtype)) {
            throw ShapeError("quantize", cat("element ", i, " is ", values[i], ": magnitudes for ", name(rows.dtype),
                                             " are limited to ", largest_quantized));
        }
    }
    return largest;
}

// Check that the values survived.  Most types have scales of f16 or less, which overflow or saturate for large values.
void check_result(const RowRange &rows, const float *values, const uint8_t *data) {
    if (rows.dtype == DType::f32) return;
    // q1_0 stores the mean magnitude, so a single large value does not show in the result.
    const bool keeps_the_largest = rows.dtype != DType::q1_0;
    const ggml_type_traits *traits = ggml_get_type_traits(static_cast<ggml_type>(rows.dtype));
    const size_t bytes = row_bytes(rows.dtype, rows.elements);
    std::vector<float> row(static_cast<size_t>(rows.elements));
    for (int64_t i = rows.first; i < rows.first + rows.n; ++i) {
        traits->to_float(data + static_cast<size_t>(i) * bytes, row.data(), rows.elements);
        const float *original = values + i * rows.elements;
        float largest = 0, largest_stored = 0;
        bool finite = true;
        for (size_t j = 0; j < row.size(); ++j) {
            largest = std::max(largest, std::fabs(original[j]));
            largest_stored = std::max(largest_stored, std::fabs(row[j]));
            finite = finite && std::isfinite(row[j]);
        }
        if (!finite || (keeps_the_largest && largest_stored < largest / 4)) {
            throw ShapeError("quantize",
                             cat("row ", i, " has values up to ", largest, ", too large for ", name(rows.dtype)));
        }
    }
}

// Scale the largest weight to about 1 so that ggml's sums of squares do not overflow.  Only the ratios matter, and a
// power of two keeps them exact.
std::vector<float> scaled_importance(std::span<const float> importance) {
    std::vector<float> scaled(importance.begin(), importance.end());
    const float largest = scaled.empty() ? 0.0F : *std::max_element(scaled.begin(), scaled.end());
    if (largest > 0) {
        const int exponent = std::ilogb(largest);
        for (float &weight : scaled) weight = std::ldexp(weight, -exponent);
    }
    return scaled;
}

void check_importance(DType dtype, std::span<const float> importance, int64_t row_elements) {
    if (importance.empty()) {
        if (needs_importance(dtype))
            throw ShapeError("quantize", cat(name(dtype), " cannot be made without the importance of each column"));
        return;
    }
    if (static_cast<int64_t>(importance.size()) != row_elements) {
        throw ShapeError("quantize", cat("importance has ", importance.size(), " elements: expected one per column, ",
                                         row_elements));
    }
    for (size_t i = 0; i < importance.size(); ++i) {
        if (!std::isfinite(importance[i]) || importance[i] < 0) {
            throw ShapeError("quantize",
                             cat("importance of column ", i, " is ", importance[i], ": expected 0 or more, finite"));
        }
    }
}

} // namespace

bool can_quantize(DType dtype) {
    switch (dtype) {
    case DType::f32:
    case DType::f16:
    case DType::bf16: return true;
    case DType::q8_1:
    case DType::q8_k: return false; // types of intermediate results, not of files
    default: return is_quantized(dtype);
    }
}

bool needs_importance(DType dtype) { return ggml_quantize_requires_imatrix(static_cast<ggml_type>(dtype)); }

Tensor quantize(const float *values, const Shape &shape, DType dtype, std::span<const float> importance,
                int n_threads) {
    if (!can_quantize(dtype))
        throw UnsupportedError("quantize", cat("cannot quantize to ", name(dtype),
                                               ": expected f32, f16, bf16 or a quantized type of files"));
    shape_bytes(dtype, shape);
    int64_t row_elements = shape.back();
    check_importance(dtype, importance, row_elements);
    Tensor result = Tensor::empty(dtype, shape, find_device("CPU"));
    const auto type = static_cast<ggml_type>(dtype);
    ggml_quantize_init(type); // builds lookup tables; thread-safe
    const std::vector<float> scaled = scaled_importance(importance);
    const float *weights = scaled.empty() ? nullptr : scaled.data();
    over_rows(result.n_elements() / row_elements, row_elements, n_threads, [&](int64_t first, int64_t n) {
        const RowRange rows{dtype, row_elements, first, n};
        const float largest = check_values(rows, values);
        ggml_quantize_chunk(type, values, result.data(), first * row_elements, n, row_elements, weights);
        if (largest > always_fits) check_result(rows, values, result.data());
    });
    return result;
}

void dequantize(const Tensor &tensor, float *values, int n_threads) {
    DType dtype = tensor.dtype();
    const ggml_type_traits *traits = ggml_get_type_traits(static_cast<ggml_type>(dtype));
    bool plain = dtype == DType::f32;
    if (!plain && (traits->to_float == nullptr || !can_quantize(dtype))) {
        throw UnsupportedError("dequantize", cat("cannot dequantize ", name(dtype),
                                                 ": expected f32, f16, bf16 or a quantized type of files"));
    }
    int64_t row_elements = tensor.shape().back();
    size_t bytes = row_bytes(dtype, row_elements);
    const uint8_t *data = tensor.data();
    over_rows(tensor.n_elements() / row_elements, row_elements, n_threads, [&](int64_t first, int64_t n) {
        float *to = values + first * row_elements;
        const uint8_t *from = data + static_cast<size_t>(first) * bytes;
        if (plain) {
            std::copy_n(reinterpret_cast<const float *>(from), n * row_elements, to);
        } else {
            traits->to_float(from, to, n * row_elements);
        }
    });
}

} // namespace quire
