// Prefetches weights before they are read and result lines before they are written.
//
// Included by each instruction set's file; nothing here has external linkage.
#pragma once

#include <cstdint>

#include "kernels/cache_lines.h"
#include "kernels/matmul/matmul_kernels.h"

namespace quire {
namespace {

// How far ahead of its first use a tile is prefetched, where tiles follow each other in memory.  Sapphire Rapids follows
// several streams (avx512amx/few_rows.cpp), or lines of several pages (in_turn).
constexpr int ahead_bytes = 4096;
// By few rows.  One row reads codes so fast that the hardware prefetcher alone reaches the memory's bandwidth.  Zen 4
// drops prefetches beyond the 24 lines that its first level waits for; with a latency of 170 ns these give a third of
// the bandwidth.  More rows read too slowly for the hardware to look far ahead: 6 to 7 KB are best, 4 KB lose a fifth.
// Codes of a byte gain by a prefetch at a short distance.
constexpr int codes_ahead_bytes = 6144, fast_ahead_bytes = 1024;
// Longer chunks, too, are prefetched in parts of 64 columns: some fifty lines at once, a chunk of Q6_K, cost a third of
// the bandwidth (Zen 3).
constexpr int asking_groups = 2;
template <CacheLevel level = CacheLevel::second>
[[gnu::always_inline]] inline void prefetch(const uint8_t *chunk, int64_t size_bytes) {
    for (int64_t i = 0; i < size_bytes; i += register_bytes) prefetch_line<level>(chunk + i);
}

// Prefetches take one piece of each of `1 << log_pages` pages in turn.  Intel's processors prefetch by pages, each only
// some lines ahead; with four pages under way, memory that is read in order arrives a fifth faster.
constexpr int64_t piece_bytes = 256, page_pieces = 4096 / piece_bytes;
constexpr int64_t turn_of(int64_t piece, int log_pages) {
    const int64_t in_pages = piece & ((page_pieces << log_pages) - 1),
                  page = in_pages & ((int64_t{1} << log_pages) - 1);
    return piece - in_pages + page * page_pieces + (in_pages >> log_pages);
}
static_assert(turn_of(64, 2) == 64 && turn_of(65, 2) == 64 + 16 && turn_of(68, 2) == 65 && turn_of(127, 2) == 127);
// What to prefetch in place of `at`; each piece has its turn once.
[[gnu::always_inline]] inline const uint8_t *in_turn(const uint8_t *at, int log_pages) {
    const auto piece = static_cast<int64_t>(reinterpret_cast<uintptr_t>(at) / piece_bytes);
    return at + (turn_of(piece, log_pages) - piece) * piece_bytes;
}

// Weights that later work reads, prefetched evenly while this work goes on: `step` bytes each time.
struct Ahead {
    const uint8_t *at = nullptr, *end = nullptr; // nothing to ask for
    int64_t step = 0;
    int log_pages = 0; // of next_lines

    // All of [at, at + size_bytes) in n_times.
    static Ahead in_steps(const uint8_t *at, int64_t size_bytes, int64_t n_times) {
        const int64_t lines = (size_bytes + register_bytes - 1) / register_bytes;
        return {at, at + size_bytes, (lines + n_times - 1) / n_times * register_bytes};
    }
    // So many lines, whatever `step` and `end` are: where every instruction counts.  No more than a piece, whose size they
    // divide.
    template <int n> [[gnu::always_inline]] inline void next_lines() {
#pragma GCC unroll 8
        for (int i = 0; i < n; ++i) prefetch_line(in_turn(at, log_pages) + i * register_bytes);
        at += n * register_bytes;
    }
    [[gnu::always_inline]] inline void next() {
        if (at >= end) return;
        prefetch(at, step);
        at += step;
    }
};

// `columns` numbers of each of n_rows of a result.  Of many rows its lines lie far apart and are in no cache; stores that
// wait for them would hold up the next block's.
template <int columns> void ask_for_result(const float *out, int64_t stride, int n_rows) {
    constexpr int line = register_bytes / static_cast<int>(sizeof(float));
    for (int r = 0; r < n_rows; ++r, out += stride) {
        for (int i = 0; i < columns; i += line) __builtin_prefetch(out + i, 1);
    }
}

} // namespace
} // namespace quire
