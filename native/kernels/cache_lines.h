// Prefetches a line of memory.  Included by each instruction set's file; nothing here has external
// linkage.
#pragma once

namespace quire {
namespace {

// Where to.  The first-level cache waits for few lines at a time (Zen 4: 24), and loads that miss wait for a place among
// them; the second-level one waits for more.
enum class CacheLevel { first, second };
template <CacheLevel level = CacheLevel::second> [[gnu::always_inline]] inline void prefetch_line(const void *line) {
    __builtin_prefetch(line, 0, level == CacheLevel::first ? 3 : 2);
}

} // namespace
} // namespace quire
