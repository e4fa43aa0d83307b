// CUDA on the CPU, as far as kernels of native/cuda use it: threads of a block are fibers that take turns at barriers and
// shuffles, in the order that a test asks for.  Kernels without a missing barrier give the same bits in every order.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#define __host__
#define __device__
#define __global__
#define __launch_bounds__(...)
#define __shared__ static // one block runs at a time

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};
struct float2 {
    float x, y;
};
struct uint2 {
    unsigned x, y;
};
struct uint4 {
    unsigned x, y, z, w;
};
struct int2 {
    int x, y;
};
struct int4 {
    int x, y, z, w;
};
struct half;
using std::min;

namespace emulator {

enum class Order { forward, backward, shuffled };

struct Barrier {
    int n = 0, waiting = 0, round = 0; // n: threads that have not ended
};

struct Copy {
    char *to;
    const char *from;
};

struct Thread {
    std::vector<std::vector<Copy>> copies; // asynchronous ones, by group; the last group is open
    ucontext_t context{};
    std::unique_ptr<char[]> stack;
    dim3 index;
    int number = 0;
    bool has_ended = false;
};

struct Warp {
    Barrier barrier;
    float values[32];
    unsigned operands[32][6]; // the operands of a product of matrices
    const char *rows[32];
};

struct Block {
    std::vector<Thread> threads;
    std::vector<Warp> warps;
    Barrier barrier;
    ucontext_t scheduler{};
    Thread *current = nullptr;
    const std::function<void()> *kernel = nullptr;
    int n_steps = 0; // barriers that were passed, and threads that ended
};
inline Block block;
inline dim3 block_index, grid;

[[noreturn]] inline void fail(const char *why) {
    std::fprintf(stderr, "cuda emulator: %s\n", why);
    std::abort();
}

inline void pass(Barrier &barrier) {
    if (barrier.waiting < barrier.n || barrier.n == 0) return;
    barrier.waiting = 0;
    ++barrier.round;
    ++block.n_steps;
}

inline void wait(Barrier &barrier) {
    const int round = barrier.round;
    ++barrier.waiting;
    pass(barrier);
    while (barrier.round == round) swapcontext(&block.current->context, &block.scheduler);
}

inline void run_thread() {
    (*block.kernel)();
    Thread &thread = *block.current;
    thread.has_ended = true;
    ++block.n_steps;
    for (Barrier *barrier : {&block.warps[static_cast<size_t>(thread.number / 32)].barrier, &block.barrier}) {
        --barrier->n;
        pass(*barrier);
    }
    swapcontext(&thread.context, &block.scheduler);
}

inline void run_block(int n_threads, Order order, std::mt19937 &random, const std::function<void()> &kernel) {
    constexpr size_t stack_bytes = 1 << 17;
    const auto n = static_cast<size_t>(n_threads);
    block.threads.resize(n);
    block.warps.assign(n / 32, Warp{});
    block.barrier = {n_threads, 0, 0};
    block.kernel = &kernel;
    std::vector<size_t> turns(n);
    std::iota(turns.begin(), turns.end(), size_t{0});
    if (order == Order::backward) std::reverse(turns.begin(), turns.end());
    for (size_t i = 0; i < n; ++i) {
        Thread &thread = block.threads[i];
        thread.index = {static_cast<unsigned>(i)};
        thread.number = static_cast<int>(i);
        thread.has_ended = false;
        thread.copies.assign(1, {});
        if (!thread.stack) thread.stack = std::make_unique<char[]>(stack_bytes);
        getcontext(&thread.context);
        thread.context.uc_stack.ss_sp = thread.stack.get();
        thread.context.uc_stack.ss_size = stack_bytes;
        makecontext(&thread.context, run_thread, 0);
        ++block.warps[i / 32].barrier.n;
    }
    for (size_t n_left = n; n_left > 0;) {
        if (order == Order::shuffled) std::shuffle(turns.begin(), turns.end(), random);
        const int n_steps = block.n_steps;
        n_left = 0;
        for (size_t i : turns) {
            Thread &thread = block.threads[i];
            if (thread.has_ended) continue;
            block.current = &thread;
            swapcontext(&block.scheduler, &thread.context);
            n_left += !thread.has_ended;
        }
        if (n_left > 0 && block.n_steps == n_steps) fail("all threads wait: a barrier is not reached by all");
    }
}

inline void launch(dim3 of_blocks, int n_threads, Order order, const std::function<void()> &kernel) {
    std::mt19937 random(1);
    grid = of_blocks;
    std::vector<dim3> blocks;
    for (unsigned z = 0; z < grid.z; ++z)
        for (unsigned y = 0; y < grid.y; ++y)
            for (unsigned x = 0; x < grid.x; ++x) blocks.push_back({x, y, z});
    if (order == Order::backward) std::reverse(blocks.begin(), blocks.end());
    if (order == Order::shuffled) std::shuffle(blocks.begin(), blocks.end(), random);
    for (dim3 index : blocks) {
        block_index = index;
        run_block(n_threads, order, random, kernel);
    }
}

} // namespace emulator

