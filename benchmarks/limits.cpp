// The limits of this machine: bytes read from memory per second, and
// multiplications and additions per second.
//
// limits.py compiles this file for the machine it runs on, and calls it through
// ctypes.  Loops are in assembler if a compiler might remove them because their
// results are unused.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include <sys/mman.h>
#if defined(__AMX_INT8__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// Runs work on every thread, from a common start to the end of the last one.
double seconds_of(int n_threads, const std::function<void(int)> &work) {
    const Clock::time_point begin = Clock::now();
    std::vector<std::thread> others;
    for (int i = 1; i < n_threads; ++i) others.emplace_back(work, i);
    work(0);
    for (std::thread &other : others) other.join();
    return seconds_since(begin);
}

typedef uint64_t Line __attribute__((vector_size(64)));

// Reading at several places at a time keeps more cache lines in flight; the best
// number depends on the prefetchers.
template <int N> uint64_t read_streams(const uint8_t *data, size_t size_bytes) {
    constexpr int prefetch_lines = 64;
    const size_t step = size_bytes / N / 256 * 256;
    Line sums[4] = {};
    for (size_t at = 0; at < step; at += 256) {
        for (int stream = 0; stream < N; ++stream) {
            const auto *lines = reinterpret_cast<const Line *>(data + static_cast<size_t>(stream) * step + at);
            for (int i = 0; i < 4; ++i) {
                __builtin_prefetch(lines + i + prefetch_lines);
                sums[i] ^= lines[i];
            }
        }
    }
    const Line sum = sums[0] ^ sums[1] ^ sums[2] ^ sums[3];
    return sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7];
}

volatile uint64_t sink;

struct Peak {
    const char *instruction;
    double operations; // per repeat
    void (*run)(int64_t n);
};

#if defined(__x86_64__)
#define SIXTEEN(op)                                                                                                    \
    op("0") op("1") op("2") op("3") op("4") op("5") op("6") op("7") op("8") op("9") op("10") op("11") op("12")         \
        op("13") op("14") op("15")
#define EIGHT(op) op("0") op("1") op("2") op("3") op("4") op("5") op("6") op("7")
#define LOW_REGISTERS                                                                                                  \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",         \
        "xmm13", "xmm14", "xmm15"
