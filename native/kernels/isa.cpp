#include "kernels/isa.h"

#include <algorithm>
#include <atomic>

#include "core/error.h"
#include "kernels/attention_kernels.h"
#include "kernels/row_kernels.h"

namespace quire {
namespace {

std::vector<Isa> find_supported() {
    std::vector<Isa> found{Isa::portable};
#if defined(__x86_64__)
    // The compiler's check includes whether the system saves the wider registers.
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (avx2) found.push_back(Isa::avx2);
    if (avx2 && avx512) found.push_back(Isa::avx512);
#endif
    return found;
}

std::atomic<Isa> &current() {
    static std::atomic<Isa> value{supported_isas().back()};
    return value;
}

} // namespace

std::string name(Isa isa) {
    switch (isa) {
    case Isa::avx2: return "avx2";
    case Isa::avx512: return "avx512";
    default: return "portable";
    }
}

std::optional<Isa> isa_from_name(const std::string &wanted) {
    for (Isa each : {Isa::portable, Isa::avx2, Isa::avx512}) {
        if (name(each) == wanted) return each;
    }
    return std::nullopt;
}

const std::vector<Isa> &supported_isas() {
    static const std::vector<Isa> found = find_supported();
    return found;
}

Isa isa() { return current().load(std::memory_order_relaxed); }

void set_isa(Isa isa) {
    const auto &known = supported_isas();
    if (std::find(known.begin(), known.end(), isa) == known.end()) {
        throw UnsupportedError("isa", cat("this machine must run ", name(isa), " but does not"));
    }
    current().store(isa, std::memory_order_relaxed);
}

const AttentionKernels &attention_kernels(Isa isa) {
#if defined(__x86_64__)
    if (isa == Isa::avx512) return avx512::attention_kernels;
    if (isa == Isa::avx2) return avx2::attention_kernels;
#endif
    (void)isa;
    return portable::attention_kernels;
}

const RowKernels &row_kernels() {
#if defined(__x86_64__)
    if (isa() == Isa::avx512) return avx512::row_kernels;
    if (isa() == Isa::avx2) return avx2::row_kernels;
#endif
    return portable::row_kernels;
}

} // namespace quire
