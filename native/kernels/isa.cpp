#include "kernels/isa.h"

#include <algorithm>

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#if defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif
#if defined(__aarch64__) && defined(_WIN32)
#include <windows.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace quire {
namespace {

constexpr struct {
    const char *name;
    InstructionSet set;
} names[] = {
    {"portable", {Isa::portable}},
    {"neon", {Isa::neon}},
    {"neoni8mm", {Isa::neon, DotProducts::matrices}},
    {"avx2", {Isa::avx2}},
    {"avx2vnni", {Isa::avx2, DotProducts::bytes}},
    {"avx512", {Isa::avx512}},
    {"avx512vnni", {Isa::avx512, DotProducts::bytes}},
    {"avx512bf16", {Isa::avx512, DotProducts::bf16}},
    {"avx512amx", {Isa::avx512, DotProducts::tiles}},
    {"avx512amx-emulated", {Isa::avx512, DotProducts::emulated_tiles}},
};

#if defined(__x86_64__)
// Their registers are so large that Linux gives them only to processes that ask (arch_prctl(2)).
bool may_use_tiles() {
#if defined(__linux__)
    constexpr long request_permission = 0x1023, tile_data = 18;
    return __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-int8") &&
           __builtin_cpu_supports("amx-bf16") && syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
    return false;
#endif
}
#endif

std::vector<InstructionSet> find_supported() {
    std::vector<InstructionSet> found{{Isa::portable}};
#if defined(__x86_64__)
    // The compiler's check includes whether the system saves the wider registers.
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (avx2) found.push_back({Isa::avx2});
    if (avx2 && __builtin_cpu_supports("avxvnni")) found.push_back({Isa::avx2, DotProducts::bytes});
    if (avx2 && avx512) found.push_back({Isa::avx512});
    if (!avx2 || !avx512 || !__builtin_cpu_supports("avx512vnni")) return found;
    found.push_back({Isa::avx512, DotProducts::bytes});
    if (!__builtin_cpu_supports("avx512bf16")) return found;
    found.push_back({Isa::avx512, DotProducts::bf16});
    if (may_use_tiles()) found.push_back({Isa::avx512, DotProducts::tiles});
#elif defined(__aarch64__) && defined(__linux__)
    if ((getauxval(AT_HWCAP) & HWCAP_ASIMDDP) == 0) return found;
    found.push_back({Isa::neon});
    constexpr unsigned long i8mm = 1UL << 13; // HWCAP2_I8MM, which older headers lack
    if ((getauxval(AT_HWCAP2) & i8mm) != 0) found.push_back({Isa::neon, DotProducts::matrices});
#elif defined(__aarch64__) && defined(__APPLE__)
    found.push_back({Isa::neon}); // every such processor has the dot product
    int i8mm = 0;
    size_t size = sizeof i8mm;
    if (sysctlbyname("hw.optional.arm.FEAT_I8MM", &i8mm, &size, nullptr, 0) == 0 && i8mm != 0)
        found.push_back({Isa::neon, DotProducts::matrices});
#elif defined(__aarch64__) && defined(_WIN32)
    constexpr DWORD dot_products = 43, i8mm = 66; // PF_ARM_..._INSTRUCTIONS_AVAILABLE, which older headers lack
    if (IsProcessorFeaturePresent(dot_products) == 0) return found;
    found.push_back({Isa::neon});
    if (IsProcessorFeaturePresent(i8mm) != 0) found.push_back({Isa::neon, DotProducts::matrices});
#endif
    return found;
}

} // namespace

std::string name(InstructionSet set) {
    for (const auto &each : names) {
        if (each.set == set) return each.name;
    }
    return "unknown";
}

std::optional<InstructionSet> instruction_set_from_name(const std::string &wanted) {
    for (const auto &each : names) {
        if (each.name == wanted) return each.set;
    }
    return std::nullopt;
}

const std::vector<InstructionSet> &supported_instruction_sets() {
    static const std::vector<InstructionSet> found = find_supported();
    return found;
}

std::vector<InstructionSet> emulated_instruction_sets() {
    const auto &known = supported_instruction_sets();
    const InstructionSet needed{Isa::avx512, DotProducts::bytes};
    if (std::find(known.begin(), known.end(), needed) == known.end()) return {};
    return {{Isa::avx512, DotProducts::emulated_tiles}};
}

} // namespace quire