#define threadIdx (emulator::block.current->index)
#define blockIdx (emulator::block_index)

inline void __syncthreads() { emulator::wait(emulator::block.barrier); }
inline int __dp4a(int a, int b, int c) {
    for (int shift = 0; shift < 32; shift += 8) c += static_cast<int8_t>(a >> shift) * static_cast<int8_t>(b >> shift);
    return c;
}
#define DYNAMIC_SHARED_MEMORY(name) alignas(16) static char name[1 << 17]
#define gridDim (emulator::grid)
inline void __syncwarp() {
    emulator::wait(emulator::block.warps[static_cast<size_t>(emulator::block.current->number / 32)].barrier);
}
inline float __shfl_xor_sync(unsigned, float x, int bits) {
    const int number = emulator::block.current->number;
    emulator::Warp &warp = emulator::block.warps[static_cast<size_t>(number / 32)];
    warp.values[number % 32] = x;
    emulator::wait(warp.barrier);
    const float other = warp.values[(number % 32) ^ bits];
    emulator::wait(warp.barrier);
    return other;
}
inline float __uint_as_float(unsigned bits) {
    float x;
    std::memcpy(&x, &bits, sizeof(x));
    return x;
}

namespace quire_cuda {

inline float2 halves_to_floats(unsigned word) {
    _Float16 pair[2];
    std::memcpy(pair, &word, sizeof(pair));
    return {static_cast<float>(pair[0]), static_cast<float>(pair[1])};
}
inline unsigned short half_bits(float x) {
    const auto rounded = static_cast<_Float16>(x);
    unsigned short bits;
    std::memcpy(&bits, &rounded, sizeof(bits));
    return bits;
}
inline unsigned short bf16_bits(float x) { // to the nearest, halves to the even one
    unsigned bits;
    std::memcpy(&bits, &x, sizeof(bits));
    return static_cast<unsigned short>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
inline uint4 load_once(const char *from) {
    if (reinterpret_cast<uintptr_t>(from) % 16 != 0) emulator::fail("a load of 16 bytes is not aligned");
    uint4 bytes;
    std::memcpy(&bytes, from, sizeof(bytes));
    return bytes;
}

inline unsigned float_bits(float x) {
    unsigned bits;
    std::memcpy(&bits, &x, sizeof(bits));
    return bits;
}

// Bytes of two words, chosen by the four digits of `digits`.
inline unsigned byte_perm(unsigned low, unsigned high, unsigned digits) {
    const uint64_t both = static_cast<uint64_t>(high) << 32 | low;
    unsigned made = 0;
    for (int i = 0; i < 4; ++i)
        made |= static_cast<unsigned>(both >> (8 * (digits >> (4 * i) & 7U)) & 0xFFU) << (8 * i);
    return made;
}

template <class Do> unsigned on_pairs(unsigned a, unsigned b, unsigned c, const Do &compute) {
    const float2 x = halves_to_floats(a), y = halves_to_floats(b), z = halves_to_floats(c);
    return half_bits(compute(x.x, y.x, z.x)) | static_cast<unsigned>(half_bits(compute(x.y, y.y, z.y))) << 16;
}
// Sums and products of two halves are exact in float but for sums of very different ones.
inline unsigned pair_subtract(unsigned a, unsigned b) {
    return on_pairs(a, b, 0, [](float x, float y, float) { return x - y; });
}
inline unsigned pair_multiply(unsigned a, unsigned b) {
    return on_pairs(a, b, 0, [](float x, float y, float) { return x * y; });
}
inline unsigned pair_fma(unsigned a, unsigned b, unsigned c) {
    return on_pairs(a, b, c, [](float x, float y, float z) { return std::fma(x, y, z); });
}

// An asynchronous copy may be made at any time between its start and the wait for its group.  Here what it replaces is
// lost at once, and what it brings comes at the wait.
inline void copy_async(char *to, const char *from) {
    if ((reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to)) % 16 != 0)
        emulator::fail("a copy of 16 bytes is not aligned");
    std::memset(to, 0xFF, 16);
    emulator::block.current->copies.back().push_back({to, from});
}
inline void commit_copies() { emulator::block.current->copies.emplace_back(); }
template <int may_be_left> void wait_for_copies() {
    auto &copies = emulator::block.current->copies;
    while (copies.size() > may_be_left + 1U) {
        for (const emulator::Copy &copy : copies.front()) std::memcpy(copy.to, copy.from, 16);
        copies.erase(copies.begin());
    }
}

// ldmatrix.x4.trans: lane l gives the address of row l % 8 of matrix l / 8, and gets of each matrix rows l % 4 * 2 and the
// next, column l / 4.
inline void load_transposed(const char *row, unsigned (&out)[4]) {
    if (reinterpret_cast<uintptr_t>(row) % 16 != 0) emulator::fail("a row of a matrix is not aligned");
    const int number = emulator::block.current->number, lane = number % 32;
    emulator::Warp &warp = emulator::block.warps[static_cast<size_t>(number / 32)];
    warp.rows[lane] = row;
    emulator::wait(warp.barrier);
    for (int matrix = 0; matrix < 4; ++matrix) {
        unsigned short pair[2];
        for (int i = 0; i < 2; ++i)
            std::memcpy(pair + i, warp.rows[8 * matrix + lane % 4 * 2 + i] + lane / 4 * 2, sizeof(pair[i]));
        out[matrix] = pair[0] | static_cast<unsigned>(pair[1]) << 16;
    }
    emulator::wait(warp.barrier);
}

// mma.m16n8k16: a lane has of A rows r = lane / 4 and r + 8, of B and of the sums columns (PTX manual, "Matrix
// Fragments for mma.m16n8k16").
template <bool is_bf16> void multiply_add(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    const int number = emulator::block.current->number, lane = number % 32;
    emulator::Warp &warp = emulator::block.warps[static_cast<size_t>(number / 32)];
    const unsigned operands[6] = {a[0], a[1], a[2], a[3], b0, b1};
    std::memcpy(warp.operands[lane], operands, sizeof(operands));
    emulator::wait(warp.barrier);
    auto value = [](unsigned word, int half) {
        if (is_bf16) return __uint_as_float(half == 0 ? word << 16 : word & 0xFFFF0000U);
        const float2 pair = halves_to_floats(word);
        return half == 0 ? pair.x : pair.y;
    };
    for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        for (int k = 0; k < 16; ++k) {
            const unsigned of_a = warp.operands[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2];
            const unsigned of_b = warp.operands[column * 4 + k % 8 / 2][4 + k / 8];
            sums[i] += value(of_a, k % 2) * value(of_b, k % 2);
        }
    }
    emulator::wait(warp.barrier);
}

} // namespace quire_cuda
