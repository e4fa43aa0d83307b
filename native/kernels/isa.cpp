#include "kernels/isa.h"

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
#if defined(__x86_64__)
#include <cpuid.h>
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
// Queries CPUID directly: __builtin_cpu_supports() always returns false if the linker omits the compiler library that
// fills its table, as zig's linker does.
class Processor {
  public:
    Processor() {
        unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
        if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0) return;
        basic_ = ecx;
        if (has(basic_, 27)) saved_ = saved_registers(); // OSXSAVE: programs may read XCR0
        if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return;
        extended_ = {ebx, ecx, edx};
        if (eax >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0) later_ = eax;
    }

    // AVX2, FMA and F16C.
    bool has_avx2() const {
        return saves(0x6) && has(basic_, 28) && has(basic_, 12) && has(basic_, 29) && has(extended_.ebx, 5);
    }
    bool has_avx2_bytes() const { return has(later_, 4); } // AVX-VNNI
    // AVX-512 F, DQ, BW and VL.
    bool has_avx512() const {
#if defined(__APPLE__)
        constexpr unsigned registers = 0x6; // macOS saves the others once a thread uses them
#else
        constexpr unsigned registers = 0xe6;
#endif
        return saves(registers) && has(extended_.ebx, 16) && has(extended_.ebx, 17) && has(extended_.ebx, 30) &&
               has(extended_.ebx, 31);
    }
    bool has_avx512_bytes() const { return has(extended_.ecx, 11); } // AVX-512 VNNI
    bool has_avx512_bf16() const { return has(later_, 5); }
    // AMX tiles, for bytes and BF16.
    bool has_tiles() const {
        return saves(0x60000) && has(extended_.edx, 22) && has(extended_.edx, 24) && has(extended_.edx, 25);
    }

  private:
    static bool has(unsigned word, int bit) { return (word >> bit & 1) != 0; }
    bool saves(unsigned registers) const { return (saved_ & registers) == registers; }
    // XCR0: the registers that the system saves for each thread.
    static unsigned saved_registers() {
        unsigned low = 0, high = 0;
        __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        return low;
    }

    unsigned basic_ = 0, later_ = 0, saved_ = 0;
    struct {
        unsigned ebx, ecx, edx;
    } extended_{};
};

// Tile registers are so large that Linux enables them only for processes that request it (arch_prctl(2)).
bool may_use_tiles(const Processor &processor) {
#if defined(__linux__)
    constexpr long request_permission = 0x1023, tile_data = 18;
    return processor.has_tiles() && syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
    static_cast<void>(processor);
    return false;
#endif
}
#endif

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

std::vector<InstructionSet> instruction_sets_of_this_machine() {
    std::vector<InstructionSet> found{{Isa::portable}};
#if defined(__x86_64__)
    const Processor processor;
    if (!processor.has_avx2()) return found;
    found.push_back({Isa::avx2});
    if (processor.has_avx2_bytes()) found.push_back({Isa::avx2, DotProducts::bytes});
    if (!processor.has_avx512()) return found;
    found.push_back({Isa::avx512});
    if (!processor.has_avx512_bytes()) return found;
    found.push_back({Isa::avx512, DotProducts::bytes});
    if (!processor.has_avx512_bf16()) return found;
    found.push_back({Isa::avx512, DotProducts::bf16});
    if (may_use_tiles(processor)) found.push_back({Isa::avx512, DotProducts::tiles});
#elif defined(__aarch64__) && defined(__linux__)
    if ((getauxval(AT_HWCAP) & HWCAP_ASIMDDP) == 0) return found;
    found.push_back({Isa::neon});
    constexpr unsigned long i8mm = 1UL << 13; // HWCAP2_I8MM; older headers lack it
    if ((getauxval(AT_HWCAP2) & i8mm) != 0) found.push_back({Isa::neon, DotProducts::matrices});
#elif defined(__aarch64__) && defined(__APPLE__)
    found.push_back({Isa::neon}); // all Apple processors have dot products
    int i8mm = 0;
    size_t size = sizeof i8mm;
    if (sysctlbyname("hw.optional.arm.FEAT_I8MM", &i8mm, &size, nullptr, 0) == 0 && i8mm != 0)
        found.push_back({Isa::neon, DotProducts::matrices});
#elif defined(__aarch64__) && defined(_WIN32)
    constexpr DWORD dot_products = 43, i8mm = 66; // PF_ARM_..._INSTRUCTIONS_AVAILABLE; older headers lack them
    if (IsProcessorFeaturePresent(dot_products) == 0) return found;
    found.push_back({Isa::neon});
    if (IsProcessorFeaturePresent(i8mm) != 0) found.push_back({Isa::neon, DotProducts::matrices});
#endif
    return found;
}

} // namespace quire
