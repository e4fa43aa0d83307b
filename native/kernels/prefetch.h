// Weights asked for before they are read.  Included by each instruction set's file; nothing here has external linkage.
#pragma once

#include <cstdint>

#include "kernels/matmul_kernels.h"

namespace quire {
namespace {

// How far ahead of its first use a tile is asked for.  Tiles follow each other in memory; on Zen 5 one stream of them at
// this distance reaches the memory's bandwidth for every format, which the hardware's own prefetching does not.  Sapphire
// Rapids takes several streams (avx512vnni/few_rows.h).
constexpr int ahead_bytes = 4096;
[[gnu::always_inline]] inline void prefetch(const uint8_t *chunk, int64_t size_bytes) {
    for (int64_t i = 0; i < size_bytes; i += register_bytes) __builtin_prefetch(chunk + i);
}

// Weights that later work reads, asked for evenly while this work goes on: `step` bytes with every chunk.
struct Ahead {
    const uint8_t *at, *end;
    int64_t step;

    // All of [at, at + size_bytes) in n_chunks.
    static Ahead in_chunks(const uint8_t *at, int64_t size_bytes, int64_t n_chunks) {
        const int64_t lines = (size_bytes + register_bytes - 1) / register_bytes;
        return {at, at + size_bytes, (lines + n_chunks - 1) / n_chunks * register_bytes};
    }
    // So many lines, whatever `step` and `end` are: where every instruction counts.
    template <int n> [[gnu::always_inline]] inline void next_lines() {
#pragma GCC unroll 8
        for (int i = 0; i < n; ++i) __builtin_prefetch(at + i * register_bytes);
        at += n * register_bytes;
    }
    [[gnu::always_inline]] inline void next() {
        if (at >= end) return;
        prefetch(at, step);
        at += step;
    }
};

} // namespace
} // namespace quire
