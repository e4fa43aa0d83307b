#include "kernels/isa.h"

#include <atomic>

namespace quire {
namespace {

Isa best() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                  __builtin_cpu_supports("avx512dq");
    if (avx2 && avx512) return Isa::avx512;
    if (avx2) return Isa::avx2;
#endif
    return Isa::portable;
}

std::atomic<Isa> &current() {
    static std::atomic<Isa> value{best()};
    return value;
}

} // namespace

Isa isa() { return current().load(std::memory_order_relaxed); }

std::vector<Isa> supported_isas() {
    std::vector<Isa> isas;
    for (Isa one : {Isa::portable, Isa::avx2, Isa::avx512}) {
        if (one <= best()) isas.push_back(one);
    }
    return isas;
}

bool force_isa(Isa wanted) {
    if (wanted > best()) return false;
    current().store(wanted, std::memory_order_relaxed);
    return true;
}

std::string isa_name(Isa isa) {
    switch (isa) {
    case Isa::portable: return "portable";
    case Isa::avx2: return "avx2";
    case Isa::avx512: return "avx512";
    }
    return "";
}

} // namespace quire