// Zeros need no setup and take as long as other numbers.
#define CLEAR_512(i) "vpxord %%zmm" i ", %%zmm" i ", %%zmm" i "\n"
#define CLEAR_256(i) "vpxor %%ymm" i ", %%ymm" i ", %%ymm" i "\n"
#define LOOP(clear, body, ...)                                                                                         \
    asm volatile(clear "1:\n" body "dec %0\n jnz 1b\n vzeroupper\n" : "+r"(n) : : "cc", LOW_REGISTERS, ##__VA_ARGS__)

#if defined(__AVX512VNNI__)
#define DOT_INT8(i) "vpdpbusd %%zmm17, %%zmm16, %%zmm" i "\n"
void int8_dot(int64_t n) {
    LOOP(SIXTEEN(CLEAR_512) CLEAR_512("16") CLEAR_512("17"), SIXTEEN(DOT_INT8), "xmm16", "xmm17");
}
constexpr Peak int8_vector{"AVX-512 VNNI", 16 * 64 * 2, int8_dot};
#elif defined(__AVXVNNI__)
#define DOT_INT8(i) "%{vex%} vpdpbusd %%ymm15, %%ymm14, %%ymm" i "\n"
void int8_dot(int64_t n) { LOOP(SIXTEEN(CLEAR_256), EIGHT(DOT_INT8) DOT_INT8("8") DOT_INT8("9")); }
constexpr Peak int8_vector{"AVX VNNI", 10 * 32 * 2, int8_dot};
#elif defined(__AVX2__)
#define DOT_INT8(i)                                                                                                    \
    "vpmaddubsw %%ymm15, %%ymm14, %%ymm13\n vpmaddwd %%ymm13, %%ymm12, "                                               \
    "%%ymm11\n vpaddd %%ymm11, %%ymm" i ", %%ymm" i "\n"
void int8_dot(int64_t n) { LOOP(SIXTEEN(CLEAR_256), EIGHT(DOT_INT8)); }
constexpr Peak int8_vector{"AVX2", 8 * 32 * 2, int8_dot};
#else
constexpr Peak int8_vector{"", 0, nullptr};
#endif

#if defined(__AVX512BF16__)
#define DOT_BF16(i) "vdpbf16ps %%zmm17, %%zmm16, %%zmm" i "\n"
void bf16_dot(int64_t n) {
    LOOP(SIXTEEN(CLEAR_512) CLEAR_512("16") CLEAR_512("17"), SIXTEEN(DOT_BF16), "xmm16", "xmm17");
}
constexpr Peak bf16_vector{"AVX-512 BF16", 16 * 32 * 2, bf16_dot};
#else
constexpr Peak bf16_vector{"", 0, nullptr};
#endif

#if defined(__AVX512F__)
#define FMA(i) "vfmadd231ps %%zmm17, %%zmm16, %%zmm" i "\n"
void f32_fma(int64_t n) { LOOP(SIXTEEN(CLEAR_512) CLEAR_512("16") CLEAR_512("17"), SIXTEEN(FMA), "xmm16", "xmm17"); }
constexpr Peak f32_vector{"AVX-512", 16 * 16 * 2, f32_fma};
#elif defined(__FMA__)
#define FMA(i) "vfmadd231ps %%ymm15, %%ymm14, %%ymm" i "\n"
void f32_fma(int64_t n) { LOOP(SIXTEEN(CLEAR_256), EIGHT(FMA) FMA("8") FMA("9")); }
constexpr Peak f32_vector{"FMA", 10 * 8 * 2, f32_fma};
#else
constexpr Peak f32_vector{"", 0, nullptr};
#endif
#else
constexpr Peak int8_vector{"", 0, nullptr}, bf16_vector{"", 0, nullptr}, f32_vector{"", 0, nullptr};
#endif

#if defined(__AMX_INT8__) && defined(__AMX_BF16__)
// Eight tiles of 16 rows of 64 bytes.
struct TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
const TileConfig tile_config;

#define TILES_BEGIN                                                                                                    \
    "ldtilecfg %1\n tilezero %%tmm0\n tilezero %%tmm1\n tilezero %%tmm2\n "                                            \
    "tilezero %%tmm3\n"                                                                                                \
    "tilezero %%tmm4\n tilezero %%tmm5\n tilezero %%tmm6\n tilezero %%tmm7\n"
#define TILE_PRODUCTS(op)                                                                                              \
    op " %%tmm6, %%tmm4, %%tmm0\n" op " %%tmm7, %%tmm4, %%tmm1\n" op " %%tmm6, %%tmm5, %%tmm2\n" op                    \
       " %%tmm7, %%tmm5, %%tmm3\n"
#define TILE_LOOP(op)                                                                                                  \
    asm volatile(TILES_BEGIN "1:\n" TILE_PRODUCTS(op) "dec %0\n jnz 1b\n tilerelease\n"                                \
                 : "+r"(n)                                                                                             \
                 : "m"(tile_config)                                                                                    \
                 : "cc", "memory")

void int8_tiles(int64_t n) { TILE_LOOP("tdpbssd"); }
void bf16_tiles(int64_t n) { TILE_LOOP("tdpbf16ps"); }
constexpr Peak int8_tile{"AMX int8", 4 * 16 * 16 * 64 * 2, int8_tiles};
constexpr Peak bf16_tile{"AMX bf16", 4 * 16 * 16 * 32 * 2, bf16_tiles};

// The system enables the tiles' state for a process only on request.
bool has_tiles() {
    constexpr long request_permission = 0x1023, tile_data = 18;
    static const bool granted = syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
    return granted;
}
const Peak &int8_best() { return has_tiles() ? int8_tile : int8_vector; }
const Peak &bf16_best() { return has_tiles() ? bf16_tile : bf16_vector; }
#else
const Peak &int8_best() { return int8_vector; }
const Peak &bf16_best() { return bf16_vector; }
#endif

const Peak &peak_of(int kind) { return kind == 0 ? int8_best() : kind == 1 ? bf16_best() : f32_vector; }

} // namespace

extern "C" {

// Returns pages that are allocated and, if the system has them, huge; null if
// there is not enough memory.
uint8_t *quire_pages(size_t size_bytes) {
    void *memory = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
#if defined(MADV_HUGEPAGE)
    madvise(memory, size_bytes, MADV_HUGEPAGE);
#endif
    std::memset(memory, 1, size_bytes);
    return static_cast<uint8_t *>(memory);
}

void quire_free_pages(uint8_t *memory, size_t size_bytes) { munmap(memory, size_bytes); }

// Returns the bytes per second that all threads read, each its own part, at
// `n_streams` (1, 2, 4 or 8) places at a time.
double quire_read_speed(const uint8_t *memory, size_t size_bytes, int n_threads, int n_streams) {
    const size_t part = size_bytes / static_cast<size_t>(n_threads) / 4096 * 4096;
    const double seconds = seconds_of(n_threads, [&](int thread) {
        const uint8_t *own = memory + static_cast<size_t>(thread) * part;
        sink = n_streams == 1   ? read_streams<1>(own, part)
               : n_streams == 2 ? read_streams<2>(own, part)
               : n_streams == 4 ? read_streams<4>(own, part)
                                : read_streams<8>(own, part);
    });
    return static_cast<double>(part) * n_threads / seconds;
}

// Returns the instructions that are measured for int8 (0), bf16 (1) and f32 (2);
// empty if the machine has none.
const char *quire_peak_name(int kind) { return peak_of(kind).instruction; }

// Returns the multiplications plus additions per second of all threads, measured
// for the given number of seconds.
double quire_peak_speed(int kind, int n_threads, double seconds) {
    const Peak &peak = peak_of(kind);
    if (peak.run == nullptr) return 0;
    constexpr int64_t n_repeats = 4096; // tens of microseconds
    std::atomic<int64_t> n_calls{0};
    const Clock::time_point begin = Clock::now();
    const double taken = seconds_of(n_threads, [&](int) {
        int64_t n = 0;
        for (; seconds_since(begin) < seconds; ++n) peak.run(n_repeats);
        n_calls += n;
    });
    return peak.operations * static_cast<double>(n_repeats * n_calls) / taken;
}
}
