// Low-rank adapters (Hu et al. 2021, "LoRA") that are loaded beside a running model.
//
// For a matrix W that an adapter has a pair for, rows x of sequences with the adapter get scale * factor * B (A x) added
// to W x.  Without A, B is as large as W: the difference of a matrix that replaces W.  A pair of a table adds
// scale * factor * B a to the row of a token, with a the token's row of A.  DoRA (Liu et al. 2024) then multiplies each
// result by a length over the norm of its row of W + scale * factor * B A.  An adapter is immutable, and lives as long as a
// request or its owner holds it, so that adapters come and go without a change of the trace.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "graph/trace/trace.h"

namespace quire {

class CpuPairs; // graph/cpu/cpu_pairs.h

// A product by a weight or a lookup in it, which adapters change.
struct AdaptedUse {
    const Weight *weight;
    bool is_table = false;
    auto operator<=>(const AdaptedUse &) const = default;
};

// The factors of the rows of a product with DoRA: lengths / norms(W + scale * factor * B A), where the squared norm is a
// polynomial of the scale.
struct RowLengths {
    std::vector<float> lengths, constant, linear, square; // the last three: of the polynomial
    bool empty() const { return lengths.empty(); }
    // Factors of the rows [begin, end), less `less`.
    void factors(float scale, size_t begin, size_t end, float less, float *out) const {
        const double s = scale;
        for (size_t i = begin; i < end; ++i) {
            const double norm = std::sqrt(std::max(0.0, constant[i] + s * (linear[i] + s * square[i])));
            *out++ = static_cast<float>(lengths[i] / norm - less);
        }
    }
};

// The parts of a pair that devices copy, in host memory; not all pairs have all.  `b` is times the factor.
struct DevicePair {
    // a [rank, n_in] and b [n_out, rank]; of a table a [n_rows, rank].  whole: [n_out, n_in], or [n_rows, n].
    // bias: [1, n_out].
    enum Part { a, b, whole, bias, n_parts };
    std::array<std::optional<Tensor>, n_parts> parts;
    RowLengths lengths;
};

struct LowRankAdapter {
    std::string identity; // names its contents
    uint64_t number; // no other adapter of this process has it
    size_t size_bytes = 0; // in host memory
    std::shared_ptr<const CpuPairs> on_cpu = nullptr; // for products of Quire's own kernels; null if there are none
    std::map<AdaptedUse, DevicePair> for_devices = {}; // in ggml graphs
    bool has_lengths = false; // true if a pair for devices has any
    std::vector<WeightRef> weights = {}; // kept, as their addresses are keys
};

} // namespace quire
