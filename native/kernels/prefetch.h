// Prefetching of weights before they are read and of results before they are written.
//
// Each instruction set's files include this; nothing here has external linkage.
#pragma once

#include <cstdint>

#include "kernels/cache_lines.h"
#include "kernels/matmul/matmul_kernels.h"

namespace quire {
namespace {

// The prefetch distance for tiles that are contiguous in memory.  Sapphire Rapids keeps up with several streams
// (avx512amx/few_rows.cpp) or with lines of several pages (page_interleaved).
constexpr int ahead_bytes = 4096;
// Prefetch distances for products of few rows.  With one row, codes are read so fast that the hardware prefetcher alone
// saturates the memory's bandwidth.  Zen 4 drops prefetches beyond the 24 lines that its first level can wait for,
// which at a latency of 170 ns is a third of the bandwidth.  With more rows, codes are read too slowly for the hardware
// to look far ahead: 6 to 7 KB are best, 4 KB are a fifth slower.  Codes of one byte gain from the short distance.
constexpr int codes_ahead_bytes = 6144, fast_ahead_bytes = 1024;
// Long chunks are prefetched in parts of 64 columns, too: prefetching all of a Q6_K chunk, about fifty lines, at once
// costs a third of the bandwidth on Zen 3.
constexpr int asking_groups = 2;
template <CacheLevel level = CacheLevel::second>
[[gnu::always_inline]] inline void prefetch(const uint8_t *chunk, int64_t size_bytes) {
    for (int64_t i = 0; i < size_bytes; i += register_bytes) prefetch_line<level>(chunk + i);
}

// Prefetches interleave `1 << log_pages` pages, one piece of each at a time.  Intel's hardware prefetchers work per
// page and look only a few lines ahead; with four pages in flight, sequential reads are a fifth faster.
constexpr int64_t piece_bytes = 256, page_pieces = 4096 / piece_bytes;
constexpr int64_t turn_of(int64_t piece, int log_pages) {
    const int64_t in_pages = piece & ((page_pieces << log_pages) - 1),
                  page = in_pages & ((int64_t{1} << log_pages) - 1);
    return piece - in_pages + page * page_pieces + (in_pages >> log_pages);
}
static_assert(turn_of(64, 2) == 64 && turn_of(65, 2) == 64 + 16 && turn_of(68, 2) == 65 && turn_of(127, 2) == 127);
// The address to prefetch in place of `at`: a permutation of the pieces of `1 << log_pages` pages.
[[gnu::always_inline]] inline const uint8_t *page_interleaved(const uint8_t *at, int log_pages) {
    const auto piece = static_cast<int64_t>(reinterpret_cast<uintptr_t>(at) / piece_bytes);
    return at + (turn_of(piece, log_pages) - piece) * piece_bytes;
}

// Prefetches the weights of later work evenly during the current work, `step` bytes per call of next().
struct PrefetchCursor {
    const uint8_t *at = nullptr, *end = nullptr; // by default nothing to prefetch
    int64_t step = 0;
    int log_pages = 0; // for next_lines()

    // Prefetch [at, at + size_bytes) in n_times calls of next().
    static PrefetchCursor in_steps(const uint8_t *at, int64_t size_bytes, int64_t n_times) {
        const int64_t lines = (size_bytes + register_bytes - 1) / register_bytes;
        return {at, at + size_bytes, (lines + n_times - 1) / n_times * register_bytes};
    }
    // Prefetch n lines and ignore `step` and `end`, where every instruction counts.  n lines must divide a piece.
    template <int n> [[gnu::always_inline]] inline void next_lines() {
#pragma GCC unroll 8
        for (int i = 0; i < n; ++i) prefetch_line(page_interleaved(at, log_pages) + i * register_bytes);
        at += n * register_bytes;
    }
    [[gnu::always_inline]] inline void next() {
        if (at >= end) return;
        prefetch(at, step);
        at += step;
    }
};

// Prefetch `columns` numbers of each of n_rows of a result for writing.  With many rows the lines are far apart and in
// no cache, and stores that wait for them would hold up those of the next block.
template <int columns> void ask_for_result(const float *out, int64_t stride, int n_rows) {
    constexpr int line = register_bytes / static_cast<int>(sizeof(float));
    for (int r = 0; r < n_rows; ++r, out += stride) {
        for (int i = 0; i < columns; i += line) __builtin_prefetch(out + i, 1);
    }
}

} // namespace
} // namespace quire
